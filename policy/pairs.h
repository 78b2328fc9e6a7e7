// Symmetric two-level perturbations of the policy logits (after Spall's SPSA, "Multivariate stochastic
// approximation using a simultaneous perturbation gradient approximation", 1992). A pair scores theta + c d
// and theta - c d, d a vector of signs, on the same questions; the difference of its rewards estimates the
// slope along d. docs/policy.md holds the measurements behind the defaults.
#pragma once

#include <array>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "policy/perturbation.h"
#include "policy/policy.h"

namespace allot::policy {

class Pairs final : public Policy {
 public:
  explicit Pairs(const PolicyConfig& config);
  // Continues from the fields that save() wrote.
  Pairs(const PolicyConfig& config, const nlohmann::json& learner);

  std::vector<Proposal> ask(int count) override;
  TellResult tell(const Outcome& outcome) override;
  void set_aside(int64_t number) override;
  Schedule recommend() const override;
  std::vector<double> shares() const override;
  int64_t version() const override { return version_; }
  std::string save() const override;

 private:
  enum class Half { kOpen, kTold, kSetAside };
  // Proposals 2 p and 2 p + 1 are the halves of pair p: theta + c d and theta - c d.
  struct Pair {
    int64_t version = 0;            // when it was drawn; fixes c
    std::vector<double> logits;     // theta then, [layers]
    std::vector<double> direction;  // d, [layers]
    std::array<Half, 2> halves{};
    std::array<double, 2> rewards{};
  };

  // c of a pair drawn at `version`.
  double perturbation(int64_t version) const;
  // The schedule of theta + sign * c * direction at the present theta.
  Schedule perturbed(const std::vector<double>& direction, double sign) const;
  // Adds the slope that a complete pair measured to the sum, and updates when the sum is complete. The slope
  // counts the less the further theta has moved since the pair was drawn: 1 / (1 + (d / c)^2), d the largest
  // move of a logit.
  void learn(const Pair& pair);
  double weight(const Pair& pair) const;
  void update();
  // Raises the logits of layers whose mean fell below half a sample above the floor: lower, no perturbation
  // reaches a whole sample and nothing would bring the layer back.
  void keep_in_reach();

  PolicyConfig config_;
  PerturbationDirections directions_;
  std::vector<double> logits_;  // theta, mean 0, [layers]
  int64_t version_ = 0;
  int64_t next_number_ = 0;
  std::map<int64_t, Pair> pairs_;    // those with an open half
  std::optional<Schedule> waiting_;  // second half of the newest pair, not yet asked
  std::vector<double> slope_sum_;    // of the update under way, [layers]
  int pairs_in_sum_ = 0;
};

}  // namespace allot::policy
