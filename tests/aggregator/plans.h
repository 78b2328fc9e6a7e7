// A run's plan with the policy of its spec, and what it asks for.
#pragma once

#include <vector>

#include "aggregator/plan.h"
#include "aggregator/run_spec.h"
#include "policy/policy.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

inline Plan make_plan(const wire::RunSpec& spec) {
  return {spec, policy::make_policy(policy_config(spec))};
}

// All episodes that the plan asks for before any of them ends.
inline std::vector<PlannedEpisode> all_open(Plan* plan) {
  std::vector<PlannedEpisode> episodes;
  while (auto episode = plan->next()) episodes.push_back(*episode);
  return episodes;
}

}  // namespace allot::aggregator
