// REINFORCE over the multinomial policy: what its two learners, `reinforce-paper` and `reinforce`, share.
// They differ in the gradient.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "policy/learner.h"

namespace allot::policy {

// What one outcome contributes to the gradient.
struct ReinforceSample {
  std::vector<int32_t> counts;  // [layers], the schedule above the floor
  double reward = 0;            // its utility (episode/reward_kind.h)
  double log_prob = 0;          // of the counts when they were asked
};

// The gradient of the expected reward by the logits, estimated from the samples of one update. [layers]
using Gradient = std::vector<double> (*)(const std::vector<ReinforceSample>& samples,
                                         const std::vector<double>& logits);

// Algorithm 1, line 13: mean over samples of (reward - mean reward) * (counts - draws * p),
// p = softmax(logits). [layers]
std::vector<double> paper_gradient(const std::vector<ReinforceSample>& samples,
                                   const std::vector<double>& logits);

// Mean over samples of w * (reward - b) * (counts - draws * p) with w = exp(log_prob now - log_prob asked),
// the exact likelihood ratio, and b the w-weighted mean reward of the other samples. Equals paper_gradient *
// K / (K - 1) when no sample is late. At least two samples. [layers]
std::vector<double> corrected_gradient(const std::vector<ReinforceSample>& samples,
                                       const std::vector<double>& logits);

// sum += scale * vector
void add_scaled(std::vector<double>& sum, double scale, const std::vector<double>& vector);

// The parameters of both learners.
inline constexpr Parameter kReinforceParameters[] = {
    {.name = "learning_rate", .initial = 0.02, .least = 1e-9, .most = 1e3, .hint = "A", .help = "step size"},
    {.name = "episodes_per_update",
     .whole = true,
     .initial = 10,
     .least = 2,
     .most = 100'000,
     .hint = "N",
     .help = "episodes of one update"}};

class Reinforce final : public Policy {
 public:
  Reinforce(const PolicyConfig& config, Gradient gradient);
  // Continues from the fields that save() wrote.
  Reinforce(const PolicyConfig& config, Gradient gradient, const nlohmann::json& learner);

  std::vector<Proposal> ask(int count) override;
  TellResult tell(const Outcome& outcome) override;
  void give_up(int64_t number) override;
  std::optional<int64_t> useful_in_flight() const override;
  void bound(const Bounds& bounds) override;
  Schedule recommend() const override;
  Description describe() const override;
  int64_t version() const override { return version_; }
  std::string save() const override;
  uint64_t digest() const override;

 private:
  struct Asked {
    std::vector<int32_t> counts;
    double log_prob = 0;
    int64_t version = 0;
  };

  // With a floor, layers * floor samples are given out first, and only the rest is drawn.
  int64_t draws() const { return config_.total - int64_t{config_.layers} * config_.floor; }
  void update();

  PolicyConfig config_;
  Gradient gradient_;
  // The parameters, read once.
  double learning_rate_;
  int episodes_per_update_;
  std::vector<double> logits_;  // theta, [layers]
  int64_t version_ = 0;
  int64_t next_number_ = 0;
  std::map<int64_t, Asked> asked_;        // neither told nor given up
  std::vector<ReinforceSample> samples_;  // of the next update
};

}  // namespace allot::policy
