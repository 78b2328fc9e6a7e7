// How attention is computed in place of softmax . V: the one value that the kernels, the engine, a run's
// spec, schedule files, benches and reports share.
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/estimator.h"

namespace allot::kernels {

// Attention of the prompt's tokens.
enum class Prefill : uint8_t {
  kDense,    // exact
  kSampled,  // by the same estimator as in decoding
};
std::string_view name(Prefill prefill);        // "dense", "sampled"
Prefill parse_prefill(std::string_view text);  // throws InvalidArgument naming both

struct AttentionMethod {
  Estimator estimator = Estimator::kSys;
  Prefill prefill = Prefill::kSampled;
  int32_t tile = 256;  // keys per tile of `prop` and `flash`
  ScoreStage score_stage = ScoreStage::kExact;
  int32_t score_budget = 0;  // 0 exactly when score_stage is kExact
  bool mean_group_query = false;
  friend bool operator==(const AttentionMethod&, const AttentionMethod&) = default;
};

}  // namespace allot::kernels
