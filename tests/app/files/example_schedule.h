// A schedule file that every test of the format starts from, and what is said of changed ones.
#pragma once

#include <string>

#include "app/files/schedule_file.h"
#include "base/error.h"
#include "base/json.h"

namespace allot::app {

inline const std::string kConfigHash(64, 'a');
inline const std::string kWeights(64, 'b');

inline ScheduleFile example() {
  ScheduleFile file;
  file.conditions.model = {.id = "tiny-gsm",
                           .config_sha256 = kConfigHash,
                           .tokenizer_sha256 = std::string(64, 'e'),
                           .weights_fingerprint = kWeights,
                           .layers = 4,
                           .num_q_heads = 8,
                           .num_kv_heads = 4,
                           .head_dim = 32};
  file.conditions.attention.estimator = kernels::Estimator::kThreshold;
  file.conditions.attention.prefill = kernels::Prefill::kDense;
  file.schedule.samples = {20, 7, 3, 2};
  file.total = 32;
  file.conditions.task = {.name = "gsm8k", .version = 2, .prompt_style = "plain"};
  file.conditions.learned_on = {.sha256 = std::string(64, 'c'), .questions = 2000};
  file.conditions.measured_on = {.sha256 = std::string(64, 'd'), .questions = 200};
  file.conditions.generation.max_new_tokens = 96;
  file.conditions.seed = 3;
  file.evaluation.uniform = {.questions = 200, .correct = 28, .value = 0.14, .interval = {0.0985, 0.195}};
  file.evaluation.learned = {.questions = 200, .correct = 190, .value = 0.95, .interval = {0.91, 0.973}};
  file.evaluation.dense = {.questions = 200, .correct = 200, .value = 1, .interval = {0.981, 1}};
  file.evaluation.paired = {.questions = 200,
                            .pairs = {.only_first = 164, .only_second = 2, .questions = 200},
                            .difference = 0.81,
                            .interval = {0.74, 0.86},
                            .p_value = 4.5e-46};
  file.run_id = "r-1";
  file.policy_version = 25;
  file.tool_version = "0.1.0";
  return file;
}

// The message with which a file of this JSON is refused; "" when it is read.
inline std::string refusal(const nlohmann::ordered_json& json) {
  try {
    (void)parse_schedule_file(json.dump(), "s.json");
  } catch (const CorruptFile& error) {
    return error.what();
  }
  return "";
}

// The refusal of the example with the value at `pointer` replaced.
inline std::string refusal_with(const std::string& pointer, const nlohmann::ordered_json& value) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(format_schedule_file(example()));
  json[nlohmann::ordered_json::json_pointer(pointer)] = value;
  return refusal(json);
}

inline std::string refusal_without(const std::string& parent, const std::string& field) {
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(format_schedule_file(example()));
  json[nlohmann::ordered_json::json_pointer(parent)].erase(field);
  return refusal(json);
}

}  // namespace allot::app
