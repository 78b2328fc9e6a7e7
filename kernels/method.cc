#include "kernels/method.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/sampling.h"

namespace allot::kernels {
namespace {

// "joint, pooled, level"
std::string names_with_rows() {
  std::string names;
  for (const EstimatorRow& row : kEstimatorRows) {
    if (row.scope != Scope::kHead) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}

// "prop and flash"
std::string tiled_names() {
  std::string names;
  for (const EstimatorRow& row : kEstimatorRows) {
    if (row.tiled) names += (names.empty() ? "" : " and ") + std::string(row.name);
  }
  return names;
}

}  // namespace

AttentionMethod usual_method() {
  return {.estimator = Estimator::kJoint, .parameters = usual_parameters()};
}

void keep_own_parameters(AttentionMethod* method, const ParameterValues& others) {
  ParameterValues kept = others;
  std::ranges::copy(own_parameters(method->estimator, method->parameters),
                    kept.values + first_parameter(method->estimator));
  method->parameters = kept;
}

std::string unit_fault(const AttentionMethod& method) {
  return fmt::format("unit is {}, expected {} with {}; {} are for {}", name(method.unit),
                     name(BudgetUnit::kSamples), name(method.estimator), name(method.unit),
                     names_with_rows());
}

int32_t least_samples(const AttentionMethod& method, int32_t length) {
  return row_of(method.estimator).sample_in_every_tile ? tile_count(length, method.tile) : 1;
}

void set_parameter(AttentionMethod* method, std::string_view name, double value) {
  const std::span<const MethodParameter> parameters = row_of(method->estimator).parameters;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].name != name) continue;
    method->parameters.values[first_parameter(method->estimator) + i] = value;
    return;
  }
  throw InvalidArgument(
      fmt::format("estimator {} has no parameter \"{}\"", kernels::name(method->estimator), name));
}

std::vector<std::string> estimator_faults(const AttentionMethod& method) {
  std::vector<std::string> faults;
  if (!has_consistent_unit(method)) faults.push_back(unit_fault(method));
  const std::span<const double> values = own_parameters(method.estimator, method.parameters);
  for (size_t i = 0; i < values.size(); ++i) {
    const MethodParameter& parameter = row_of(method.estimator).parameters[i];
    const bool fits = values[i] >= parameter.min && values[i] <= parameter.max &&
                      (!parameter.whole || values[i] == std::floor(values[i]));
    if (!fits) {
      faults.push_back(fmt::format("{} is {}, expected {}{} to {}", parameter.name, values[i],
                                   parameter.whole ? "a whole number " : "", parameter.min, parameter.max));
    }
  }
  return faults;
}

std::vector<MethodSetting> estimator_settings() {
  std::vector<MethodSetting> settings = {
      {"unit", &AttentionMethod::unit, 0, 0, "",
       "what budgets and totals count: samples of a query head, or value rows that the heads of a KV head "
       "share; rows are for " +
           names_with_rows()},
      {"tile", &AttentionMethod::tile, 1, 1 << 20, "KEYS", "keys per tile of " + tiled_names()}};
  size_t place = 0;
  for (const EstimatorRow& row : kEstimatorRows) {
    for (const MethodParameter& parameter : row.parameters) {
      settings.push_back({parameter.name, place++, parameter.min, parameter.max, parameter.hint,
                          fmt::format("{}: {}", row.name, parameter.help)});
    }
  }
  return settings;
}

std::vector<MethodSetting> score_settings() {
  return {{"score-budget", &AttentionMethod::score_budget, 0, kMaxBudget, "B",
           "Bernoulli draws of a query (score stages other than exact)"},
          {"mean-group-query", &AttentionMethod::mean_group_query, 0, 1, "",
           "Bernoulli: draw once per head group, from its mean query"}};
}

std::vector<std::string> estimator_names(bool with_exact) {
  std::vector<std::string> names;
  for (const EstimatorRow& row : kEstimatorRows) {
    if (row.samples || with_exact) names.emplace_back(row.name);
  }
  return names;
}

std::string estimators_help(bool with_exact) {
  std::string help = "how attention is estimated from its samples";
  const char* separator = ": ";
  for (const EstimatorRow& row : kEstimatorRows) {
    if (!row.samples && !with_exact) continue;
    help += fmt::format("{}{} ({})", separator, row.name, row.summary);
    separator = ", ";
  }
  return help;
}

std::string describe(const AttentionMethod& method) {
  const EstimatorRow& row = row_of(method.estimator);
  std::string text = row.name;
  if (method.unit != BudgetUnit::kSamples) text += fmt::format(" by {}", name(method.unit));
  if (row.tiled) text += fmt::format(" in tiles of {} keys", method.tile);
  const std::span<const double> values = own_parameters(method.estimator, method.parameters);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != row.parameters[i].value)
      text += fmt::format(", {} {}", row.parameters[i].name, values[i]);
  }
  return text + fmt::format(", prefill {}, scores {}", name(method.prefill), describe_scores(method));
}

std::string budget_text(BudgetUnit unit, int64_t number, int32_t heads) {
  if (unit == BudgetUnit::kSamples) return fmt::format("{} samples", number);
  const double samples = static_cast<double>(number) / heads;
  return fmt::format("{} rows ({:.6g} samples of each of the {} heads of a KV head)", number, samples, heads);
}

std::string describe_scores(const AttentionMethod& method) {
  std::string text(name(method.score_stage));
  if (method.score_budget > 0) text += fmt::format(" with budget {}", method.score_budget);
  if (method.mean_group_query) text += " by mean group query";
  return text;
}

}  // namespace allot::kernels
