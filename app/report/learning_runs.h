// What finished runs learned, side by side: verified accuracies by learner, estimator and total with their
// spread over seeds, and how good the recommended schedule was on the way. The numbers of `allot analyze
// learning`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/files/schedule_file.h"
#include "evaluation/conditions.h"

namespace allot::app {

// File of a run directory that holds what `allot eval --json` printed of schedules that the run recommended
// on its way, all on the same questions with the same draws.
inline constexpr const char* kLearningFile = "learning.json";

// What a run recommended after so many learning episodes.
struct LearningPoint {
  int64_t episodes = 0;
  // That workers were busy with these: a second of a worker counts once, however many it ran at a time.
  double worker_seconds = 0;
  policy::Schedule recommended;
  std::optional<evaluation::Accuracy> accuracy = {};  // by the run's learning.json
  friend bool operator==(const LearningPoint&, const LearningPoint&) = default;
};

struct LearningRun {
  std::filesystem::path directory;
  // "auto", "pairs gain=20", "auto, answers": with parameters, questions of an episode and rewards that are
  // not the usual ones, and with start and bounds where it has such.
  std::string learner;
  evaluation::Conditions conditions;
  int64_t total = 0;
  uint32_t seed = 0;            // of the run; conditions have that of learning.json, where there is one
  EvaluationRecord evaluation;  // on the held-out questions, at its end
  // Rising: before the first episode, at each of the checkpoints before the end, and at the end.
  std::vector<LearningPoint> points;

  // What it recommended after `episodes`: of a run that ended before, its last.
  const LearningPoint& at(int64_t episodes) const;
};

// Reads a run directory. Nothing for a run that has not finished, and for one that ended in its preflight or
// without a verification; `why` then says so. Throws NotFound and CorruptFile as the readers do, and Mismatch
// where learning.json was measured under other conditions than the run.
std::optional<LearningRun> read_learning_run(const std::filesystem::path& directory,
                                             std::span<const int64_t> checkpoints, std::string* why);

// Mean over seeds with its spread.
struct Spread {
  double mean = 0;
  std::optional<double> deviation = {};  // standard deviation; nothing of one run
  double low = 0;                        // the least and the most of the runs
  double high = 0;
  friend bool operator==(const Spread&, const Spread&) = default;
};
Spread spread_of(std::span<const double> values);  // at least one

// Of the runs of a group after so many episodes; a run that ended before counts with what it ended with.
struct CurvePoint {
  int64_t episodes = 0;
  double worker_seconds = 0;  // mean over the runs
  Spread accuracy;
};

// Runs that differ in their seeds alone.
struct LearningGroup {
  std::string learner;
  std::string estimator;
  int64_t total = 0;
  std::vector<LearningRun> runs;  // by their seeds
  Spread even, learned, gain;     // verified, as shares; gain is learned less even
  std::optional<Spread> dense;
  Spread episodes, worker_seconds;  // learned from, until the end
  // At the checkpoints that some run of the group reached and at the end of the longest. Empty where a run
  // has no learning.json, or one that lacks a schedule.
  std::vector<CurvePoint> curve;
};

// Ordered by estimator, total and learner, each as the runs first name it. Throws Mismatch, naming both
// directories and the differences, for runs of other models, tasks or data, for learning.json files of other
// questions or draws, and where two runs of a group have one seed.
std::vector<LearningGroup> learning_groups(std::vector<LearningRun> runs);

// {"learner", "estimator", "total", "even", "learned", "gain", "dense", "episodes", "worker_seconds":
// {"mean", "standard_deviation", "low", "high"}, "curve": [{"episodes", "worker_seconds", "accuracy"}],
// "runs":
// [{"directory", "seed", "even", "learned", "dense", "paired", "points": [{"episodes", "worker_seconds",
// "samples", "accuracy"}]}], "conditions" of the first run}; null for what there is not.
nlohmann::ordered_json to_json(const LearningGroup& group);

}  // namespace allot::app
