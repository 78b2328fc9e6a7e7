#include "app/report/run_again.h"

#include <fmt/format.h>

#include <cctype>
#include <string_view>
#include <variant>

#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "episode/reward_kind.h"
#include "kernels/method.h"
#include "policy/learner.h"
#include "wire/messages.pb.h"
#include "worker/spec_method.h"

namespace allot::app {
namespace {

class Words {
 public:
  std::vector<std::string> list{"allot", "tune"};

  template <class Value>
  void add(std::string_view option, const Value& value) {
    list.push_back(fmt::format("--{}", option));
    list.push_back(fmt::format("{}", value));
  }
  void flag(std::string_view option, bool given) {
    if (given) list.push_back(fmt::format("--{}", option));
  }
};

void add_attention(const kernels::AttentionMethod& method, Words* words) {
  words->add("estimator", kernels::name(method.estimator));
  words->add("prefill", kernels::name(method.prefill));
  words->add("score-stage", kernels::name(method.score_stage));
  const kernels::AttentionMethod usual;
  for (const auto& settings : {kernels::estimator_settings(), kernels::score_settings()}) {
    for (const kernels::MethodSetting& setting : settings) {
      if (const auto* number = std::get_if<int32_t kernels::AttentionMethod::*>(&setting.field)) {
        if (method.**number != usual.**number) words->add(setting.name, method.**number);
      } else if (const auto* unit =
                     std::get_if<kernels::BudgetUnit kernels::AttentionMethod::*>(&setting.field)) {
        if (method.**unit != usual.**unit) words->add(setting.name, kernels::name(method.**unit));
      } else if (const auto* flag = std::get_if<bool kernels::AttentionMethod::*>(&setting.field)) {
        words->flag(setting.name, method.**flag);
      } else {
        const size_t place = std::get<size_t>(setting.field);
        if (method.parameters.values[place] != usual.parameters.values[place])
          words->add(setting.name, method.parameters.values[place]);
      }
    }
  }
}

void add_policy(const wire::RunSpec& spec, Words* words) {
  const policy::PolicyConfig config = aggregator::policy_config(spec);
  words->add("policy", config.name);
  if (!config.start.samples.empty()) words->add("start", config.start.to_string());
  words->add("max-policy-lag", config.max_policy_lag == policy::kNoPolicyLagLimit
                                   ? "none"
                                   : std::to_string(config.max_policy_lag));
  for (const auto& [name, value] : config.parameters)
    words->add("policy-option", fmt::format("{}={}", name, value));
}

std::string quoted(const std::string& word) {
  const bool plain =
      !word.empty() && std::string_view(word).find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%") ==
                           std::string_view::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace

std::vector<std::string> words_of(const wire::RunSpec& spec, const std::filesystem::path& directory) {
  Words words;
  const wire::TaskSpec& task = spec.task();
  words.add("run", directory.string());
  words.add("model", spec.model_path());
  if (spec.model().has_adapter()) words.add("adapter", spec.model().adapter().path());
  words.add("data", task.train().path());
  if (task.heldout_questions() > 0) words.add("heldout", task.heldout().path());
  if (task.train().has_question_field()) words.add("question-field", task.train().question_field());
  if (task.train().has_answer_field()) words.add("answer-field", task.train().answer_field());
  words.add("heldout-questions", task.heldout_questions());
  words.add("task", task.has_definition() ? aggregator::task_path(directory).string() : task.name());
  if (!task.has_definition()) words.add("prompt-style", task.prompt_style());
  words.add("total", spec.policy().total());
  words.add("floor", spec.policy().floor());
  if (!spec.policy().bounds().empty()) words.add("bounds", spec.policy().bounds());
  add_policy(spec, &words);
  const bool mixed = spec.divergence_episodes() > 0;
  words.add("reward", mixed ? "mixed" : row_of(parse_reward_kind(spec.reward_kind())).name);
  if (mixed) words.add("divergence-episodes", spec.divergence_episodes());
  words.add("until", spec.until_settled() ? "settled" : "episodes");
  words.add("episodes", spec.episodes());
  if (spec.until_settled()) words.add("most-episodes", spec.most_episodes());
  // Rounded, so that the points that were given come back from the share that is kept.
  words.add("gain-floor", fmt::format("{:.12g}", 100 * spec.gain_floor()));
  words.add("questions", spec.questions_per_episode());
  words.add("preflight", spec.preflight_questions());
  words.flag("ignore-preflight", spec.ignore_preflight());
  if (spec.price_per_hour() > 0) words.add("price-per-hour", spec.price_per_hour());
  add_attention(worker::attention_method(spec.attention()), &words);
  const wire::GenerationSpec& generation = spec.generation();
  words.add("dtype", generation.dtype());
  words.add("temperature", generation.temperature());
  words.add("top-p", generation.top_p());
  words.add("repetition-penalty", generation.repetition_penalty());
  words.add("max-new-tokens", generation.max_new_tokens());
  words.add("seed", spec.seed());
  words.add("lease-seconds", spec.lease_ms() / 1000);
  words.add("max-attempts", spec.max_attempts());
  return words.list;
}

std::string command_of(const wire::RunSpec& spec, const std::filesystem::path& directory) {
  std::string line;
  for (const std::string& word : words_of(spec, directory)) line += (line.empty() ? "" : " ") + quoted(word);
  return line;
}

}  // namespace allot::app
