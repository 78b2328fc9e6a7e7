// The learner behind ask and tell. A policy is a deterministic state machine: the same configuration and the
// same sequence of calls give the same proposals and the same state, bit for bit. It does no I/O, reads no
// clock and draws its randomness from Philox under its seed, so a replay of the history restores it exactly.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "policy/schedule.h"

namespace allot::policy {

// One schedule to score.
struct Proposal {
  int64_t number = 0;  // 0, 1, 2, … in the order of asking
  int64_t group = 0;   // proposals of one group are scored on the same questions with the same sampling seed
  Schedule schedule;
  double log_prob = 0;  // of this schedule under the policy that drew it; 0 where the draw is deterministic
  int64_t policy_version = 0;  // updates the policy had made when it drew this
};

// Mean reward of one proposal; reward in [0, 1].
struct Outcome {
  int64_t number = 0;  // Proposal::number
  double reward = 0;
};

enum class TellResult {
  kLearned,    // used, or kept for the update its group completes
  kStale,      // older than max_policy_lag versions, or its group was dropped: counted, not learned from
  kDuplicate,  // this proposal was told or set aside before; nothing changed
  kUnknown,    // this number was never asked; nothing changed
};

// As max_policy_lag: every outcome is learned from, however old.
inline constexpr int64_t kNoPolicyLagLimit = std::numeric_limits<int64_t>::max();

struct PolicyConfig {
  std::string name = "pairs";  // one of policy_names()
  int layers = 0;
  int64_t total = 0;
  int32_t floor = 1;
  uint64_t seed = 0;
  int64_t max_policy_lag = 50;  // versions, or kNoPolicyLagLimit
  // reinforce-paper (Algorithm 1) and reinforce
  double learning_rate = 0.02;
  int episodes_per_update = 10;
  // pairs (symmetric two-level perturbations of the policy logits); defaults measured in docs/policy.md
  int pairs_per_update = 4;
  // c_k = perturbation / (k + 1)^perturbation_decay, k = version; at k = 0 a share is multiplied or divided
  // by about e^1.25 = 3.5.
  double perturbation = 1.25;
  double perturbation_decay = 0.1;
  // a_k = gain / (k + 1 + gain_offset)^gain_decay
  double gain = 20;
  double gain_offset = 5;
  double gain_decay = 0.8;
};

// Throws InvalidArgument listing every field that is out of range, with its value and range.
void validate(const PolicyConfig& config);

class Policy {
 public:
  virtual ~Policy() = default;

  // The next `count` proposals (count >= 1). Never blocks and never runs dry: asking ahead of the answers
  // only costs lag.
  virtual std::vector<Proposal> ask(int count) = 0;
  // Outcomes come in any order, late, repeated or never. Throws InvalidArgument when the reward is not within
  // [0, 1].
  virtual TellResult tell(const Outcome& outcome) = 0;
  // This proposal will never be told (its episode was given up); its group is completed or dropped without
  // it.
  virtual void set_aside(int64_t number) = 0;

  // The schedule to export: the apportioned mean of the policy, never the luckiest episode.
  virtual Schedule recommend() const = 0;
  // Share of the budget above the floor per layer, sums to 1. [layers]
  virtual std::vector<double> shares() const = 0;
  // Updates made so far.
  virtual int64_t version() const = 0;

  // The whole state as text; restore_policy(config, save()) behaves as this object does, bit for bit.
  virtual std::string save() const = 0;
};

// Shannon entropy of shares, in nats; log(layers) for uniform shares.
double entropy(const std::vector<double>& shares);

// "pairs", "reinforce-paper", "reinforce".
std::vector<std::string> policy_names();
// What max_policy_lag is of a policy unless its user says otherwise: 50 versions, but no limit for
// reinforce-paper, since the paper learns from every outcome.
int64_t default_max_policy_lag(std::string_view name);
// Starts at equal shares. Throws InvalidArgument as validate() does.
std::unique_ptr<Policy> make_policy(const PolicyConfig& config);
// Throws CorruptFile when `state` was not written by save() of a policy of this configuration.
std::unique_ptr<Policy> restore_policy(const PolicyConfig& config, std::string_view state);

}  // namespace allot::policy
