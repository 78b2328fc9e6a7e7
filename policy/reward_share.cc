#include "policy/reward_share.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace allot::policy {

void RewardShare::learn(std::span<const ResponseOutcome> outcomes) {
  if (known_) return;
  known_ = true;
  const auto is_share = [](const ResponseOutcome& outcome) {
    return outcome.reward >= 0 && outcome.reward <= 1;
  };
  if (std::ranges::all_of(outcomes, is_share)) return;
  const auto count = static_cast<double>(outcomes.size());
  double square = 0;
  for (const ResponseOutcome& outcome : outcomes) centre_ += outcome.reward / count;
  for (const ResponseOutcome& outcome : outcomes) square += std::pow(outcome.reward - centre_, 2) / count;
  scale_ = square > 0 ? std::sqrt(square) : 1;
}

double RewardShare::of(double reward) const {
  if (scale_ == 0) return std::clamp(reward, 0.0, 1.0);
  return 1 / (1 + std::exp((centre_ - reward) / scale_));
}

nlohmann::json RewardShare::save() const {
  return {{"known", known_}, {"centre", centre_}, {"scale", scale_}};
}

void RewardShare::restore(const nlohmann::json& saved) {
  known_ = saved.at("known");
  centre_ = saved.at("centre");
  scale_ = saved.at("scale");
}

}  // namespace allot::policy
