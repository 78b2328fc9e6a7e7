// REINFORCE over the multinomial policy. `reinforce-paper` is Algorithm 1 of the S2ANTA paper as published;
// `reinforce` corrects two things in it: late outcomes are weighted by how likely the present policy is to
// draw their schedule, and the baseline of an outcome leaves that outcome out, so that the gradient is
// unbiased.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>

#include "policy/policy.h"

namespace allot::policy {

// What one outcome gives the gradient.
struct ReinforceSample {
  std::vector<int32_t> counts;  // [layers], the schedule above the floor
  double reward = 0;
  double log_prob = 0;  // of the counts when they were asked
};

// Algorithm 1, line 13: mean over samples of (reward - mean reward) * (counts - draws * p), p =
// softmax(logits). [layers]
std::vector<double> paper_gradient(const std::vector<ReinforceSample>& samples,
                                   const std::vector<double>& logits);

// Mean over samples of w * (reward - b) * (counts - draws * p) with w = exp(log_prob now - log_prob asked),
// the exact likelihood ratio, and b the w-weighted mean reward of the other samples. Equals paper_gradient *
// K / (K - 1) when no sample is late. At least two samples. [layers]
std::vector<double> corrected_gradient(const std::vector<ReinforceSample>& samples,
                                       const std::vector<double>& logits);

class Reinforce final : public Policy {
 public:
  explicit Reinforce(const PolicyConfig& config);
  // Continues from the fields that save() wrote.
  Reinforce(const PolicyConfig& config, const nlohmann::json& learner);

  std::vector<Proposal> ask(int count) override;
  TellResult tell(const Outcome& outcome) override;
  void set_aside(int64_t number) override;
  Schedule recommend() const override;
  std::vector<double> shares() const override;
  int64_t version() const override { return version_; }
  std::string save() const override;

 private:
  struct Asked {
    std::vector<int32_t> counts;
    double log_prob = 0;
    int64_t version = 0;
  };

  // With a floor, layers * floor samples are dealt out first and only the rest is drawn.
  int64_t draws() const { return config_.total - int64_t{config_.layers} * config_.floor; }
  void update();

  PolicyConfig config_;
  std::vector<double> logits_;  // theta, [layers]
  int64_t version_ = 0;
  int64_t next_number_ = 0;
  std::map<int64_t, Asked> asked_;        // neither told nor set aside
  std::vector<ReinforceSample> samples_;  // of the update under way
};

}  // namespace allot::policy
