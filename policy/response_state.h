// The text form of what a learner with a ResponseModel keeps: draws of the posterior and outcomes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <vector>

#include "policy/policy.h"
#include "policy/response_model.h"

namespace allot::policy {

nlohmann::json to_json(const ResponseModel::State& state);
// Of a model of `layers` layers with these curves. May throw what nlohmann::json or the checks of
// policy/state.h throw.
ResponseModel::State read_response_state(const nlohmann::json& entry, int layers,
                                         const ResponseCurves& curves);

nlohmann::json to_json(std::span<const ResponseOutcome> outcomes);
// The array `field`, of schedules that fit the configuration. Errors as above, and of check_schedule.
std::vector<ResponseOutcome> read_outcomes(const nlohmann::json& learner, const char* field,
                                           const PolicyConfig& config);

}  // namespace allot::policy
