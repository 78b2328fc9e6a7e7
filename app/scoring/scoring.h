// Scores the schedules of a plan with a model in this process.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "app/scoring/scoring_plan.h"
#include "evaluation/accuracy.h"
#include "worker/schedule_score.h"

namespace allot::app {

// How a schedule did.
struct Score {
  NamedSchedule schedule;
  worker::ScheduleScore answers;
};

struct Scores {
  std::vector<Score> schedules;  // in the order of the plan
  double seconds = 0;            // without loading the model
};

// Loads the model and scores, showing progress on stderr. Writes the details file when one is wanted. Throws
// what loading the model throws, and Error when asked to stop.
Scores score(const ScoringPlan& plan);

// The accuracy as evaluation::to_json has it, the schedule and what its answers took.
nlohmann::ordered_json score_json(const Score& score);

// "+57.1 points (+50.2 to +63.9), p = 1.2e-20 (121 questions right only here, 7 there)".
std::string format_test(const evaluation::PairedTest& test);

}  // namespace allot::app
