// schedule.json: a learned schedule with everything needed to use it safely elsewhere: the conditions it was
// learned under, and the evidence. docs/schedule-format.md defines the fields and shows one worked example.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/accuracy.h"
#include "evaluation/calibration.h"
#include "evaluation/conditions.h"
#include "model/model_config.h"
#include "policy/layer_costs.h"
#include "policy/schedule.h"

namespace allot::app {

// The newest version. Raised when a field changes its meaning, becomes required or takes values that older
// readers do not know. Version 1, which lacks the generation, the seed and the tokenizer, version 2, which
// has no exact layers, and version 3, which has no bands, are read too; readers refuse other versions.
inline constexpr int32_t kScheduleSchemaVersion = 4;

// What was measured on the held-out questions; every part is optional, and `paired`, learned against uniform,
// needs `uniform` and `learned` on the same questions.
struct EvaluationRecord {
  std::optional<evaluation::Accuracy> uniform;
  std::optional<evaluation::Accuracy> learned;
  std::optional<evaluation::Accuracy> dense;
  std::optional<evaluation::PairedTest> paired;
  friend bool operator==(const EvaluationRecord&, const EvaluationRecord&) = default;
};

// What `allot calibrate` measures at its end, on texts that are not the held-out questions of a run.
struct CalibrationCheck {
  int64_t texts = 0;
  int64_t positions = 0;  // of these
  evaluation::Divergence uniform;
  evaluation::Divergence learned;
  friend bool operator==(const CalibrationCheck&, const CalibrationCheck&) = default;
};

// That divergences led to the schedule.
struct CalibrationRecord {
  std::string reward = "divergence";      // alone, or "mixed": followed by answers
  std::string mode;                       // what was measured: "prefill", "decode" or "reply"
  std::optional<CalibrationCheck> check;  // nothing where a run learned the schedule
  friend bool operator==(const CalibrationRecord&, const CalibrationRecord&) = default;
};

struct ScheduleFile {
  // The conditions under which the schedule was learned and scored. Fields that a file of version 1 lacks
  // are in conditions.unknown.
  evaluation::Conditions conditions;
  policy::Schedule schedule;  // [conditions.model.layers], sum = total, each >= floor or exact
  int64_t total = 0;
  int32_t floor = 1;
  // Schedules of prompts that are not the longest, by rising lengths; `schedule` is that of all longer ones.
  // Each has the same floor and the same exact layers.
  std::vector<policy::ScheduleBand> bands = {};
  EvaluationRecord evaluation;
  std::optional<CalibrationRecord> calibration;  // nothing where answers alone did
  std::string run_id;
  policy::Schedule start = {};  // that learning started from; without entries: the even one, or not known
  int64_t policy_version = 0;   // updates the policy had made
  // What was learned of layers, from which other totals follow; at `total` it gives `schedule`. Nothing where
  // that is not known: files from before it, schedules that nobody learned.
  std::optional<policy::LayerCosts> costs = {};
  // Where `schedule` was solved from these costs for another total than the one that was learned and
  // measured: that one. Nothing was measured of `schedule` then.
  std::optional<int64_t> resolved_from = {};
  // Where the weights of conditions.model are those of another model with an adapter merged into them
  // (`allot export --format hf-model --adapter`): that model, of which id, weights_fingerprint and adapter
  // are known. Written in config.json alone.
  std::optional<model::ModelIdentity> merged_from = {};
  std::string tool_version;  // version of allot that wrote the file
  friend bool operator==(const ScheduleFile&, const ScheduleFile&) = default;
};

// The version in which the file is written: the oldest that can say what it holds.
int32_t schema_version_of(const ScheduleFile& file);

// Whether the caller chooses a schedule by the length of each prompt.
enum class Bands : bool { kRefused, kFollowed };

// Reads and checks a schedule.json. Throws NotFound, CorruptFile (not JSON, or fields that are missing,
// unknown, of the wrong type, out of range or in contradiction: all of them at once, each with its name and
// value) or Unsupported (another schema version, or bands where they are refused).
ScheduleFile read_schedule_file(const std::filesystem::path& path, Bands bands = Bands::kRefused);

// The same checks on a text; `place` names it in messages.
ScheduleFile parse_schedule_file(std::string_view text, const std::string& place);

// The schedule that config.json of a model directory carries in its key "allot", as `allot export --format
// hf-config` writes it; nothing without the key. It has no evidence and no costs, and does not know the hash
// that config.json had before the key came into it (conditions.unknown). Throws NotFound, CorruptFile and
// Unsupported as read_schedule_file does.
std::optional<ScheduleFile> read_own_schedule(const std::filesystem::path& directory);

// The file's text: fields in the order of docs/schedule-format.md, the same bytes for the same content.
// Throws InvalidArgument when reading the text back would be refused.
std::string format_schedule_file(const ScheduleFile& file);

// Writes format_schedule_file atomically. Throws InvalidArgument and StorageError.
void write_schedule_file(const std::filesystem::path& path, const ScheduleFile& file);

// The schedule that the file's costs give at `total`: `file` itself where it is of that total, else a copy of
// it with that schedule, without evidence and start, with resolved_from. Throws InvalidArgument where the
// file has no costs, saying why, and for a total below the floors.
ScheduleFile resolve_total(const ScheduleFile& file, int64_t total);
// What to say of the schedule of a file: that it was solved for this total from a run at another one and not
// verified, and where its total lies beyond what was measured. Empty for one that was learned at its total.
std::string resolved_text(const ScheduleFile& file);

// What other totals follow from: "a response model, fitted to layers as totals of 36 to 130 have them".
std::string text(const policy::LayerCosts& costs);

// The list `bands` of the file.
nlohmann::ordered_json bands_json(std::span<const policy::ScheduleBand> bands);
// Its inverse; faults are noted with `place`, "bands".
std::vector<policy::ScheduleBand> read_bands(const nlohmann::ordered_json& list, const std::string& place,
                                             int32_t floor, std::vector<std::string>* faults);

// Throws Mismatch naming every field in which the schedule's model and `model` differ, with both values. The
// ids (directory names) and the tokenizer do not count.
void check_matches(const ScheduleFile& file, const model::ModelIdentity& model);

}  // namespace allot::app
