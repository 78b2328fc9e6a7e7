// executed.json: what the layers of an engine did under a schedule, as the engine itself counted it, and
// whether that is what the schedule asks for. allot's engine, allot_attention, allot_vllm and allot_sglang
// write the file; docs/schedule-format.md ("What was executed") defines the fields.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "app/files/schedule_file.h"
#include "evaluation/conditions.h"
#include "model/layer_execution.h"
#include "policy/schedule.h"

namespace allot::app {

inline constexpr int32_t kExecutedSchemaVersion = 1;

struct ExecutedFile {
  std::string engine;          // "allot", "allot_attention", "allot_vllm", "allot_sglang"
  std::string engine_version;  // of the engine
  std::string computed_by;     // which of its parts: "cpu", "operators", "eager"
  // Model and attention as the engine found them, not as a schedule says; what it does not know is in
  // conditions.unknown.
  evaluation::Conditions conditions;
  std::string run_id;                         // of the schedule; empty where it has none
  policy::Schedule schedule;                  // as the engine read it
  std::vector<model::LayerExecution> layers;  // [layers]
  friend bool operator==(const ExecutedFile&, const ExecutedFile&) = default;
};

// Reads and checks the file. Throws NotFound, CorruptFile naming every fault with field and value, or
// Unsupported (another schema version).
ExecutedFile read_executed_file(const std::filesystem::path& path);
// The same checks on a text; `place` names it in messages.
ExecutedFile parse_executed_file(std::string_view text, const std::string& place);
// The file's text, the same bytes for the same content.
std::string format_executed_file(const ExecutedFile& file);

// What was executed against what a schedule asks for.
struct ExecutedVerdict {
  struct Layer {
    std::string asked;                // "8", "exact"
    std::vector<std::string> faults;  // "layer 3 read 8.0 samples a head, 6 asked"
  };
  std::vector<evaluation::Difference> differences;  // schedule against engine: of the model and the attention
  std::vector<Layer> layers;
  std::vector<std::string> unknown;  // what the file cannot show: "the value rows were not counted"

  bool as_asked() const;
};

ExecutedVerdict judge(const ExecutedFile& executed, const ScheduleFile& schedule);
// A line a layer, what is not known, and the verdict.
std::string describe(const ExecutedVerdict& verdict, const ExecutedFile& executed);
// "as_asked", "differences", "faults" and "unknown", and the layers as the file has them.
nlohmann::ordered_json to_json(const ExecutedVerdict& verdict, const ExecutedFile& executed);

}  // namespace allot::app
