// `reinforce-paper` is Algorithm 1 of the S2ANTA paper as published.
#include "base/json.h"

#include "policy/multinomial.h"
#include "policy/reinforce.h"

namespace allot::policy {

std::vector<double> paper_gradient(const std::vector<ReinforceSample>& samples,
                                   const std::vector<double>& logits) {
  const auto num_samples = static_cast<double>(samples.size());
  double baseline = 0;
  for (const auto& sample : samples) baseline += sample.reward / num_samples;
  std::vector<double> gradient(logits.size());
  for (const auto& sample : samples) {
    add_scaled(gradient, (sample.reward - baseline) / num_samples, multinomial_score(sample.counts, logits));
  }
  return gradient;
}

namespace learner_rows {

extern const Learner reinforce_paper{
    .name = "reinforce-paper",
    .summary = "Algorithm 1 of the S2ANTA paper as published",
    .parameters = kReinforceParameters,
    // The paper learns from every outcome (Appendix L).
    .max_policy_lag = kNoPolicyLagLimit,
    .make = [](const PolicyConfig& config) -> std::unique_ptr<Policy> {
      return std::make_unique<Reinforce>(config, paper_gradient);
    },
    .restore = [](const PolicyConfig& config, const nlohmann::json& state) -> std::unique_ptr<Policy> {
      return std::make_unique<Reinforce>(config, paper_gradient, state);
    }};

}  // namespace learner_rows
}  // namespace allot::policy
