#include "kernels/method.h"

#include <spdlog/fmt/fmt.h>

namespace allot::kernels {
namespace {

constexpr MethodSetting kEstimatorSettings[] = {
    {"tile", &AttentionMethod::tile, 1, 1 << 20, "KEYS", "keys per tile of prop and flash"},
};
constexpr MethodSetting kScoreSettings[] = {
    {"score-budget", &AttentionMethod::score_budget, 0, 1 << 20, "B",
     "Bernoulli draws of a query (score stages other than exact)"},
    {"mean-group-query", &AttentionMethod::mean_group_query, 0, 1, "",
     "Bernoulli: draw once per head group, from its mean query"},
};

}  // namespace

std::span<const MethodSetting> estimator_settings() {
  return kEstimatorSettings;
}

std::span<const MethodSetting> score_settings() {
  return kScoreSettings;
}

std::string describe(const AttentionMethod& method) {
  const bool tiled = method.estimator == Estimator::kProp || method.estimator == Estimator::kFlash;
  return fmt::format("{}{}, prefill {}, scores {}", name(method.estimator),
                     tiled ? fmt::format(" in tiles of {} keys", method.tile) : "", name(method.prefill),
                     describe_scores(method));
}

std::string describe_scores(const AttentionMethod& method) {
  std::string text(name(method.score_stage));
  if (method.score_budget > 0) text += fmt::format(" with budget {}", method.score_budget);
  if (method.mean_group_query) text += " by mean group query";
  return text;
}

}  // namespace allot::kernels
