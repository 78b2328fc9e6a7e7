// How replies are generated: the settings that decide, besides the model and the attention, which
// tokens come out.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/estimator.h"
#include "kernels/key_format.h"
#include "model/weight_storage.h"

namespace allot::evaluation {

// What ends a reply, besides the model's end tokens and the limit on its length.
enum class StopRule : uint8_t {
  kEos,     // nothing else: the model decides
  kAnswer,  // the reply holds its final answer (Task::complete)
};
std::string_view name(StopRule rule);             // "eos", "answer"
StopRule parse_stop_rule(std::string_view text);  // throws InvalidArgument naming both

struct Generation {
  kernels::DType dtype = kernels::DType::kBFloat16;             // of weights, activations and KV cache
  model::WeightStorage weights = model::WeightStorage::kDtype;  // of products
  kernels::KeyFormat keys = kernels::KeyFormat::kSixteenBits;   // of the KV cache
  double temperature = 0;                                       // 0 is greedy
  double top_p = 1;
  double repetition_penalty = 1;  // 1 is none
  int32_t max_new_tokens = 256;
  StopRule stop = StopRule::kAnswer;
  friend bool operator==(const Generation&, const Generation&) = default;
};

// Ranges of the fields, for options and for files.
inline constexpr double kMaxTemperature = 100;
inline constexpr double kMinTopP = 1e-9;
inline constexpr double kMinRepetitionPenalty = 0.01;
inline constexpr double kMaxRepetitionPenalty = 100;
inline constexpr int32_t kMaxNewTokens = 1 << 20;

// "bfloat16, temperature 0.6, top-p 0.95, repetition penalty 1.1, at most 4096 new tokens, until the answer".
std::string describe(const Generation& generation);

}  // namespace allot::evaluation
