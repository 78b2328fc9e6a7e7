#include "app/report/learning_runs.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "aggregator/run_data.h"
#include "aggregator/run_spec.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"
#include "evaluation/json_fields.h"
#include "policy/learner.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using evaluation::Accuracy;
using Json = nlohmann::ordered_json;

// Questions of an episode that a learner's name does not say.
constexpr uint32_t kUsualQuestions = 16;

// What a run's episodes measure, where that is not what its learner asks for by itself; else empty.
std::string unusual_reward(const wire::RunSpec& spec, const policy::Learner* learner) {
  const bool mixed = spec.divergence_episodes() > 0;
  const RewardKind kind = parse_reward_kind(spec.reward_kind());
  const std::string measured = mixed ? "mixed" : std::string(row_of(kind).name);
  const bool wants_divergences = learner != nullptr && learner->divergences != nullptr;
  return measured == (wants_divergences ? "mixed" : row_of(RewardKind::kAnswers).name) ? "" : measured;
}

std::string learner_of(const wire::RunSpec& spec) {
  const policy::PolicyConfig config = aggregator::policy_config(spec);
  const policy::Learner* learner = policy::find_learner(config.name);
  std::string text = config.name;
  if (learner != nullptr) {
    for (const policy::Parameter& declared : learner->parameters)
      if (const double value = policy::parameter(config, declared.name); value != declared.initial)
        text += fmt::format(" {}={}", policy::option_name(declared), value);
  }
  const auto add = [&](const std::string& part) {
    if (!part.empty()) text += ", " + part;
  };
  add(unusual_reward(spec, learner));
  if (spec.questions_per_episode() != kUsualQuestions)
    add(fmt::format("{} questions", spec.questions_per_episode()));
  if (spec.divergence_questions() > 0) add(fmt::format("{} a divergence", spec.divergence_questions()));
  if (!config.bounds.empty()) add("bounds " + config.bounds.to_string());
  if (!config.start.samples.empty()) add("from a start");
  return text;
}

// A schedule of learning.json and how it did.
struct Scored {
  std::vector<int32_t> samples;
  Accuracy accuracy;
};

Scored read_scored(const Json& object, size_t number, std::vector<std::string>* faults) {
  // What else eval prints of a schedule is not needed here.
  Json part = Json::object();
  for (const char* field : {"samples", "n", "correct", "accuracy", "interval_95"})
    if (object.is_object() && object.contains(field)) part[field] = object[field];
  evaluation::JsonFields fields(part, fmt::format("schedules[{}]", number), faults);
  Scored scored{.samples = fields.samples("samples", 0), .accuracy = evaluation::read_accuracy(fields)};
  return scored;
}

// Gives the points of the run the accuracies of its learning.json, where it has one.
void add_accuracies(LearningRun* run) {
  const std::filesystem::path file = run->directory / kLearningFile;
  if (!std::filesystem::exists(file)) return;
  const std::string place = file.string();
  const Json json = Json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("schedules") || !json["schedules"].is_array() ||
      !json.contains("conditions"))
    throw CorruptFile(place + ": expected what allot eval --json prints, with conditions and schedules");
  std::vector<std::string> faults;
  const evaluation::Conditions conditions =
      evaluation::read_conditions(json["conditions"], "conditions", &faults);
  std::vector<Scored> scored;
  for (size_t i = 0; i < json["schedules"].size(); ++i) {
    const Json& schedule = json["schedules"][i];
    const bool dense = schedule.is_object() && schedule.contains("samples") && schedule["samples"].is_null();
    if (!dense) scored.push_back(read_scored(schedule, i, &faults));
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", place, fmt::join(faults, "; ")));
  if (const auto differences = evaluation::decisive_differences(conditions, run->conditions);
      !differences.empty())
    throw Mismatch(fmt::format(
        "{} was measured under other conditions than the run (there against run): {}; remove the file, or "
        "evaluate the schedules again under those of the run",
        place, evaluation::describe(differences)));
  // How many questions, and the draws, are those of the file.
  run->conditions.measured_on = conditions.measured_on;
  run->conditions.seed = conditions.seed;
  for (LearningPoint& point : run->points)
    for (const Scored& one : scored)
      if (one.samples == point.recommended.samples) point.accuracy = one.accuracy;
}

// A learning episode.
struct Told {
  std::string worker;
  Timestamp finished;
  double seconds;
  int64_t version;  // of the policy when it was told
};

// Workers run several episodes at a time.
double busy_seconds(std::span<const Told> episodes) {
  using Seconds = std::chrono::duration<double>;
  std::map<std::string_view, std::vector<std::pair<double, double>>> of_workers;  // from, to
  for (const Told& one : episodes) {
    const double to = Seconds(one.finished - episodes.front().finished).count();
    of_workers[one.worker].emplace_back(to - one.seconds, to);
  }
  double busy = 0;
  for (auto& [worker, spans] : of_workers) {
    std::ranges::sort(spans);
    double until = spans.front().first;
    for (const auto& [from, to] : spans) {
      busy += std::max(0.0, to - std::max(from, until));
      until = std::max(until, to);
    }
  }
  return busy;
}

// The points of a run, without accuracies.
std::vector<LearningPoint> points_of(const std::filesystem::path& directory,
                                     std::span<const int64_t> checkpoints) {
  std::vector<Told> episodes;
  aggregator::RunFollower follower(directory);
  follower.new_episodes([&](const aggregator::EpisodeRow& row) {
    if (row.stage == "learn") episodes.push_back({row.worker, row.finished, row.seconds, row.told_version});
  });
  const auto end = std::ssize(episodes);
  std::set<int64_t> at = {0, end};
  for (const int64_t checkpoint : checkpoints)
    if (checkpoint < end) at.insert(checkpoint);

  std::vector<LearningPoint> points;
  std::map<int64_t, std::vector<size_t>> of_version;  // the points that a version stands for
  for (const int64_t wanted : at) {
    // What the policy was when the next episode came; at the end its last version.
    const int64_t version =
        wanted == end ? std::numeric_limits<int64_t>::max() : episodes[static_cast<size_t>(wanted)].version;
    of_version[version].push_back(points.size());
    points.push_back({.episodes = wanted,
                      .worker_seconds = busy_seconds(std::span(episodes).first(static_cast<size_t>(wanted))),
                      .recommended = {}});
  }
  follower.new_versions([&](const aggregator::VersionRow& row) {
    const auto put = [&](int64_t version) {
      const auto found = of_version.find(version);
      if (found == of_version.end()) return;
      for (const size_t point : found->second) points[point].recommended.samples = row.recommended;
    };
    put(row.version);
    put(std::numeric_limits<int64_t>::max());  // the last one stays
  });
  return points;
}

double verified_gain(const EvaluationRecord& evaluation) {
  return evaluation.learned->value - evaluation.uniform->value;
}

template <class Value>
Spread spread_over(const std::vector<LearningRun>& runs, Value value) {
  std::vector<double> values;
  for (const LearningRun& run : runs) values.push_back(value(run));
  return spread_of(values);
}

std::vector<CurvePoint> curve_of(const std::vector<LearningRun>& runs) {
  std::set<int64_t> at;
  int64_t longest = 0;
  for (const LearningRun& run : runs) {
    for (const LearningPoint& point : run.points)
      if (&point != &run.points.back()) at.insert(point.episodes);
    longest = std::max(longest, run.points.back().episodes);
  }
  at.insert(longest);
  std::vector<CurvePoint> curve;
  for (const int64_t episodes : at) {
    if (!std::ranges::all_of(runs,
                             [&](const LearningRun& run) { return run.at(episodes).accuracy.has_value(); }))
      return {};
    curve.push_back(
        {.episodes = episodes,
         .worker_seconds =
             spread_over(runs, [&](const LearningRun& run) { return run.at(episodes).worker_seconds; }).mean,
         .accuracy =
             spread_over(runs, [&](const LearningRun& run) { return run.at(episodes).accuracy->value; })});
  }
  return curve;
}

// The place of the first run of each name.
template <class Key>
size_t place_of(std::vector<Key>* known, const Key& key) {
  const auto found = std::ranges::find(*known, key);
  if (found != known->end()) return static_cast<size_t>(found - known->begin());
  known->push_back(key);
  return known->size() - 1;
}

void check_comparable(const LearningRun& first, const LearningRun& other) {
  std::vector<evaluation::Difference> differences;
  for (evaluation::Difference& one : evaluation::decisive_differences(first.conditions, other.conditions))
    if (!one.field.starts_with("attention.")) differences.push_back(std::move(one));
  if (!differences.empty())
    throw Mismatch(fmt::format("{} and {} are no runs to compare: {}; name the runs of one model and task",
                               first.directory.string(), other.directory.string(),
                               evaluation::describe(differences)));
}

bool has_curve(const LearningRun& run) {
  return run.points.back().accuracy.has_value();
}

void check_same_questions(const LearningRun& first, const LearningRun& other) {
  const int64_t questions = first.conditions.measured_on->questions;
  const int64_t others = other.conditions.measured_on->questions;
  if (questions == others && first.conditions.seed == other.conditions.seed) return;
  throw Mismatch(fmt::format(
      "{} was measured on {} questions with seed {} in {} and on {} with seed {} in {}; evaluate both on the "
      "same questions with the same draws",
      kLearningFile, questions, first.conditions.seed, first.directory.string(), others,
      other.conditions.seed, other.directory.string()));
}

Json spread_json(const Spread& spread) {
  return {{"mean", spread.mean},
          {"standard_deviation", spread.deviation ? Json(*spread.deviation) : Json()},
          {"low", spread.low},
          {"high", spread.high}};
}

Json accuracy_json(const std::optional<Accuracy>& accuracy) {
  return accuracy ? evaluation::to_json(*accuracy) : Json();
}

Json run_json(const LearningRun& run) {
  Json points = Json::array();
  for (const LearningPoint& point : run.points)
    points.push_back({{"episodes", point.episodes},
                      {"worker_seconds", point.worker_seconds},
                      {"samples", evaluation::samples_json(point.recommended.samples)},
                      {"accuracy", accuracy_json(point.accuracy)}});
  const std::optional<evaluation::PairedTest>& paired = run.evaluation.paired;
  return {{"directory", run.directory.string()},
          {"seed", run.seed},
          {"even", accuracy_json(run.evaluation.uniform)},
          {"learned", accuracy_json(run.evaluation.learned)},
          {"dense", accuracy_json(run.evaluation.dense)},
          {"paired", paired ? evaluation::to_json(*paired, "learned", "uniform") : Json()},
          {"points", std::move(points)}};
}

}  // namespace

const LearningPoint& LearningRun::at(int64_t episodes) const {
  const LearningPoint* found = &points.front();
  for (const LearningPoint& point : points)
    if (point.episodes <= episodes) found = &point;
  return *found;
}

std::optional<LearningRun> read_learning_run(const std::filesystem::path& directory,
                                             std::span<const int64_t> checkpoints, std::string* why) {
  const aggregator::RunData data = aggregator::read_run(directory);
  if (data.stage != "finished") {
    *why = fmt::format("it is in stage {}", data.stage);
    return std::nullopt;
  }
  if (stopped_by_preflight(data)) {
    *why = "its preflight ended it: " + data.preflight->stop_reason();
    return std::nullopt;
  }
  LearningRun run{.directory = directory,
                  .learner = learner_of(data.spec),
                  .conditions = worker::conditions_of(data.spec),
                  .total = data.spec.policy().total(),
                  .seed = data.spec.seed(),
                  .evaluation = evaluate(data),
                  .points = {}};
  if (!run.evaluation.uniform || !run.evaluation.learned) {
    *why = "it was not verified (--heldout-questions 0)";
    return std::nullopt;
  }
  run.points = points_of(directory, checkpoints);
  add_accuracies(&run);
  return run;
}

Spread spread_of(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  Spread spread{.mean = std::accumulate(values.begin(), values.end(), 0.0) / count,
                .low = *std::ranges::min_element(values),
                .high = *std::ranges::max_element(values)};
  if (values.size() < 2) return spread;
  double squares = 0;
  for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = std::sqrt(squares / (count - 1));
  return spread;
}

std::vector<LearningGroup> learning_groups(std::vector<LearningRun> runs) {
  std::vector<std::string> estimators, learners;
  std::map<std::tuple<size_t, int64_t, size_t>, LearningGroup> ordered;
  const LearningRun* measured = nullptr;  // the first with a learning.json
  for (const LearningRun& run : runs) {
    check_comparable(runs.front(), run);
    if (!has_curve(run)) continue;
    if (measured == nullptr) measured = &run;
    check_same_questions(*measured, run);
  }
  for (LearningRun& run : runs) {
    const std::string estimator = kernels::describe(run.conditions.attention);
    LearningGroup& group =
        ordered[{place_of(&estimators, estimator), run.total, place_of(&learners, run.learner)}];
    group.learner = run.learner;
    group.estimator = estimator;
    group.total = run.total;
    for (const LearningRun& other : group.runs)
      if (other.seed == run.seed)
        throw Mismatch(fmt::format("{} and {} are both of {} at {} with seed {}; name each run once",
                                   other.directory.string(), run.directory.string(), run.learner, run.total,
                                   run.seed));
    group.runs.push_back(std::move(run));
  }
  std::vector<LearningGroup> groups;
  for (auto& [place, group] : ordered) {
    std::vector<LearningRun>& of = group.runs;
    std::ranges::sort(of, {}, &LearningRun::seed);
    group.even = spread_over(of, [](const LearningRun& run) { return run.evaluation.uniform->value; });
    group.learned = spread_over(of, [](const LearningRun& run) { return run.evaluation.learned->value; });
    group.gain = spread_over(of, [](const LearningRun& run) { return verified_gain(run.evaluation); });
    if (std::ranges::all_of(of, [](const LearningRun& run) { return run.evaluation.dense.has_value(); }))
      group.dense = spread_over(of, [](const LearningRun& run) { return run.evaluation.dense->value; });
    group.episodes = spread_over(
        of, [](const LearningRun& run) { return static_cast<double>(run.points.back().episodes); });
    group.worker_seconds =
        spread_over(of, [](const LearningRun& run) { return run.points.back().worker_seconds; });
    group.curve = curve_of(of);
    groups.push_back(std::move(group));
  }
  return groups;
}

Json to_json(const LearningGroup& group) {
  Json curve = Json::array(), runs = Json::array();
  for (const CurvePoint& point : group.curve)
    curve.push_back({{"episodes", point.episodes},
                     {"worker_seconds", point.worker_seconds},
                     {"accuracy", spread_json(point.accuracy)}});
  for (const LearningRun& run : group.runs) runs.push_back(run_json(run));
  return {{"learner", group.learner},
          {"estimator", group.estimator},
          {"total", group.total},
          {"even", spread_json(group.even)},
          {"learned", spread_json(group.learned)},
          {"gain", spread_json(group.gain)},
          {"dense", group.dense ? spread_json(*group.dense) : Json()},
          {"episodes", spread_json(group.episodes)},
          {"worker_seconds", spread_json(group.worker_seconds)},
          {"curve", std::move(curve)},
          {"runs", std::move(runs)},
          {"conditions", evaluation::to_json(group.runs.front().conditions)}};
}

}  // namespace allot::app
