// The conditions under which replies were scored: everything that a number depends on besides the schedule
// itself. A run's spec, schedule.json, ablation.json, the output of eval and verify, the report and the
// exports all use this one type, so that comparing conditions shows whether two numbers may be compared.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/data_rows.h"
#include "evaluation/generation.h"
#include "kernels/method.h"
#include "model/model_config.h"

namespace allot::evaluation {

struct TaskIdentity {
  std::string name;  // "gsm8k"
  int32_t version = 1;
  std::string prompt_style;  // of prompt_style_names(), kFileStyle or kFileMessageStyle
  // Of the task file's text, for a task from a file: any change of it is another task.
  std::optional<std::string> definition_sha256 = {};
  friend bool operator==(const TaskIdentity&, const TaskIdentity&) = default;
};

class Task;
// The identity of `task` with prompts of this style.
TaskIdentity identity_of(const Task& task, std::string_view prompt_style);

// The first `questions` of a data file.
struct DataUse {
  std::string sha256;
  int64_t questions = 0;
  FieldNames fields = {};  // of the file's rows
  friend bool operator==(const DataUse&, const DataUse&) = default;
};

struct Conditions {
  model::ModelIdentity model;
  TaskIdentity task;
  std::optional<DataUse> learned_on;   // absent where nothing was learned
  std::optional<DataUse> measured_on;  // absent where nothing was measured
  kernels::AttentionMethod attention;
  Generation generation;
  uint32_t seed = 0;
  // Fields that are missing in an older file, for example "generation.temperature"; their values
  // above mean nothing.
  std::set<std::string> unknown;
};
// Equal when the same fields are unknown and all others are equal.
bool operator==(const Conditions& first, const Conditions& second);

// The one JSON form; docs/schedule-format.md ("conditions") lists its fields. Fields that are not
// known are null.
nlohmann::ordered_json to_json(const Conditions& conditions);

// The same with the fields that it leaves out where they have their usual value: attention.unit, the
// estimator's own parameters, and the fields of the data's rows.
nlohmann::ordered_json full_json(const Conditions& conditions);

// The inverse of to_json. `path` names the object in messages ("conditions"). Adds everything that is wrong
// to `faults`, each with the name of its field; when there is any fault the conditions must not be used.
Conditions read_conditions(const nlohmann::ordered_json& json, const std::string& path,
                           std::vector<std::string>* faults);

// The JSON of entirely unknown conditions, as to_json writes them for an older file: every field is null and
// the data are absent.
nlohmann::ordered_json unknown_conditions();

// A field of the conditions, "attention.tile", and its value as JSON text on both sides.
struct Difference {
  std::string field;
  std::string first;
  std::string second;
  friend bool operator==(const Difference&, const Difference&) = default;
};

// Every field in which the two differ, in the order of the JSON form; an adapter on one side alone comes
// first, as "model.adapter". A field that is unknown or absent on one side (nothing was learned) is not a
// difference.
std::vector<Difference> differences(const Conditions& first, const Conditions& second);

// Whether numbers that differ in `field` measure different things. The seed, how many questions were asked,
// what was learned on and the names of model and adapter do not count.
bool decides_results(std::string_view field);
// The differences for which that is true.
std::vector<Difference> decisive_differences(const Conditions& first, const Conditions& second);

// "attention.tile 256 against 128; generation.top_p 1 against 0.95".
std::string describe(const std::vector<Difference>& differences);

// "gsm8k version 1, plain prompts; sys, prefill sampled, scores exact; bfloat16, greedy, at most 256 new
// tokens; seed 1", and the adapter's name where there is one. Unknown parts are named as not known.
std::string describe(const Conditions& conditions);

}  // namespace allot::evaluation
