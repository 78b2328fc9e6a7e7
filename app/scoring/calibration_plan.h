// What `allot calibrate` is about to do: texts as token ids, totals and the size of the search, perhaps the
// questions on which totals are verified. Made from its options without loading the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/files/schedule_file.h"
#include "app/scoring/fidelity_plan.h"
#include "app/scoring/scoring_plan.h"
#include "evaluation/accuracy_loss.h"
#include "evaluation/calibration.h"

namespace allot::app {

struct CalibrationPlanOptions {
  // estimators, samples and schedules are not looked at; `mode` starts at "reply".
  FidelityPlanOptions texts;
  std::string totals;            // numbers, or "auto"
  std::optional<double> margin;  // of "auto", nats
  // Of "auto" by answers in place of divergences.
  std::optional<double> accuracy_margin;     // points
  std::filesystem::path heldout;             // questions
  std::optional<int64_t> heldout_questions;  // the first of them; nothing = all
  std::optional<int32_t> max_new_tokens;     // of a reply; nothing: as the task says
  GraderOption grading;
  std::string bounds;  // LAYERS:RANGE,… (policy/bounds.h); empty: the floor alone
  evaluation::CalibrationOptions search;
  std::filesystem::path out = "calibration";
  std::filesystem::path measurements;  // file of everything measured; empty: not kept
};

// Declares the options above; --model and --total are required.
void declare_calibration_options(OptionSet* set, CalibrationPlanOptions* options);

// Totals are verified by greedy answers to held-out questions, beside dense attention.
struct AccuracyPlan {
  double margin = 0;    // of accuracy, 0.01 is a point
  ScoringPlan scoring;  // of dense attention; the schedules come while the totals are measured
};

struct CalibrationPlan {
  FidelityPlan texts;            // without cases
  std::vector<int64_t> totals;   // empty: the least one within one of the two margins is looked for
  std::optional<double> margin;  // nats
  std::optional<AccuracyPlan> accuracy;
  evaluation::CalibrationOptions search;
  std::filesystem::path out;
  std::filesystem::path measurements;
};

// Reads the model's identity and tokenizer, the texts and the questions, and sets the options that have no
// value yet; `set` is where they were declared. Throws the errors of the readers and UsageError for options
// that do not fit each other or the model, for held-out questions that are among the texts, and for a margin
// that so few questions cannot tell of.
CalibrationPlan plan_calibration(CalibrationPlanOptions* options, OptionSet* set);

// A line on what the numbers rest on.
std::string describe(const CalibrationPlan& plan);

// Of a total of the plan, as it is written to `out`; with `loss` where it was verified.
ScheduleFile schedule_file(const CalibrationPlan& plan, const evaluation::Calibration& calibration,
                           const std::optional<evaluation::AccuracyLoss>& loss = {});

}  // namespace allot::app
