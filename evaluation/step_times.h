// How long a decode step takes under a schedule and under exact attention, by the length of the context, on
// one device. No model here: the caller measures.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/conditions.h"
#include "policy/schedule.h"

namespace allot::evaluation {

// Microseconds of a step: the median, and what 5 and 95 % of the steps do not exceed.
struct StepTime {
  double median = 0;
  double low = 0;
  double high = 0;
  friend bool operator==(const StepTime&, const StepTime&) = default;
};

struct ContextTimes {
  int64_t context = 0;  // keys of each sequence when the first step begins
  StepTime dense;
  StepTime schedule;
  friend bool operator==(const ContextTimes&, const ContextTimes&) = default;
};

struct StepTimes {
  Conditions conditions;  // those of the schedule
  std::string tool_version;
  std::string device;     // "cuda:0 NVIDIA H200, 139 GiB"
  int32_t sequences = 1;  // decoded together
  int32_t steps = 0;      // measured for each number
  policy::Schedule schedule;
  std::vector<ContextTimes> contexts;  // ascending
  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

// step-times.json: one object with the fields above and schema_version 1. The same content gives the same
// bytes.
std::string format_step_times(const StepTimes& times);
// Inverse of format_step_times. Throws CorruptFile naming `place` and everything that is wrong, Unsupported
// for another schema version.
StepTimes parse_step_times(std::string_view text, const std::string& place);
// Throws NotFound, and what parse_step_times throws.
StepTimes read_step_times(const std::filesystem::path& file);

}  // namespace allot::evaluation
