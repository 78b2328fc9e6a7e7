// How attention is computed in place of softmax . V: the one value that the kernels, the engine, a run's
// spec, schedule files, benches and reports share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

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
  int32_t score_budget = 0;       // B of the Bernoulli stages; 0 exactly when score_stage is kExact
  bool mean_group_query = false;  // one Bernoulli query per head group (Appendix C.2)
  friend bool operator==(const AttentionMethod&, const AttentionMethod&) = default;
};

// A score budget belongs to the Bernoulli score stages, and they need one.
constexpr bool has_consistent_scores(const AttentionMethod& method) {
  return (method.score_stage == ScoreStage::kExact) == (method.score_budget == 0);
}

// A number or switch of a method, as an option shows it.
struct MethodSetting {
  const char* name;  // of the option: "score-budget"
  std::variant<int32_t AttentionMethod::*, bool AttentionMethod::*> field;
  int32_t min;  // of a number, with max
  int32_t max;
  const char* hint;  // of its unit
  const char* help;
};
std::span<const MethodSetting> estimator_settings();
std::span<const MethodSetting> score_settings();  // beside the score stage

// "prop in tiles of 256 keys, prefill sampled, scores exact"
std::string describe(const AttentionMethod& method);
// "exact", "bernoulli with budget 8 by mean group query"
std::string describe_scores(const AttentionMethod& method);

}  // namespace allot::kernels
