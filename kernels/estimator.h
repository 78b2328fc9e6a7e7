// Names of the attention estimators and of the score stages; docs/design.md section 5 defines them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace allot::kernels {

enum class Estimator : uint8_t {
  kExact,  // softmax . V, no sampling; budgets are ignored
  kIid,    // S multinomial indices (S2ANTA paper, eq. 4)
  kStrat,  // one uniform per stratum of the CDF (Appendix A.3)
  kSys,    // one uniform offset for the row (Appendix A.3)
  // Per-tile budgets by largest remainder, systematic in the tile (Algorithms 2-5); biased when S is small.
  kProp,
  kFlash,      // S / tiles samples in every tile, FlashDecoding merge (Algorithms 6-8); needs S >= tiles
  kThreshold,  // rows with p >= tau kept exactly, the rest systematic with weight tau; unbiased
  kTopk,       // S largest, renormalised (Appendix H); biased
};

enum class ScoreStage : uint8_t {
  kExact,           // q K^T
  kBernoulli,       // iid Bernoulli query of budget B (Appendix C)
  kBernoulliStrat,  // stratified Bernoulli query of budget B (Appendix C.1)
};

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// Name as used on the command line and in schedule.json: "exact", "iid", …, "bernoulli-strat", "float32",
// "bfloat16", "float16".
std::string_view name(Estimator estimator);
std::string_view name(ScoreStage stage);
std::string_view name(DType dtype);

// Inverse of name. Throws InvalidArgument listing the known names.
Estimator parse_estimator(std::string_view text);
ScoreStage parse_score_stage(std::string_view text);
DType parse_dtype(std::string_view text);

// Bytes of one element.
constexpr int64_t size_of(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

}  // namespace allot::kernels
