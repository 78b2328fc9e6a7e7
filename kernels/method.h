// How attention is computed in place of softmax(scores) V: the one struct that the kernels, the engine, a
// run's spec, schedule files, benches and reports share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/estimator.h"

namespace allot::kernels {

// Attention of the prompt's tokens.
enum class Prefill : uint8_t {
  kDense,    // exact
  kSampled,  // by the same estimator as in decoding
};
std::string_view name(Prefill prefill);        // "dense", "sampled"
Prefill parse_prefill(std::string_view text);  // throws InvalidArgument naming both

std::string_view name(BudgetUnit unit);               // "samples", "rows"
BudgetUnit parse_budget_unit(std::string_view text);  // throws InvalidArgument naming both
std::vector<std::string> budget_unit_names();

struct AttentionMethod {
  Estimator estimator = Estimator::kSys;
  BudgetUnit unit = BudgetUnit::kSamples;  // of every budget; rows for estimators whose heads choose together
  Prefill prefill = Prefill::kSampled;
  int32_t tile = 256;  // keys per tile of the estimators that work by tiles
  ScoreStage score_stage = ScoreStage::kExact;
  int32_t score_budget = 0;       // B of the Bernoulli stages; 0 exactly when score_stage is kExact
  bool mean_group_query = false;  // one Bernoulli query per head group (Appendix C.2)
  // Of every estimator that has some, at first_parameter(); others than `estimator` keep their defaults.
  ParameterValues parameters = default_parameters();
  friend bool operator==(const AttentionMethod&, const AttentionMethod&) = default;
};

// What commands sample with where nothing else is asked for: docs/estimators.md says why. Every estimator has
// its usual parameters, so that another one may be put in.
AttentionMethod usual_method();

// Puts the parameters of the other estimators at `others`.
void keep_own_parameters(AttentionMethod* method, const ParameterValues& others = default_parameters());

// The part of the parameters that is one estimator's, in the order of its row.
inline std::span<const double> own_parameters(Estimator estimator, const ParameterValues& all) {
  return std::span(all.values).subspan(first_parameter(estimator), row_of(estimator).parameters.size());
}

// Whether the score budget fits the score stage: the Bernoulli stages need one, the exact stage has none.
constexpr bool has_consistent_scores(const AttentionMethod& method) {
  return (method.score_stage == ScoreStage::kExact) == (method.score_budget == 0);
}

// Whether the estimator has budgets in the method's unit: those whose heads choose for themselves have
// samples.
constexpr bool has_consistent_unit(const AttentionMethod& method) {
  return method.unit == BudgetUnit::kSamples || row_of(method.estimator).scope != Scope::kHead;
}
// "unit is rows, expected samples with sys; rows are for joint, pooled, level". Of a method whose unit does
// not fit.
std::string unit_fault(const AttentionMethod& method);

// Whether the method's sizes of rows take in the norms of their values: its launches need
// AttentionParams::value_norms.
inline bool uses_value_norms(const AttentionMethod& method) {
  const std::span<const double> values = own_parameters(method.estimator, method.parameters);
  for (size_t i = 0; i < values.size(); ++i)
    if (row_of(method.estimator).parameters[i].norms && values[i] != 0) return true;
  return false;
}

// The smallest budget above 0 that the estimator accepts for a row of `length` keys.
int32_t least_samples(const AttentionMethod& method, int32_t length);

// Sets a parameter of the method's estimator. Throws InvalidArgument when it has none of this name.
void set_parameter(AttentionMethod* method, std::string_view name, double value);

// What the estimator cannot do: its own parameters that are out of range, one text each, "epsilon is 3,
// expected 0 to 1", and unit_fault() of a unit that it does not have.
std::vector<std::string> estimator_faults(const AttentionMethod& method);

// A number, unit or switch of a method, for an option that sets it. A number without a field of its own is a
// parameter, given by its index among those of all estimators.
struct MethodSetting {
  const char* name;  // of the option: "score-budget"
  std::variant<int32_t AttentionMethod::*, bool AttentionMethod::*, BudgetUnit AttentionMethod::*, size_t>
      field;
  double min;  // of a number, with max
  double max;
  const char* hint;  // of its unit
  std::string help;
};
std::vector<MethodSetting> estimator_settings();  // beside the estimator itself
std::vector<MethodSetting> score_settings();      // beside the score stage
// "how attention is estimated from its samples: iid (independent draws), …", with exact attention
// where asked for
std::string estimators_help(bool with_exact);
std::vector<std::string> estimator_names(bool with_exact);

// "prop in tiles of 256 keys, prefill sampled, scores exact", "joint by rows, …"
std::string describe(const AttentionMethod& method);
// A budget or total in its unit, for groups of `heads` query heads: "64 samples", "147 rows (49 samples of
// each of the 3 heads of a KV head)".
std::string budget_text(BudgetUnit unit, int64_t number, int32_t heads);
// "exact", "bernoulli with budget 8 by mean group query"
std::string describe_scores(const AttentionMethod& method);

}  // namespace allot::kernels
