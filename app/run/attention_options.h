// The options that say how attention is computed, for the commands that learn schedules and for those
// that score them.
#pragma once

#include <string>

#include "app/cli/options.h"
#include "kernels/method.h"
#include "model/model_config.h"

namespace allot::app {

// What --estimator may name: learning takes the estimators that draw samples, scoring exact attention too.
enum class EstimatorChoice { kSampled, kAny };

// Declares one option for each field of `method`, whose current values are the defaults.
void declare_attention_options(OptionSet* set, kernels::AttentionMethod* method, EstimatorChoice choice);
// Parts of these options: the estimator with its settings, only the settings of the estimators, and how
// scores are computed.
void declare_estimator_options(OptionSet* set, kernels::AttentionMethod* method, EstimatorChoice choice);
void declare_estimator_settings(OptionSet* set, kernels::AttentionMethod* method);
void declare_score_options(OptionSet* set, kernels::AttentionMethod* method);

// What a budget of rows is in samples, a line for people; empty where budgets are samples.
std::string unit_line(const kernels::AttentionMethod& method, const model::ModelIdentity& model);

// Throws UsageError where --unit does not fit the estimator.
void check_unit(const kernels::AttentionMethod& method);

}  // namespace allot::app
