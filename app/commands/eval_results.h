// What allot eval prints: accuracies by task and schedule, for people and as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "app/scoring/scoring.h"

namespace allot::app {

struct Evaluated {
  const ScoringPlan* plan = nullptr;  // with a name where it is one of several tasks
  Scores scores;
  std::string again;  // the command that gives the result of this task
};

// One table of all tasks and schedules, and what else is known of each.
std::string eval_table(std::span<const Evaluated> tasks);
// The result of one task.
nlohmann::ordered_json eval_json(const Evaluated& task);
// Those of several, with what they have together. `suite` names the tasks' file.
nlohmann::ordered_json eval_json(std::span<const Evaluated> tasks, const std::string& suite);

}  // namespace allot::app
