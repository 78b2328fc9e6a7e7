// The text form of a policy's state: one JSON object that holds the configuration and the learner's
// own fields. Numbers are kept exactly: nlohmann_json prints a double with the digits that read back
// to the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/json.h"
#include "policy/policy.h"

namespace allot::policy {

// FNV-1a, 64 bits, over the bytes of the added values.
class StateDigest {
 public:
  StateDigest& add(std::string_view bytes) {
    for (const char byte : bytes) value_ = (value_ ^ static_cast<uint8_t>(byte)) * 0x100000001B3;
    return *this;
  }
  StateDigest& add(std::span<const double> numbers) {
    return add(std::string_view(reinterpret_cast<const char*>(numbers.data()), numbers.size_bytes()));
  }
  StateDigest& add(int64_t number) {
    return add(std::string_view(reinterpret_cast<const char*>(&number), sizeof number));
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325;
};

std::string write_state(const PolicyConfig& config, nlohmann::json learner);

// The learner's fields of a state that write_state made for the same configuration. Throws CorruptFile when
// the text is no such state, naming the fields that differ.
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
