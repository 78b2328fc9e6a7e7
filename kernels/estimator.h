// Attention estimators (the table in methods/list.h), score stages and dtypes, and their names;
// docs/design.md section 5 defines them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/methods/list.h"

namespace allot::kernels {

enum class ScoreStage : uint8_t {
  kExact,           // q K^T
  kBernoulli,       // iid Bernoulli query of budget B (Appendix C)
  kBernoulliStrat,  // stratified Bernoulli query of budget B (Appendix C.1)
};

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// Name as used on the command line and in schedule.json: "exact", "iid", …, "bernoulli-strat",
// "float32", "bfloat16", "float16".
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
