// How attention is computed, as options of the commands that learn schedules and of those that score them.
#pragma once

#include <cstdint>
#include <string>

#include "app/cli/options.h"

namespace allot::app {

// As given; the values here are the defaults.
struct AttentionOptions {
  std::string estimator = "sys";
  std::string prefill = "sampled";
  int32_t tile = 256;
  std::string score_stage = "exact";
  int32_t score_budget = 0;
  bool mean_group_query = false;
};

// What --estimator may name: learning takes the estimators that draw samples, scoring exact attention too.
enum class EstimatorChoice { kSampled, kAny };

// Declares the options above.
void declare_attention_options(OptionSet* set, AttentionOptions* options, EstimatorChoice choice);

}  // namespace allot::app
