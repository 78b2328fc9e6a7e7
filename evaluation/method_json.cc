#include "evaluation/method_json.h"

namespace allot::evaluation {

nlohmann::ordered_json method_json(const kernels::AttentionMethod& method) {
  nlohmann::ordered_json json = {{"estimator", kernels::name(method.estimator)}};
  if (method.unit != kernels::BudgetUnit::kSamples) json["unit"] = kernels::name(method.unit);
  json.update({{"prefill", kernels::name(method.prefill)},
               {"tile", method.tile},
               {"score_stage", kernels::name(method.score_stage)},
               {"score_budget", method.score_budget},
               {"mean_group_query", method.mean_group_query}});
  const auto values = kernels::own_parameters(method.estimator, method.parameters);
  for (size_t i = 0; i < values.size(); ++i) {
    const kernels::MethodParameter& parameter = kernels::row_of(method.estimator).parameters[i];
    if (values[i] != parameter.value) json["parameters"][parameter.name] = values[i];
  }
  return json;
}

kernels::AttentionMethod read_method(JsonFields&& fields) {
  kernels::AttentionMethod method;
  method.estimator = fields.named("estimator", kernels::parse_estimator);
  if (fields.has("unit")) method.unit = fields.named("unit", kernels::parse_budget_unit);
  method.prefill = fields.named("prefill", kernels::parse_prefill);
  method.tile = fields.integer<int32_t>("tile", 1);
  method.score_stage = fields.named("score_stage", kernels::parse_score_stage);
  method.score_budget = fields.integer<int32_t>("score_budget", 0);
  method.mean_group_query = fields.flag("mean_group_query");
  if (!kernels::has_consistent_scores(method)) {
    fields.fault(
        fmt::format("{} is {} with score stage {}, expected 0 for exact scores and at least 1 for the others",
                    fields.where("score_budget"), method.score_budget, kernels::name(method.score_stage)));
  }
  if (!kernels::has_consistent_unit(method))
    fields.fault(fmt::format("{}: {}", fields.where("unit"), kernels::unit_fault(method)));
  if (kernels::row_of(method.estimator).parameters.empty() || !fields.has("parameters")) return method;
  JsonFields own = fields.object("parameters");
  for (const kernels::MethodParameter& parameter : kernels::row_of(method.estimator).parameters) {
    if (own.has(parameter.name))
      kernels::set_parameter(&method, parameter.name, own.real(parameter.name, parameter.min, parameter.max));
  }
  for (const std::string& found : kernels::estimator_faults(method))
    if (kernels::has_consistent_unit(method))
      fields.fault(fmt::format("{}: {}", fields.where("parameters"), found));
  return method;
}

}  // namespace allot::evaluation
