#include "app/report/run_again.h"

#include <fmt/format.h>

#include "aggregator/run_directory.h"
#include "aggregator/run_spec.h"
#include "episode/reward_kind.h"
#include "evaluation/code_grader.h"
#include "evaluation/task.h"
#include "policy/learner.h"
#include "wire/messages.pb.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

void add_policy(const wire::RunSpec& spec, CommandWords* words) {
  const policy::PolicyConfig config = aggregator::policy_config(spec);
  words->add("policy", config.name);
  if (!config.start.samples.empty()) words->add("start", config.start.to_string());
  words->add("max-policy-lag", config.max_policy_lag == policy::kNoPolicyLagLimit
                                   ? "none"
                                   : std::to_string(config.max_policy_lag));
  for (const auto& [name, value] : config.parameters)
    words->add("policy-option", fmt::format("{}={}", name, value));
}

}  // namespace

CommandWords run_again(const wire::RunSpec& spec, const std::filesystem::path& directory,
                       const std::string& grader) {
  CommandWords words("tune");
  const wire::TaskSpec& task = spec.task();
  words.add("run", directory.string());
  const auto graded = evaluation::make_task(worker::task_source(task));
  // A run does not say which program grades; running code there is one way to.
  const std::string unsaid = graded->runs_code() ? std::string(evaluation::kCodeGrader) : "COMMAND";
  words.add(worker::conditions_of(spec),
            {.model = spec.model_path(),
             .adapter = spec.model().adapter().path(),
             .data = task.train().path(),
             .task_file = aggregator::task_path(directory).string(),
             .grader = graded->needs_grader() && grader.empty() ? unsaid : grader});
  if (task.heldout_questions() > 0) words.add("heldout", task.heldout().path());
  words.add("heldout-questions", task.heldout_questions());
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
  if (spec.divergence_questions() > 0) words.add("divergence-questions", spec.divergence_questions());
  words.add("preflight", spec.preflight_questions());
  words.flag("ignore-preflight", spec.ignore_preflight());
  if (spec.price_per_hour() > 0) words.add("price-per-hour", spec.price_per_hour());
  if (spec.cross_check() > 0) words.add("cross-check", spec.cross_check());
  words.add("lease-seconds", spec.lease_ms() / 1000);
  words.add("max-attempts", spec.max_attempts());
  words.flag("whole-weights", !spec.model().weights_sha256().empty());
  return words;
}

}  // namespace allot::app
