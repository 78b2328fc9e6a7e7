// Scores the schedules of a plan with a model in this process.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "app/scoring/scoring_plan.h"
#include "evaluation/accuracy.h"
#include "model/engine.h"
#include "worker/schedule_score.h"

namespace allot::app {

// How a schedule did.
struct Score {
  NamedSchedule schedule;
  worker::ScheduleScore answers;
  std::vector<std::string> replies = {};  // a question each; empty unless the plan keeps them
};

// Scores schedules one after another with a model that it loads once.
class Scorer {
 public:
  // Loads the model, with `options` that begin as engine_options() of the plan. `plan` outlives the scorer;
  // its schedules are not looked at. Throws what loading the model throws.
  Scorer(const ScoringPlan& plan, const model::EngineOptions& options);
  ~Scorer();
  Scorer(const Scorer&) = delete;
  Scorer& operator=(const Scorer&) = delete;

  // Each on the questions of the plan with the same draws, in this call and in all others, with progress on
  // stderr. Throws Error when asked to stop.
  std::vector<Score> score(std::span<const NamedSchedule> schedules);
  // The lines of the details file, by schedule in the order of scoring and by question.
  std::string details() const;
  // Idle between calls of score().
  model::Engine& engine();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct Scores {
  std::vector<Score> schedules;  // in the order of the plan
  double seconds = 0;            // without loading the model
};

// What to score next with the same model, having seen what was scored so far; nothing to end.
using NextSchedules = std::function<std::vector<NamedSchedule>(std::span<const Score> so_far)>;

// Loads the model and scores, showing progress on stderr. Writes the details file when one is wanted. Throws
// what loading the model throws, and Error when asked to stop.
Scores score(const ScoringPlan& plan, const NextSchedules& next = {});

// The accuracy as evaluation::to_json has it, the schedule and what its answers took.
nlohmann::ordered_json score_json(const Score& score);

// "+57.1 points (+50.2 to +63.9), p = 1.2e-20 (121 questions right only here, 7 there)".
std::string format_test(const evaluation::PairedTest& test);

}  // namespace allot::app
