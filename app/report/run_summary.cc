#include "app/report/run_summary.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "aggregator/run_spec.h"
#include "aggregator/wire_conversion.h"
#include "base/error.h"
#include "base/proportion.h"
#include "evaluation/accuracy.h"
#include "worker/spec_conditions.h"
#include "worker/spec_method.h"

namespace allot::app {
namespace {

void check_score(const aggregator::ScoreRow& score) {
  if (score.questions.size() != score.scores.size()) {
    throw CorruptFile(
        fmt::format("history: score '{}' has {} questions and {} results; expected one result per question",
                    score.label, score.questions.size(), score.scores.size()));
  }
  for (size_t i = 1; i < score.questions.size(); ++i) {
    if (score.questions[i - 1] < score.questions[i]) continue;
    throw CorruptFile(fmt::format(
        "history: score '{}' has question {} after question {}; expected each once, in rising order",
        score.label, score.questions[i], score.questions[i - 1]));
  }
}

std::optional<evaluation::Accuracy> accuracy(const aggregator::ScoreRow* score) {
  if (score == nullptr || score->questions.empty()) return std::nullopt;
  check_score(*score);
  return evaluation::accuracy_of(score->scores);
}

// A test needs both schedules scored on the same questions; while a verification runs this may not be the
// case.
std::optional<evaluation::PairedTest> paired(const aggregator::ScoreRow* learned,
                                             const aggregator::ScoreRow* uniform) {
  if (learned == nullptr || uniform == nullptr || learned->questions.empty()) return std::nullopt;
  if (learned->questions != uniform->questions) return std::nullopt;
  return evaluation::compare_scores(learned->scores, uniform->scores);
}

// The shares with which the learner describes itself, where it holds such.
policy::LayerCosts shares_of_policy(const aggregator::RunData& run) {
  const policy::Schedule schedule{run.recommended};
  const int32_t floor = run.spec.policy().floor();
  if (!run.versions.empty()) {
    const policy::Description& described = run.versions.back().described;
    if (described.layer_name == "share" && described.per_layer.size() == schedule.samples.size()) {
      policy::LayerCosts costs;
      costs.shares = described.per_layer;
      return policy::anchored(std::move(costs), schedule, floor);
    }
  }
  return policy::shares_of(schedule, floor);
}

}  // namespace

MovingMean moving_mean(std::span<const aggregator::LearnedEpisode> episodes, RewardKind kind) {
  const RewardKindRow& row = row_of(kind);
  const auto window = episodes.last(std::min<size_t>(episodes.size(), kRewardWindow));
  double sum = 0;
  for (const auto& episode : window) sum += episode.reward;
  const double mean = sum / static_cast<double>(window.size());
  double squares = 0;
  for (const auto& episode : window) squares += (episode.reward - mean) * (episode.reward - mean);
  const auto [low, high] = mean_bounds(mean, squares, std::ssize(window));
  return {mean, row.clamp(low), row.clamp(high)};
}

EvaluationRecord evaluate(const aggregator::RunData& run) {
  const aggregator::ScoreRow* learned = find_score(run, "learned");
  const aggregator::ScoreRow* uniform = find_score(run, "uniform");
  EvaluationRecord evaluation;
  evaluation.uniform = accuracy(uniform);
  evaluation.learned = accuracy(learned);
  evaluation.dense = accuracy(find_score(run, "dense"));
  evaluation.paired = paired(learned, uniform);
  return evaluation;
}

bool stopped_by_preflight(const aggregator::RunData& run) {
  return run.preflight && !run.preflight->stop_reason().empty() && !run.preflight->ignored();
}

std::string action_name(const wire::ControlEvent& event) {
  return aggregator::action_word(event.action());
}

std::string control_text(const wire::ControlEvent& event) {
  switch (event.action()) {
    case wire::Control::ACTION_STOP:
      return fmt::format("stop after {} episodes", event.episodes());
    case wire::Control::ACTION_EPISODES:
      return fmt::format("{} episodes", event.episodes());
    case wire::Control::ACTION_TARGET:
      return fmt::format("stop at a mean reward of {}", event.reward());
    case wire::Control::ACTION_BOUNDS:
      return event.bounds().empty() ? "no bounds but the floor" : fmt::format("bounds {}", event.bounds());
    case wire::Control::ACTION_LEASE_SECONDS:
      return fmt::format("leases of {} s", event.lease_seconds());
    case wire::Control::ACTION_MAX_ATTEMPTS:
      return fmt::format("{} attempts at an episode", event.max_attempts());
    case wire::Control::ACTION_HELDOUT_QUESTIONS:
      return fmt::format("{} held-out questions", event.heldout_questions());
    case wire::Control::ACTION_CORDON:
    case wire::Control::ACTION_UNCORDON:
      return fmt::format("{} {}", action_name(event), event.worker());
    default:
      return action_name(event);
  }
}

std::string cross_check_text(const wire::CrossCheck& checks) {
  if (checks.questions() == 0) return "no question has been graded by two holders yet";
  constexpr int kShown = 3;
  std::string text = fmt::format("{} questions graded by two holders, {} differ", checks.questions(),
                                 checks.disagreements());
  for (int i = 0; i < std::min(kShown, checks.holders_size()) && checks.disagreements() > 0; ++i) {
    const wire::CheckedHolder& row = checks.holders(i);
    text += fmt::format("{}{} {} of {}", i == 0 ? ": " : ", ", row.holder(), row.disagreements(),
                        row.questions());
  }
  return text;
}

std::string context_text(int64_t keys) {
  return keys % 1024 == 0 ? fmt::format("{}k", keys / 1024) : std::to_string(keys);
}

std::string utc_text(Timestamp at) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(at.time_since_epoch().count() / 1000));
}

ScheduleFile schedule_file_of(const aggregator::RunData& run, const std::string& tool_version) {
  const wire::RunSpec& spec = run.spec;
  ScheduleFile file;
  file.conditions = worker::conditions_of(spec);
  file.schedule.samples = run.recommended;
  file.total = spec.policy().total();
  file.floor = spec.policy().floor();
  file.evaluation = evaluate(run);
  const RewardKindRow& kind = row_of(run.kind);
  if (!kind.generates || spec.divergence_episodes() > 0) {
    const bool exact_prompt = file.conditions.attention.prefill == kernels::Prefill::kDense;
    file.calibration =
        CalibrationRecord{.reward = spec.divergence_episodes() > 0 ? "mixed" : std::string(kind.name),
                          .mode = exact_prompt ? "decode" : "reply",
                          .check = {}};
  }
  file.run_id = spec.run_id();
  file.start = aggregator::policy_config(spec).start;
  file.policy_version = run.policy_version;
  file.costs = shares_of_policy(run);
  file.tool_version = tool_version;
  return file;
}

kernels::BudgetUnit unit_of(const wire::RunSpec& spec) {
  return worker::attention_method(spec.attention()).unit;
}

std::string total_text(const wire::RunSpec& spec) {
  const wire::ModelIdentity& model = spec.model();
  return kernels::budget_text(unit_of(spec), spec.policy().total(),
                              model.num_q_heads() / std::max(1, model.num_kv_heads()));
}

}  // namespace allot::app
