// Divergences as `allot calibrate --measurements` keeps them and `allot bench tuner --recorded` reads them.
// JSON lines: first {"schema_version": 1, "mode": "reply", "texts": 16, "conditions": {…}}, then one for each
// measurement, {"batch": 0, "schedule": [4, 4, …], "divergence": 0.052}. Lines of one batch were measured on
// the same texts with the same draws; a schedule counts in the unit of the conditions and has no exact
// layers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/conditions.h"
#include "policy/recorded.h"

namespace allot::app {

inline constexpr int32_t kMeasurementSchemaVersion = 1;

struct MeasurementFile {
  evaluation::Conditions conditions;
  std::string mode;    // of the fidelity: "prefill", "decode", "reply"
  int32_t texts = 16;  // of a batch; files of before November 2026 do not say it, and have as many
  std::vector<policy::RecordedBatch> batches;
};

// The first line.
std::string measurement_head(const evaluation::Conditions& conditions, const std::string& mode,
                             int32_t texts);
// The lines of a batch; `divergences` are as many as the schedules.
std::string measurement_lines(int64_t batch, std::span<const policy::Schedule> schedules,
                              std::span<const double> divergences);

// Batches are in the order of their first lines. Throws CorruptFile naming the first line that is wrong, and
// for a text without measurements, Unsupported for another schema version; `place` names the text.
MeasurementFile parse_measurements(std::string_view text, const std::string& place);

}  // namespace allot::app
