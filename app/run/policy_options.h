// The options that say how a run learns. Those of the learners' parameters are made from what the
// learners declare (policy/learner.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "policy/policy.h"

namespace allot::app {

struct PolicyOptions {
  std::string name = policy::PolicyConfig{}.name;
  int64_t total = 0;
  int32_t floor = 1;
  std::string bounds;                     // LAYERS:RANGE,… (policy/bounds.h); empty: the floor alone
  std::optional<int64_t> max_policy_lag;  // empty: as the learner declares
  std::string start;                      // as a schedule is written on the command line; empty: the even one
  std::map<std::string, double> by_flag;  // parameters given as --gain VALUE, by their names in specs
  std::map<std::string, double> by_pair;  // given as --policy-option gain=VALUE
};

// Declares --bounds, for every command that looks for schedules.
void declare_bounds_option(OptionSet* options, std::string* bounds);

// Declares --policy, --bounds, --start, --max-policy-lag, --policy-option and an option for each parameter of
// a learner. `policy` outlives the parsing.
void declare_policy_options(OptionSet* options, PolicyOptions* policy);

// What is wrong with the options, independent of a model: a parameter that the chosen policy does not have,
// or one that is given in both ways.
std::vector<std::string> policy_faults(const PolicyOptions& policy);

// Without layers, seed and start, which follow from the model and the run.
policy::PolicyConfig policy_config(const PolicyOptions& policy);

}  // namespace allot::app
