#include "app/run/attention_options.h"

#include <algorithm>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace allot::app {
namespace {

using kernels::AttentionMethod;
using kernels::MethodSetting;

void declare(OptionSet* set, std::span<const MethodSetting> settings, AttentionMethod* method) {
  for (const MethodSetting& setting : settings) {
    if (const auto* number = std::get_if<int32_t AttentionMethod::*>(&setting.field)) {
      set->integer(setting.name, &(method->**number), setting.min, setting.max, setting.hint, setting.help);
    } else {
      set->flag(setting.name, &(method->*std::get<bool AttentionMethod::*>(setting.field)), setting.help);
    }
  }
}

}  // namespace

void declare_attention_options(OptionSet* set, AttentionMethod* method, EstimatorChoice choice) {
  std::vector<std::string> estimators = {"iid", "strat", "sys", "prop", "flash", "threshold", "topk"};
  if (choice == EstimatorChoice::kAny) estimators.insert(estimators.begin(), "exact");
  set->choice("estimator", &method->estimator, kernels::parse_estimator, estimators,
              "how attention is estimated from its samples");
  set->choice("prefill", &method->prefill, kernels::parse_prefill, {"dense", "sampled"},
              "attention over the prompt: exact, or sampled as in decoding");
  declare_estimator_settings(set, method);
  declare_score_options(set, method);
}

void declare_estimator_settings(OptionSet* set, AttentionMethod* method) {
  declare(set, kernels::estimator_settings(), method);
}

void declare_score_options(OptionSet* set, AttentionMethod* method) {
  set->choice("score-stage", &method->score_stage, kernels::parse_score_stage,
              {"exact", "bernoulli", "bernoulli-strat"}, "how scores q K^T are computed");
  declare(set, kernels::score_settings(), method);
}

}  // namespace allot::app
