// The learner behind ask and tell. A policy is a deterministic state machine: the same configuration and the
// same sequence of calls give the same proposals and the same state, bit for bit. It does no I/O, reads no
// clock and draws its randomness from Philox under its seed, so a replay of the history restores it exactly.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episode/question_result.h"
#include "episode/reward_kind.h"
#include "policy/bounds.h"
#include "policy/layer_costs.h"
#include "policy/schedule.h"

namespace allot::policy {

// One schedule to score.
struct Proposal {
  int64_t number = 0;  // 0, 1, 2, … in the order of asking
  int64_t group = 0;   // proposals of one group are scored on the same questions with the same sampling seed
  Schedule schedule = {};
  double log_prob = 0;  // of this schedule under the policy that drew it; 0 where the draw is deterministic
  int64_t policy_version = 0;  // updates the policy had made when it drew this
  // Questions of the training split on which to score it, each once; empty: the caller chooses them
  // by the group.
  std::optional<std::vector<uint32_t>> questions = {};
  // How many questions, where the caller chooses them; empty: as many as the run asks in every episode.
  // Within a group, a proposal with fewer questions gets the first of those that one with more gets. Where
  // there are fewer in all than it wants, it gets all.
  std::optional<int> num_questions = {};
  // What to measure of it; empty: what the run measures. The caller refuses a kind that workers cannot run.
  // Rewards of another kind than the run's are told like all, but are not in its learning curve.
  std::optional<RewardKind> reward_kind = {};
};

// What one proposal earned.
struct Outcome {
  int64_t number = 0;  // Proposal::number
  double reward = 0;   // mean of the scores; finite, in the range of the episode's kind of reward
  std::span<const QuestionResult> results = {};  // of each question, if the caller has them; not kept
  RewardKind kind = RewardKind::kAnswers;        // that was measured
};

enum class TellResult {
  kLearned,    // used, or kept for the update its group completes
  kStale,      // older than max_policy_lag versions, or its group was dropped: counted, not learned from
  kDuplicate,  // this proposal was told or given up before; nothing changed
  kUnknown,    // this number was never asked; nothing changed
};

// A max_policy_lag with which every outcome is learned from, however old.
inline constexpr int64_t kNoPolicyLagLimit = std::numeric_limits<int64_t>::max();

struct PolicyConfig {
  std::string name = "auto";  // one of policy_names()
  int layers = 0;
  int64_t total = 0;
  int32_t floor = 1;
  uint64_t seed = 0;
  int64_t max_policy_lag = 50;  // versions, or kNoPolicyLagLimit
  // What every schedule that is asked or recommended keeps besides.
  Bounds bounds = {};
  // The schedule that learning starts from: of `total`, each layer at least `floor` and within its bounds.
  // Without entries it is the even one, as close as the bounds let it.
  Schedule start = {};
  // Proposals of a lower number measure divergences where they name no kind. The others measure reward_kind,
  // the run's.
  int64_t divergence_episodes = 0;
  RewardKind reward_kind = RewardKind::kAnswers;
  // Values of parameters that the learner declares (policy/learner.h); one that is left out has its default.
  std::map<std::string, double> parameters = {};
};

// Throws InvalidArgument listing every field and parameter that is out of range, with its value and range,
// and every parameter that the learner does not declare.
void validate(const PolicyConfig& config);

// The configuration with other bounds and, where it has a start that does not keep them, the nearest that
// does. Throws InvalidArgument as validate() does, and for other exact layers, which are chosen when a run
// begins.
PolicyConfig rebound(PolicyConfig config, const Bounds& bounds);

// What a learner shows of its state: a number per layer and single numbers, with names for people to read:
// [a-z0-9_]+. A learner without a number per layer leaves per_layer empty.
struct Description {
  struct Scalar {
    std::string name;
    double value = 0;
    friend bool operator==(const Scalar&, const Scalar&) = default;
  };
  std::string layer_name = "share";
  std::vector<double> per_layer = {};  // [layers] or empty
  std::vector<Scalar> scalars = {};

  // The scalar of this name, or null.
  const double* find(std::string_view name) const;
  friend bool operator==(const Description&, const Description&) = default;
};

// What a learner expects of the schedule that it recommends, on new questions and in units of the reward.
struct Outlook {
  struct Estimate {
    double mean = 0;
    double low = 0;  // bounds of the central 95 %
    double high = 0;
    friend bool operator==(const Estimate&, const Estimate&) = default;
  };
  Estimate over_even;  // advantage over the even schedule
  // Over the schedule that learning started from, where that is another one.
  std::optional<Estimate> over_start = {};
  // How much better the best schedule would be, were everything known: no number of further episodes is
  // expected to bring more.
  double left_to_gain = 0;
  friend bool operator==(const Outlook&, const Outlook&) = default;
};

class Policy {
 public:
  virtual ~Policy() = default;

  // The next `count` proposals (count >= 1). Never blocks and never runs out of proposals: asking before
  // earlier outcomes are told only costs policy lag.
  virtual std::vector<Proposal> ask(int count) = 0;
  // Outcomes may come in any order, late, repeatedly or never. Throws InvalidArgument when the reward
  // is not finite.
  virtual TellResult tell(const Outcome& outcome) = 0;
  // Says that this proposal will never be told (its episode was given up); its group is completed or
  // dropped without it.
  virtual void give_up(int64_t number) = 0;

  // How many proposals it makes sense to have in flight: of more, some outcomes would be too old to learn
  // from when they come. Nothing where every outcome is learned from, however old.
  virtual std::optional<int64_t> useful_in_flight() const { return std::nullopt; }

  // From now on everything asked and recommended keeps these bounds in place of those before; what was asked
  // is told and learned from as before. Counts as an update. The configuration is then that of rebound(),
  // which throws where these are no bounds for it.
  virtual void bound(const Bounds& bounds) = 0;

  // The schedule to export: the apportioned mean of the policy, never the luckiest episode.
  virtual Schedule recommend() const = 0;
  // What people see of the learner after an update.
  virtual Description describe() const = 0;
  // Changes with updates only; nothing where the learner keeps no such estimates or has too few outcomes.
  virtual std::optional<Outlook> outlook() const { return std::nullopt; }
  // What it learned of layers, from which other totals follow; recommend() is the solution at its own.
  // Nothing where its shares of the budget are all that it knows.
  virtual std::optional<LayerCosts> costs() const { return std::nullopt; }
  // Updates made so far.
  virtual int64_t version() const = 0;
  // Equal for equal states; a replay of the history must give the recorded one after every update. By default
  // the FNV-1a hash of save(). A learner whose save() grows with the proposals in flight should hash only
  // what it has learned (StateDigest in policy/state.h): what was asked is in the history and compared there.
  virtual uint64_t digest() const;

  // The whole state as text; restore_policy(config, save()) behaves as this object does, bit for bit.
  virtual std::string save() const = 0;
};

// A learner's shares of the budget above the floor per layer, which sum to 1, with their entropy.
Description describe_shares(std::vector<double> shares);

// Shannon entropy of shares, in nats; log(layers) for uniform shares.
double entropy(const std::vector<double>& shares);

// The names of all learners; the first is the default.
std::vector<std::string> policy_names();
// Starts at PolicyConfig::start. Throws InvalidArgument as validate() does.
std::unique_ptr<Policy> make_policy(const PolicyConfig& config);
// Throws CorruptFile when `state` was not written by save() of a policy of this configuration.
std::unique_ptr<Policy> restore_policy(const PolicyConfig& config, std::string_view state);

}  // namespace allot::policy
