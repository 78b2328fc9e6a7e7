// How attention is computed, as options of the commands that learn schedules and of those that score them.
#pragma once

#include "app/cli/options.h"
#include "kernels/method.h"

namespace allot::app {

// What --estimator may name: learning takes the estimators that draw samples, scoring exact attention too.
enum class EstimatorChoice { kSampled, kAny };

// Declares one option for each field of `method`, whose present values are the defaults.
void declare_attention_options(OptionSet* set, kernels::AttentionMethod* method, EstimatorChoice choice);
// Those of them that say how estimators and score stages work.
void declare_estimator_settings(OptionSet* set, kernels::AttentionMethod* method);
void declare_score_options(OptionSet* set, kernels::AttentionMethod* method);

}  // namespace allot::app
