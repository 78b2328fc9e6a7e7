// schedule.json: a learned schedule with everything needed to use it safely elsewhere: the model it belongs
// to, how attention was computed, and the evidence. docs/schedule-format.md defines the fields and shows one
// worked example.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/method.h"
#include "model/model_config.h"
#include "policy/schedule.h"

namespace allot::app {

// Raised when a field changes its meaning or becomes required. Readers refuse other versions.
inline constexpr int32_t kScheduleSchemaVersion = 1;

struct TaskRecord {
  std::string name;  // "gsm8k"
  int32_t version = 0;
  std::string prompt_style;                   // of evaluation::prompt_style_names()
  std::string train_sha256;                   // of the data file that the schedule was learned on
  std::optional<std::string> heldout_sha256;  // of the data file that the evaluation used
  friend bool operator==(const TaskRecord&, const TaskRecord&) = default;
};

// Right answers of one schedule on the held-out questions, with a 95 % interval of the accuracy in [0, 1].
struct AccuracyRecord {
  int64_t questions = 0;
  int64_t correct = 0;
  double low = 0;
  double high = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(questions); }
  friend bool operator==(const AccuracyRecord&, const AccuracyRecord&) = default;
};

// Learned against uniform, question by question: the exact McNemar test.
struct PairedRecord {
  int64_t only_learned = 0;  // questions that only the learned schedule got right
  int64_t only_uniform = 0;
  double p_value = 1;     // two-sided
  double difference = 0;  // accuracy of learned minus accuracy of uniform, with its 95 % interval
  double low = 0;
  double high = 0;
  friend bool operator==(const PairedRecord&, const PairedRecord&) = default;
};

// What was measured; every part is optional, and `paired` needs `uniform` and `learned` on the same
// questions.
struct EvaluationRecord {
  std::optional<AccuracyRecord> uniform;
  std::optional<AccuracyRecord> learned;
  std::optional<AccuracyRecord> dense;
  std::optional<PairedRecord> paired;
  friend bool operator==(const EvaluationRecord&, const EvaluationRecord&) = default;
};

struct ScheduleFile {
  // tokenizer_sha256 is not part of the file (samples do not depend on it) and is empty after reading.
  model::ModelIdentity model;
  kernels::AttentionMethod attention;  // while the schedule was learned and scored
  policy::Schedule schedule;           // [model.layers], sum = total, each >= floor
  int64_t total = 0;
  int32_t floor = 1;
  TaskRecord task;
  EvaluationRecord evaluation;
  std::string run_id;
  int64_t policy_version = 0;  // updates the policy had made
  std::string tool_version;    // of the allot that wrote the file
  friend bool operator==(const ScheduleFile&, const ScheduleFile&) = default;
};

// Reads and checks a schedule.json. Throws NotFound, CorruptFile (not JSON, or fields that are missing,
// unknown, of the wrong type, out of range or in contradiction: all of them at once, each with its name and
// value) or Unsupported (another schema version).
ScheduleFile read_schedule_file(const std::filesystem::path& path);

// The same checks on a text; `place` names it in messages.
ScheduleFile parse_schedule_file(std::string_view text, const std::string& place);

// The file's text: fields in the order of docs/schedule-format.md, the same bytes for the same content.
// Throws InvalidArgument when reading the text back would be refused.
std::string format_schedule_file(const ScheduleFile& file);

// Writes format_schedule_file atomically. Throws InvalidArgument and StorageError.
void write_schedule_file(const std::filesystem::path& path, const ScheduleFile& file);

// Throws Mismatch naming every field in which the schedule's model and `model` differ, with both values. `id`
// (a directory name) and the tokenizer do not count.
void check_matches(const ScheduleFile& file, const model::ModelIdentity& model);

}  // namespace allot::app
