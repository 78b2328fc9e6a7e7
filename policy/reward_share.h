// How the learner `auto` reads a reward as the share of right answers that its model of answers learns from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "policy/response_likelihood.h"

namespace allot::policy {

class RewardShare {
 public:
  // From the first outcomes, at least one: rewards stay as they are where all of these are within 0 to 1;
  // else a logistic curve around their mean bends them. Later calls change nothing.
  void learn(std::span<const ResponseOutcome> outcomes);
  double of(double reward) const;
  // Rewards have units of their own.
  bool bends() const { return scale_ != 0; }

  nlohmann::json save() const;
  // May throw what nlohmann::json throws.
  void restore(const nlohmann::json& saved);

 private:
  bool known_ = false;
  double centre_ = 0;
  double scale_ = 0;  // 0: shares stay as they are
};

}  // namespace allot::policy
