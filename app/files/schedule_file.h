// schedule.json: a learned schedule with everything needed to use it safely elsewhere: the conditions it was
// learned under, and the evidence. docs/schedule-format.md defines the fields and shows one worked example.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "evaluation/conditions.h"
#include "model/model_config.h"
#include "policy/schedule.h"

namespace allot::app {

// Raised when a field changes its meaning or becomes required. Version 1, which lacks the generation, the
// seed and the tokenizer, is read too; readers refuse other versions.
inline constexpr int32_t kScheduleSchemaVersion = 2;

// Right answers of one schedule on the held-out questions, with a 95 % interval of the accuracy in [0, 1].
struct AccuracyRecord {
  int64_t questions = 0;
  int64_t correct = 0;
  double low = 0;
  double high = 0;
  std::optional<double> mean_score =
      {};  // for answers with partial credit; empty when all are right or wrong
  double accuracy() const {
    return mean_score ? *mean_score : static_cast<double>(correct) / static_cast<double>(questions);
  }
  friend bool operator==(const AccuracyRecord&, const AccuracyRecord&) = default;
};

// Learned against uniform, question by question (evaluation::compare_scores).
struct PairedRecord {
  int64_t only_learned = 0;  // questions that only the learned schedule got right, or scored higher on
  int64_t only_uniform = 0;
  double p_value = 1;     // two-sided
  double difference = 0;  // accuracy of learned minus accuracy of uniform, with its 95 % interval
  double low = 0;
  double high = 0;
  bool graded = false;  // partial credit: the paired permutation test, else the exact McNemar test
  const char* test() const { return graded ? "paired permutation test" : "exact McNemar test"; }
  friend bool operator==(const PairedRecord&, const PairedRecord&) = default;
};

// What was measured; every part is optional, and `paired` needs `uniform` and `learned` on
// the same questions.
struct EvaluationRecord {
  std::optional<AccuracyRecord> uniform;
  std::optional<AccuracyRecord> learned;
  std::optional<AccuracyRecord> dense;
  std::optional<PairedRecord> paired;
  friend bool operator==(const EvaluationRecord&, const EvaluationRecord&) = default;
};

struct ScheduleFile {
  // The conditions under which the schedule was learned and scored. Fields that a file of version 1 lacks
  // are in conditions.unknown.
  evaluation::Conditions conditions;
  policy::Schedule schedule;  // [conditions.model.layers], sum = total, each >= floor
  int64_t total = 0;
  int32_t floor = 1;
  EvaluationRecord evaluation;
  std::string run_id;
  int64_t policy_version = 0;  // updates the policy had made
  std::string tool_version;    // version of allot that wrote the file
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
