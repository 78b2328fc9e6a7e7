#include "kernels/estimator.h"

#include <spdlog/fmt/fmt.h>

#include <span>
#include <utility>

#include "base/error.h"
#include "kernels/method.h"

namespace allot::kernels {
namespace {

template <class Enum>
using Named = std::pair<Enum, std::string_view>;

constexpr Named<Estimator> kEstimators[] = {
    {Estimator::kExact, "exact"},         {Estimator::kIid, "iid"},
    {Estimator::kStrat, "strat"},         {Estimator::kSys, "sys"},
    {Estimator::kProp, "prop"},           {Estimator::kFlash, "flash"},
    {Estimator::kThreshold, "threshold"}, {Estimator::kTopk, "topk"},
};
constexpr Named<ScoreStage> kScoreStages[] = {
    {ScoreStage::kExact, "exact"},
    {ScoreStage::kBernoulli, "bernoulli"},
    {ScoreStage::kBernoulliStrat, "bernoulli-strat"},
};
constexpr Named<Prefill> kPrefills[] = {
    {Prefill::kDense, "dense"},
    {Prefill::kSampled, "sampled"},
};
constexpr Named<DType> kDTypes[] = {
    {DType::kFloat32, "float32"},
    {DType::kBFloat16, "bfloat16"},
    {DType::kFloat16, "float16"},
};

template <class Enum>
std::string_view name_in(std::span<const Named<Enum>> table, Enum value) {
  for (const auto& [entry, text] : table) {
    if (entry == value) return text;
  }
  throw InvalidArgument(
      fmt::format("enumerator {} has no name; the value was not made by allot", static_cast<int>(value)));
}

template <class Enum>
Enum parse_in(std::span<const Named<Enum>> table, std::string_view text, std::string_view kind) {
  std::string known;
  for (const auto& [entry, entry_text] : table) {
    if (entry_text == text) return entry;
    known += known.empty() ? "" : ", ";
    known += entry_text;
  }
  throw InvalidArgument(fmt::format("unknown {} \"{}\"; expected one of {}", kind, text, known));
}

}  // namespace

std::string_view name(Estimator estimator) {
  return name_in<Estimator>(kEstimators, estimator);
}
std::string_view name(ScoreStage stage) {
  return name_in<ScoreStage>(kScoreStages, stage);
}
std::string_view name(Prefill prefill) {
  return name_in<Prefill>(kPrefills, prefill);
}
std::string_view name(DType dtype) {
  return name_in<DType>(kDTypes, dtype);
}

Estimator parse_estimator(std::string_view text) {
  return parse_in<Estimator>(kEstimators, text, "estimator");
}
ScoreStage parse_score_stage(std::string_view text) {
  return parse_in<ScoreStage>(kScoreStages, text, "score stage");
}
Prefill parse_prefill(std::string_view text) {
  return parse_in<Prefill>(kPrefills, text, "prefill mode");
}
DType parse_dtype(std::string_view text) {
  return parse_in<DType>(kDTypes, text, "dtype");
}

}  // namespace allot::kernels
