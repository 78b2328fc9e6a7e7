// What `allot calibrate` is about to do: texts as token ids, totals and the size of the search. Made from its
// options without loading the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/files/schedule_file.h"
#include "app/scoring/fidelity_plan.h"
#include "evaluation/calibration.h"

namespace allot::app {

struct CalibrationPlanOptions {
  // estimators, samples and schedules are not looked at; `mode` starts at "reply".
  FidelityPlanOptions texts;
  std::string totals;            // numbers, or "auto"
  std::optional<double> margin;  // of "auto", nats
  evaluation::CalibrationOptions search;
  std::filesystem::path out = "calibration";
  std::filesystem::path measurements;  // file of everything measured; empty: not kept
};

// Declares the options above; --model and --total are required.
void declare_calibration_options(OptionSet* set, CalibrationPlanOptions* options);

struct CalibrationPlan {
  FidelityPlan texts;            // without cases
  std::vector<int64_t> totals;   // empty: the least one within the margin is looked for
  std::optional<double> margin;  // nats
  evaluation::CalibrationOptions search;
  std::filesystem::path out;
  std::filesystem::path measurements;
};

// Reads the model's identity and tokenizer and the texts, and sets the options that have no value yet. Throws
// the errors of the readers and UsageError for options that do not fit each other or the model.
CalibrationPlan plan_calibration(CalibrationPlanOptions* options);

// A line on what the numbers rest on.
std::string describe(const CalibrationPlan& plan);

// Of a total of the plan, as it is written to `out`.
ScheduleFile schedule_file(const CalibrationPlan& plan, const evaluation::Calibration& calibration);

}  // namespace allot::app
