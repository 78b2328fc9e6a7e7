#include "worker/spec_method.h"

#include "wire/messages.pb.h"

namespace allot::worker {

kernels::AttentionMethod attention_method(const wire::AttentionSpec& spec) {
  kernels::AttentionMethod method{.estimator = kernels::parse_estimator(spec.estimator()),
                                  .prefill = kernels::parse_prefill(spec.prefill()),
                                  .tile = spec.tile(),
                                  .score_stage = kernels::parse_score_stage(spec.score_stage()),
                                  .score_budget = spec.score_budget(),
                                  .mean_group_query = spec.mean_group_query()};
  if (!spec.unit().empty()) method.unit = kernels::parse_budget_unit(spec.unit());
  for (const auto& [name, value] : spec.parameters()) kernels::set_parameter(&method, name, value);
  return method;
}

wire::AttentionSpec attention_spec(const kernels::AttentionMethod& method) {
  wire::AttentionSpec spec;
  spec.set_estimator(std::string(kernels::name(method.estimator)));
  if (method.unit != kernels::BudgetUnit::kSamples) spec.set_unit(std::string(kernels::name(method.unit)));
  spec.set_prefill(std::string(kernels::name(method.prefill)));
  spec.set_tile(method.tile);
  spec.set_score_stage(std::string(kernels::name(method.score_stage)));
  spec.set_score_budget(method.score_budget);
  spec.set_mean_group_query(method.mean_group_query);
  const auto values = kernels::own_parameters(method.estimator, method.parameters);
  for (size_t i = 0; i < values.size(); ++i) {
    const kernels::MethodParameter& parameter = kernels::row_of(method.estimator).parameters[i];
    if (values[i] != parameter.value) (*spec.mutable_parameters())[parameter.name] = values[i];
  }
  return spec;
}

}  // namespace allot::worker
