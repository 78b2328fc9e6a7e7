// The text form of a policy's state: one JSON object that holds the configuration beside the learner's own
// fields. Numbers survive exactly: nlohmann_json prints a double with the digits that read back to the same
// bits.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "policy/policy.h"

namespace allot::policy {

std::string write_state(const PolicyConfig& config, nlohmann::json learner);

// The learner's fields of a state that write_state made for the same configuration. Throws CorruptFile naming
// the fields that differ, or where the text is no such state.
nlohmann::json read_state(const PolicyConfig& config, std::string_view text);

// Throws CorruptFile with `what` unless `holds`; for the learners' own checks of what they read.
void require_state(bool holds, const std::string& what);

// Reads `field` as one finite logit per layer.
std::vector<double> read_logits(const nlohmann::json& learner, const char* field, int layers);

// The array `field`.
const nlohmann::json& read_list(const nlohmann::json& learner, const char* field);

// Throws InvalidArgument unless the reward is finite.
void check_reward(const Outcome& outcome);

}  // namespace allot::policy
