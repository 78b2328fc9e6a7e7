#include "app/run/run_spec_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <vector>

#include "aggregator/run_spec.h"
#include "app/files/schedule_argument.h"
#include "app/run/grader_option.h"
#include "app/run/identity.h"
#include "app/run/model_options.h"
#include "base/error.h"
#include "episode/reward_kind.h"
#include "evaluation/gsm8k/gsm8k.h"
#include "evaluation/overlap.h"
#include "evaluation/task.h"
#include "model/model_config.h"
#include "model/tokenizer.h"
#include "policy/learner.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/spec_conditions.h"
#include "worker/spec_method.h"

namespace allot::app {
namespace {

// The values of --reward that are no kinds of reward.
constexpr const char* kMixed = "mixed";
constexpr const char* kAuto = "auto";  // kMixed where that is of use, else answers
// With fewer divergences than this to learn from, kAuto learns from answers alone.
constexpr int64_t kLeastDivergences = 32;

// Number of held-out questions by default.
constexpr int32_t kHeldoutQuestions = 512;

evaluation::PromptStyle prompt_style(const RunOptions& run) {
  if (run.prompt != "auto") return evaluation::parse_prompt_style(run.prompt);
  return usual_prompt_style(model::Tokenizer::load(run.model));
}

// Faults that can be found without reading a file.
void check_options(const RunOptions& run) {
  std::vector<std::string> faults;
  if (run.model.empty()) faults.emplace_back("--model is missing: the directory of a Hugging Face model");
  if (run.data.empty())
    faults.push_back(fmt::format("--data is missing: a file of questions to learn on; {}",
                                 evaluation::gsm8k::kWhereToGet));
  if (run.policy.total == 0)
    faults.emplace_back(
        "--total is missing: the total of attention samples over all layers, e.g. 8 per layer");
  if (run.heldout.empty() && run.heldout_questions.value_or(kHeldoutQuestions) > 0) {
    faults.emplace_back(
        "--heldout is missing: a file of questions to verify on, or --heldout-questions 0 for none");
  }
  if (!kernels::has_consistent_scores(run.attention)) {
    faults.push_back("--score-stage " + std::string(kernels::name(run.attention.score_stage)) +
                     " with --score-budget " + std::to_string(run.attention.score_budget) +
                     ": a budget of 0 belongs to exact, a budget above 0 to the others");
  }
  if (!kernels::has_consistent_unit(run.attention))
    faults.push_back("--" + kernels::unit_fault(run.attention));
  if (run.divergence_episodes && run.reward != kMixed && run.reward != kAuto)
    faults.push_back("--divergence-episodes goes with --reward mixed, not with --reward " + run.reward);
  const bool mixes = run.reward == kMixed || (run.reward == kAuto && run.divergence_episodes);
  if (mixes && run.divergence_episodes.value_or(1) >= run.episodes)
    faults.push_back("--divergence-episodes " + std::to_string(run.divergence_episodes.value_or(1)) + " of " +
                     std::to_string(run.episodes) +
                     " episodes leave none for answers; --reward divergence learns from divergences alone");
  for (std::string& fault : policy_faults(run.policy)) faults.push_back(std::move(fault));
  if (faults.empty()) return;
  std::string message;
  for (const std::string& fault : faults) message += (message.empty() ? "" : "; ") + fault;
  throw UsageError(message);
}

// What the data allow to measure.
struct LearningData {
  bool has_solutions = false;  // of every question to learn on
};

LearningData set_task(const RunOptions& run, const evaluation::Task& task, wire::TaskSpec* spec) {
  spec->set_name(std::string(task.name()));
  spec->set_version(task.version());
  if (!task.definition().empty()) spec->set_definition(std::string(task.definition()));
  const evaluation::Dataset train = task.load(run.data, run.fields);
  *spec->mutable_train() = to_wire(train);
  const LearningData data{.has_solutions = std::ranges::none_of(train.questions, [](const auto& question) {
                            return question.solution.empty();
                          })};
  const int32_t wanted = run.heldout_questions.value_or(kHeldoutQuestions);
  if (wanted == 0 || run.heldout.empty()) return data;
  const evaluation::Dataset heldout = task.load(run.heldout, run.fields);
  evaluation::check_held_out(task, train, heldout);
  *spec->mutable_heldout() = to_wire(heldout);
  const uint32_t there = spec->heldout().questions();
  if (run.heldout_questions && static_cast<uint32_t>(wanted) > there) {
    throw UsageError("--heldout-questions " + std::to_string(wanted) + ", but --heldout " +
                     run.heldout.string() + " holds " + std::to_string(there));
  }
  spec->set_heldout_questions(std::min(static_cast<uint32_t>(wanted), there));
  return data;
}

// What the run learns from: the kind of its episodes, and how many of them measure divergences first. A
// learner that wants divergences gets them beside the episodes where --episodes is no limit, else at most
// half.
void set_reward(const RunOptions& run, const LearningData& data, wire::RunSpec* spec) {
  const policy::Learner* learner = policy::find_learner(spec->policy().name());
  const bool begins_with_divergences = learner != nullptr && learner->divergences != nullptr;
  const bool settles = run.until == "settled";
  const int64_t half = run.episodes / 2;
  int64_t first = run.divergence_episodes.value_or(half);
  bool beside = false;
  if (!run.divergence_episodes && begins_with_divergences) {
    const int64_t wanted = learner->divergences(spec->model().layers());
    first = settles ? wanted : std::min(wanted, half);
    beside = settles;
  }
  const bool of_use = run.divergence_episodes ||
                      (begins_with_divergences && data.has_solutions && first >= kLeastDivergences);
  spec->set_episodes(run.episodes);
  if (run.reward == kMixed || (run.reward == kAuto && of_use)) {
    spec->set_divergence_episodes(first);
    spec->set_episodes(run.episodes + (beside ? first : 0));
  } else if (run.reward != kAuto && parse_reward_kind(run.reward) != RewardKind::kAnswers) {
    spec->set_reward_kind(run.reward);  // release 0.1 writes specs without it
  }
}

}  // namespace

// "20260131-174502-3fa9": sorts by time, and two runs started in one second still differ.
std::string new_run_id() {
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  char text[32];
  const size_t length = std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &utc);
  std::snprintf(text + length, sizeof text - length, "-%04x", std::random_device{}() & 0xffffu);
  return text;
}

void set_generation(const evaluation::Generation& generation, wire::GenerationSpec* spec) {
  spec->set_dtype(std::string(kernels::name(generation.dtype)));
  if (generation.weights != model::WeightStorage::kDtype)
    spec->set_weights(std::string(model::name(generation.weights)));
  if (generation.keys != kernels::KeyFormat::kSixteenBits)
    spec->set_keys(std::string(kernels::name(generation.keys)));
  spec->set_temperature(generation.temperature);
  spec->set_top_p(generation.top_p);
  spec->set_repetition_penalty(generation.repetition_penalty);
  spec->set_max_new_tokens(generation.max_new_tokens);
}

policy::Schedule start_of(const std::string& text, const wire::RunSpec& spec) {
  const evaluation::Conditions here = worker::conditions_of(spec);
  const NamedSchedule named = parse_schedule_argument(text, here.model, spec.model_path());
  if (!named.schedule) {
    throw UsageError("--start " + text +
                     " is no schedule to start from: a number of samples for every layer " +
                     "is expected, a,b,c,…, uniform:N or a schedule.json");
  }
  if (!named.file) return *named.schedule;
  std::vector<std::string> differences;
  for (const evaluation::Difference& one : evaluation::differences(named.file->conditions, here)) {
    if (!one.field.starts_with("attention.")) continue;
    differences.push_back(fmt::format("{} {} against {}", one.field, one.first, one.second));
  }
  if (named.file->total != spec.policy().total()) {
    differences.push_back(fmt::format("total {} against {}", named.file->total, spec.policy().total()));
  }
  if (!differences.empty()) {
    throw Mismatch(
        fmt::format("--start {} was made for another run: {}; give this run the same attention and total, "
                    "or calibrate again for it",
                    text, fmt::join(differences, "; ")));
  }
  return *named.schedule;
}

void declare_run_options(OptionSet& options, RunOptions* run) {
  constexpr int32_t kManyInt32 = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMany = 1'000'000'000;
  std::vector<std::string> styles = evaluation::prompt_style_names();
  styles.insert(styles.begin(), "auto");
  declare_model_option(
      &options, &run->model,
      "Hugging Face model (config.json, tokenizer.json, *.safetensors): a directory, or org/name[@revision] in the local cache of the hub");
  declare_adapter_option(&options, &run->adapter);
  declare_data_options(&options, &run->data, &run->fields, "questions to learn on");
  options.path(
      "heldout", &run->heldout,
      "questions to verify on, never used for learning; in the forms of --data, with the same fields");
  options.path("run", &run->run,
               "run directory: history, schedule.json, report.html; a run in it is resumed");
  options.integer("total", &run->policy.total, 1, kMany, "N",
                  "total attention samples over all layers, or value rows with --unit rows");
  options.integer("floor", &run->policy.floor, 0, 1'000'000, "S",
                  "fewest samples of a layer; 0 allows layers without any attention");
  declare_task_option(&options, &run->task, "how questions are asked and answers graded");
  options.choice("prompt-style", &run->prompt, styles,
                 "prompt style; auto chooses by the model's chat template");
  options.integer("heldout-questions", &run->heldout_questions, 0, kManyInt32, "N",
                  "verify on the first N held-out questions, 0 for no verification; by default 512, or all "
                  "of a smaller file");

  options.choice(
      "reward", &run->reward, {kAuto, "answers", "divergence", kMixed},
      "what an episode measures: answers (replies are generated and graded), divergence (of sampled "
      "from exact next-token distributions over the solutions of the data, nothing is generated, "
      "and a few questions an episode suffice), or mixed (divergence first, then answers); auto is mixed where the "
      "learner begins with divergences and every question has a solution, else answers; the verification is on "
      "answers");
  options.integer(
      "divergence-episodes", &run->divergence_episodes, 1, kMany, "N",
      "with --reward mixed: how many episodes measure divergences before the others; by default what the learner "
      "asks for (at most half of --episodes, or on top of them with --until settled), or half if it asks for no "
      "number");
  options.integer(
      "divergence-questions", &run->divergence_questions, 1, 1'000'000, "N",
      "questions of an episode that measures divergences; by default as many as --questions. Fewer take "
      "less time and tell schedules apart less surely");
  options.integer(
      "preflight", &run->preflight, 0, 1'000'000, "N",
      "training questions that dense attention and the even schedule answer before learning; a run that "
      "has nothing to learn stops there with the reason; 0 for no preflight");
  options.flag("ignore-preflight", &run->ignore_preflight, "learn whatever the preflight shows");
  options.real("gain-floor", &run->gain_floor, 0, 100, "POINTS",
               "a gain in accuracy that is not worth learning for");
  options.real("price-per-hour", &run->price_per_hour, 0, 1e9, "P",
               "what an hour of one worker costs, in any currency, for the estimated cost of the run");
  options.flag(
      "whole-weights", &run->whole_weights,
      "compare all bytes of the model's weights with those of every worker, instead of a sample: each reads them "
      "once more when it starts");
  options.real(
      "cross-check", &run->cross_check, 0, 1, "SHARE",
      "share of the episodes that are run once more by a worker of another key (without keys: by another "
      "worker), so that false grades show: allot status counts the disagreements of each holder");
  options.choice(
      "until", &run->until, {"episodes", "settled"},
      "when learning ends: after --episodes; or settled, when the learner expects that less than "
      "--gain-floor is left to gain, after --most-episodes at the latest, and after --episodes with a learner "
      "that has no such expectation");
  options.integer("episodes", &run->episodes, 1, kMany, "N", "schedules to score while learning");
  options.integer("most-episodes", &run->most_episodes, 1, kMany, "N",
                  "with --until settled: the largest number of schedules to score");
  options.integer("questions", &run->questions, 1, 1'000'000, "N", "questions of one episode");
  declare_policy_options(&options, &run->policy);

  declare_attention_options(&options, &run->attention, EstimatorChoice::kSampled);

  declare_generation_options(&options, &run->generation, run->task);

  options.integer("seed", &run->seed, 0, std::numeric_limits<uint32_t>::max(), "N",
                  "seed of all randomness in the run");
  options.integer("lease-seconds", &run->lease_seconds, 1, 1'000'000, "S",
                  "reassign an episode when its worker has been silent this long");
  options.integer("max-attempts", &run->max_attempts, 1, 1'000'000, "N",
                  "attempts at one episode before it is given up");
}

wire::RunSpec build_run_spec(const RunOptions& run) {
  check_options(run);
  wire::RunSpec spec;
  spec.set_schema_version(wire::kSpecVersion);
  spec.set_run_id(new_run_id());
  if (run.policy.start != kOwnSchedule) {
    note_unread_schedule(run.model,
                         fmt::format("the run learns its own; --start {} begins with it", kOwnSchedule));
  }
  *spec.mutable_model() = to_wire(model::identify_model(run.model, {.adapter = run.adapter}));
  if (run.whole_weights) spec.mutable_model()->set_weights_sha256(model::whole_weights_sha256(run.model));
  spec.set_model_path(absolute_path(run.model).string());
  if (run.adapter) {
    spec.mutable_model()->mutable_adapter()->set_path(absolute_path(*run.adapter).string());
  }
  const std::string definition = evaluation::read_task_definition(run.task);
  const std::string style(definition.empty() ? name(prompt_style(run)) : evaluation::kFileStyle);
  if (!definition.empty() && run.prompt != "auto")
    throw UsageError(fmt::format("--prompt-style {} with --task {}: a task file writes its prompts itself",
                                 run.prompt, run.task));
  const auto task = evaluation::make_task({run.task, style, definition});
  const LearningData data = set_task(run, *task, spec.mutable_task());
  spec.mutable_task()->set_prompt_style(evaluation::identity_of(*task, style).prompt_style);
  set_generation(resolve(run.generation, *task), spec.mutable_generation());

  *spec.mutable_attention() = worker::attention_spec(run.attention);

  *spec.mutable_policy() = aggregator::policy_spec(policy_config(run.policy));
  if (!run.policy.start.empty()) {
    spec.mutable_policy()->set_start(start_of(run.policy.start, spec).to_string());
  }
  spec.set_seed(static_cast<uint32_t>(run.seed));
  set_reward(run, data, &spec);
  spec.set_questions_per_episode(static_cast<uint32_t>(run.questions));
  spec.set_divergence_questions(static_cast<uint32_t>(run.divergence_questions.value_or(0)));
  spec.set_until_settled(run.until == "settled");
  spec.set_most_episodes(run.until == "settled" ? run.most_episodes : 0);
  spec.set_preflight_questions(static_cast<uint32_t>(run.preflight));
  spec.set_ignore_preflight(run.ignore_preflight);
  spec.set_gain_floor(run.gain_floor / 100);
  spec.set_price_per_hour(run.price_per_hour);
  spec.set_cross_check(run.cross_check);
  spec.set_lease_ms(run.lease_seconds * 1000);
  spec.set_max_attempts(run.max_attempts);
  aggregator::validate(spec);
  return spec;
}

void resolve(const wire::RunSpec& spec, RunOptions* run) {
  if (!spec.task().has_definition()) run->prompt = spec.task().prompt_style();
  run->heldout_questions = static_cast<int32_t>(spec.task().heldout_questions());
  run->reward = spec.divergence_episodes() > 0 ? kMixed : row_of(parse_reward_kind(spec.reward_kind())).name;
  run->episodes = spec.episodes();
  if (spec.divergence_episodes() > 0) run->divergence_episodes = spec.divergence_episodes();
  run->generation = options_of(worker::conditions_of(spec).generation);
}

}  // namespace allot::app
