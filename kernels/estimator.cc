#include "kernels/estimator.h"

#include <spdlog/fmt/fmt.h>

#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/method.h"

namespace allot::kernels {
namespace {

template <class Enum>
using Named = std::pair<Enum, std::string_view>;

constexpr Named<ScoreStage> kScoreStages[] = {
    {ScoreStage::kExact, "exact"},
    {ScoreStage::kBernoulli, "bernoulli"},
    {ScoreStage::kBernoulliStrat, "bernoulli-strat"},
};
constexpr Named<Prefill> kPrefills[] = {
    {Prefill::kDense, "dense"},
    {Prefill::kSampled, "sampled"},
};
constexpr Named<BudgetUnit> kBudgetUnits[] = {
    {BudgetUnit::kSamples, "samples"},
    {BudgetUnit::kRows, "rows"},
};
constexpr Named<DType> kDTypes[] = {
    {DType::kFloat32, "float32"},
    {DType::kBFloat16, "bfloat16"},
    {DType::kFloat16, "float16"},
};

[[noreturn]] void refuse_unnamed(int value) {
  throw InvalidArgument(fmt::format("enumerator {} has no name; the value was not made by allot", value));
}

template <class Enum>
std::string_view name_in(std::span<const Named<Enum>> table, Enum value) {
  for (const auto& [entry, text] : table) {
    if (entry == value) return text;
  }
  refuse_unnamed(static_cast<int>(value));
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
  if (static_cast<int>(estimator) >= kEstimators) refuse_unnamed(static_cast<int>(estimator));
  return row_of(estimator).name;
}
std::string_view name(ScoreStage stage) {
  return name_in<ScoreStage>(kScoreStages, stage);
}
std::string_view name(Prefill prefill) {
  return name_in<Prefill>(kPrefills, prefill);
}
std::string_view name(BudgetUnit unit) {
  return name_in<BudgetUnit>(kBudgetUnits, unit);
}
std::string_view name(DType dtype) {
  return name_in<DType>(kDTypes, dtype);
}

Estimator parse_estimator(std::string_view text) {
  std::vector<Named<Estimator>> names;
  for (int i = 0; i < kEstimators; ++i) names.emplace_back(static_cast<Estimator>(i), kEstimatorRows[i].name);
  return parse_in<Estimator>(names, text, "estimator");
}
ScoreStage parse_score_stage(std::string_view text) {
  return parse_in<ScoreStage>(kScoreStages, text, "score stage");
}
Prefill parse_prefill(std::string_view text) {
  return parse_in<Prefill>(kPrefills, text, "prefill mode");
}
BudgetUnit parse_budget_unit(std::string_view text) {
  return parse_in<BudgetUnit>(kBudgetUnits, text, "unit of budgets");
}
std::vector<std::string> budget_unit_names() {
  std::vector<std::string> names;
  for (const auto& [unit, text] : kBudgetUnits) names.emplace_back(text);
  return names;
}
DType parse_dtype(std::string_view text) {
  return parse_in<DType>(kDTypes, text, "dtype");
}

}  // namespace allot::kernels
