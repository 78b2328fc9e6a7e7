// `reinforce` corrects two things in Algorithm 1: late outcomes are weighted by how likely the present
// policy is to draw their schedule, and the baseline of an outcome leaves that outcome out, so that the
// gradient is unbiased.
#include <cmath>

#include "base/json.h"
#include "policy/multinomial.h"
#include "policy/reinforce.h"

namespace allot::policy {

std::vector<double> corrected_gradient(const std::vector<ReinforceSample>& samples,
                                       const std::vector<double>& logits) {
  std::vector<double> weights;
  double weight_sum = 0;
  double reward_sum = 0;
  for (const auto& sample : samples) {
    weights.push_back(std::exp(multinomial_log_prob(sample.counts, logits) - sample.log_prob));
    weight_sum += weights.back();
    reward_sum += weights.back() * sample.reward;
  }
  std::vector<double> gradient(logits.size());
  for (size_t k = 0; k < samples.size(); ++k) {
    const double others = weight_sum - weights[k];
    const double baseline = others > 0 ? (reward_sum - weights[k] * samples[k].reward) / others : 0;
    add_scaled(gradient, weights[k] * (samples[k].reward - baseline) / static_cast<double>(samples.size()),
               multinomial_score(samples[k].counts, logits));
  }
  return gradient;
}

namespace learner_rows {

extern const Learner reinforce{
    .name = "reinforce",
    .summary =
        "Algorithm 1 with an unbiased gradient: late outcomes are weighted, and no outcome is part of "
        "its own baseline",
    .parameters = kReinforceParameters,
    .make = [](const PolicyConfig& config) -> std::unique_ptr<Policy> {
      return std::make_unique<Reinforce>(config, corrected_gradient);
    },
    .restore = [](const PolicyConfig& config, const nlohmann::json& state) -> std::unique_ptr<Policy> {
      return std::make_unique<Reinforce>(config, corrected_gradient, state);
    }};

}  // namespace learner_rows
}  // namespace allot::policy
