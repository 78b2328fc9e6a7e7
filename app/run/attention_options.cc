#include "app/run/attention_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "base/error.h"

namespace allot::app {
namespace {

using kernels::AttentionMethod;
using kernels::MethodSetting;

void declare(OptionSet* set, const std::vector<MethodSetting>& settings, AttentionMethod* method) {
  for (const MethodSetting& setting : settings) {
    const char* help = setting.help.c_str();
    if (const auto* number = std::get_if<int32_t AttentionMethod::*>(&setting.field)) {
      set->integer(setting.name, &(method->**number), static_cast<int32_t>(setting.min),
                   static_cast<int32_t>(setting.max), setting.hint, help);
    } else if (const auto* unit = std::get_if<kernels::BudgetUnit AttentionMethod::*>(&setting.field)) {
      set->choice(setting.name, &(method->**unit), kernels::parse_budget_unit, kernels::budget_unit_names(),
                  help);
    } else if (const auto* flag = std::get_if<bool AttentionMethod::*>(&setting.field)) {
      set->flag(setting.name, &(method->**flag), help);
    } else {
      set->real(setting.name, &method->parameters.values[std::get<size_t>(setting.field)], setting.min,
                setting.max, setting.hint, help);
    }
  }
}

}  // namespace

void declare_attention_options(OptionSet* set, AttentionMethod* method, EstimatorChoice choice) {
  declare_estimator_options(set, method, choice);
  set->choice("prefill", &method->prefill, kernels::parse_prefill, {"dense", "sampled"},
              "attention over the prompt: exact, or sampled as in decoding");
  declare_score_options(set, method);
}

void declare_estimator_options(OptionSet* set, AttentionMethod* method, EstimatorChoice choice) {
  const bool with_exact = choice == EstimatorChoice::kAny;
  set->choice("estimator", &method->estimator, kernels::parse_estimator, kernels::estimator_names(with_exact),
              kernels::estimators_help(with_exact).c_str());
  declare_estimator_settings(set, method);
}

void declare_estimator_settings(OptionSet* set, AttentionMethod* method) {
  declare(set, kernels::estimator_settings(), method);
}

void declare_score_options(OptionSet* set, AttentionMethod* method) {
  set->choice("score-stage", &method->score_stage, kernels::parse_score_stage,
              {"exact", "bernoulli", "bernoulli-strat"}, "how scores q K^T are computed");
  declare(set, kernels::score_settings(), method);
}

std::string unit_line(const AttentionMethod& method, const model::ModelIdentity& model) {
  if (method.unit == kernels::BudgetUnit::kSamples) return "";
  const int32_t heads = model.num_q_heads / model.num_kv_heads;
  return fmt::format("budgets are value rows of a KV head: {} {} one sample of each of its {} query heads\n",
                     heads, heads == 1 ? "is" : "are", heads);
}

void check_unit(const AttentionMethod& method) {
  if (!kernels::has_consistent_unit(method)) throw UsageError("--" + kernels::unit_fault(method));
}

}  // namespace allot::app
