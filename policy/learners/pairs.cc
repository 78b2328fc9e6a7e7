// Symmetric two-level perturbations of the policy logits (after Spall's SPSA, "Multivariate stochastic
// approximation using a simultaneous perturbation gradient approximation", 1992). A pair scores theta + c d
// and theta - c d, d a vector of signs, on the same questions; the difference of its rewards estimates the
// slope along d. docs/policy.md holds the measurements behind the defaults.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "base/json.h"
#include "policy/learner.h"
#include "policy/multinomial.h"
#include "policy/perturbation.h"
#include "policy/state.h"

namespace allot::policy {
namespace {

using nlohmann::json;

// The defaults are measured in docs/policy.md.
constexpr Parameter kParameters[] = {
    {.name = "pairs_per_update",
     .whole = true,
     .initial = 4,
     .least = 1,
     .most = 100'000,
     .hint = "N",
     .help = "pairs of one update"},
    // At update 0 a share is multiplied or divided by about e^1.25 = 3.5.
    {.name = "perturbation",
     .initial = 1.25,
     .least = 1e-6,
     .most = 10,
     .hint = "C",
     .help = "added to and taken from each policy logit; at update k it is C / (k + 1)^decay"},
    {.name = "gain",
     .initial = 20,
     .least = 1e-9,
     .most = 1e6,
     .hint = "A",
     .help = "update k has gain A / (k + 1 + offset)^decay"},
    {.name = "gain_offset", .initial = 5, .least = 0, .most = 1e9, .hint = "K", .help = "offset of the gain"},
    {.name = "gain_decay", .initial = 0.8, .least = 0, .most = 1, .hint = "D", .help = "decay of the gain"},
    {.name = "perturbation_decay",
     .initial = 0.1,
     .least = 0,
     .most = 1,
     .hint = "D",
     .help = "decay of the perturbation"},
    {.name = "averaging",
     .whole = true,
     .later = true,
     .initial = 0,
     .least = 0,
     .most = 1000,
     .hint = "N",
     .help =
         "recommends the schedule of a mean of the logits, update k at weight about k^N; 0: of the last"}};

// Between neighbours -log of a divergence differs by about this many times what accuracies differ by
// (docs/policy.md), so its slopes are divided by it and both kinds climb with one gain.
constexpr double kDivergenceSlope = 4;

// What is larger the better a schedule is, in units of an accuracy.
double value_of(const Outcome& outcome) {
  const double utility = row_of(outcome.kind).utility(outcome.reward);
  return outcome.kind == RewardKind::kDivergence ? utility / kDivergenceSlope : utility;
}

class Pairs final : public Policy {
 public:
  explicit Pairs(const PolicyConfig& config)
      : config_(config),
        pairs_per_update_(static_cast<int>(parameter(config, "pairs_per_update"))),
        first_perturbation_(parameter(config, "perturbation")),
        perturbation_decay_(parameter(config, "perturbation_decay")),
        gain_(parameter(config, "gain")),
        gain_offset_(parameter(config, "gain_offset")),
        gain_decay_(parameter(config, "gain_decay")),
        averaging_(static_cast<int>(parameter(config, "averaging"))),
        directions_(config.layers, config.seed),
        logits_(start_logits(config)),
        mean_logits_(logits_),
        slope_sum_(static_cast<size_t>(config.layers)) {}
  // Continues from the fields that save() wrote.
  Pairs(const PolicyConfig& config, const json& learner);

  std::vector<Proposal> ask(int count) override;
  TellResult tell(const Outcome& outcome) override;
  void give_up(int64_t number) override;
  std::optional<int64_t> useful_in_flight() const override {
    return policy::useful_in_flight(config_, int64_t{2} * pairs_per_update_);
  }
  void bound(const Bounds& bounds) override;
  Schedule recommend() const override;
  Description describe() const override { return describe_shares(softmax(logits_)); }
  int64_t version() const override { return version_; }
  std::string save() const override;
  // Without mean_logits_: the logits of all updates fix it, and histories from before it replay.
  uint64_t digest() const override {
    return StateDigest()
        .add(logits_)
        .add(version_)
        .add(next_number_)
        .add(slope_sum_)
        .add(int64_t{pairs_in_sum_})
        .value();
  }

 private:
  enum class Half { kOpen, kTold, kGivenUp };
  // Proposals 2 p and 2 p + 1 are the halves of pair p: theta + c d and theta - c d.
  struct Pair {
    int64_t version = 0;            // when it was drawn; fixes c
    std::vector<double> logits;     // theta then, [layers]
    std::vector<double> direction;  // d, [layers]
    std::array<Half, 2> halves{};
    std::array<double, 2> rewards{};  // as value_of() gives them
  };

  // c of a pair drawn at `version`.
  double perturbation(int64_t version) const;
  // The schedule of theta + sign * c * direction at the current theta.
  Schedule perturbed(const std::vector<double>& direction, double sign) const;
  // Adds the slope that a complete pair measured to the sum, and updates when the sum is complete. The
  // further theta has moved since the pair was drawn, the less the slope counts: its weight is 1 / (1 + (d /
  // c)^2), where d is the largest move of a logit.
  void learn(const Pair& pair);
  double weight(const Pair& pair) const;
  void update();
  // Raises the logits of layers whose mean fell below half a sample above the floor. Lower than that, no
  // perturbation reaches a whole sample, and nothing would bring the layer back.
  void keep_in_reach();

  PolicyConfig config_;
  // The parameters, read once.
  int pairs_per_update_;
  double first_perturbation_;
  double perturbation_decay_;
  double gain_;
  double gain_offset_;
  double gain_decay_;
  int averaging_;
  PerturbationDirections directions_;
  std::vector<double> logits_;  // theta, mean 0, from those of the start, [layers]
  // What the recommendation is made of. Single steps go past the optimum and back, and a mean of them does
  // not (polynomial-decay averaging: Shamir and Zhang, "Stochastic gradient descent for non-smooth
  // optimization", 2013).
  std::vector<double> mean_logits_;  // [layers]
  int64_t version_ = 0;
  int64_t next_number_ = 0;
  std::map<int64_t, Pair> pairs_;    // those with an open half
  std::optional<Schedule> waiting_;  // second half of the newest pair, until it is asked
  std::vector<double> slope_sum_;    // of the next update, [layers]
  int pairs_in_sum_ = 0;
};

Pairs::Pairs(const PolicyConfig& config, const json& learner) : Pairs(config) {
  logits_ = read_logits(learner, "logits", config.layers);
  mean_logits_ =
      learner.contains("mean_logits") ? read_logits(learner, "mean_logits", config.layers) : logits_;
  version_ = learner.at("version");
  next_number_ = learner.at("next_number");
  slope_sum_ = read_logits(learner, "slope_sum", config.layers);
  pairs_in_sum_ = learner.at("pairs_in_sum");
  require_state(version_ >= 0 && next_number_ >= 0, "version and next_number must be at least 0");
  require_state(pairs_in_sum_ >= 0 && pairs_in_sum_ < pairs_per_update_,
                "pairs_in_sum is " + std::to_string(pairs_in_sum_) + ", expected 0 to " +
                    std::to_string(pairs_per_update_ - 1));
  for (const json& entry : read_list(learner, "pairs")) {
    const int64_t number = entry.at("pair");
    require_state(number >= 0, "pair " + std::to_string(number) + " was never asked");
    Pair pair{.version = entry.at("version"),
              .logits = read_logits(entry, "logits", config_.layers),
              .direction = directions_.of(number),
              .rewards = entry.at("rewards")};
    const auto halves = entry.at("halves").get<std::array<int, 2>>();
    for (size_t half = 0; half < 2; ++half) {
      require_state(halves[half] >= 0 && halves[half] <= 2, "a half is " + std::to_string(halves[half]));
      pair.halves[half] = static_cast<Half>(halves[half]);
    }
    require_state(2 * number < next_number_ && pair.version >= 0 && pair.version <= version_,
                  "pair " + std::to_string(number) + " of version " + std::to_string(pair.version) +
                      " was never asked");
    pairs_.emplace(number, pair);
  }
  if (next_number_ % 2 == 1) {
    waiting_ = Schedule{learner.at("waiting").get<std::vector<int32_t>>()};
    check_schedule(*waiting_, config_.layers, config_.floor, config_.total);
  }
}

double Pairs::perturbation(int64_t version) const {
  return first_perturbation_ / std::pow(static_cast<double>(version + 1), perturbation_decay_);
}

Schedule Pairs::perturbed(const std::vector<double>& direction, double sign) const {
  std::vector<double> logits = logits_;
  const double step = sign * perturbation(version_);
  for (size_t layer = 0; layer < logits.size(); ++layer) logits[layer] += step * direction[layer];
  return apportion(softmax(logits), config_);
}

std::vector<Proposal> Pairs::ask(int count) {
  std::vector<Proposal> proposals;
  for (; count > 0; --count) {
    const int64_t number = next_number_++;
    const int64_t pair = number / 2;
    if (!waiting_) {
      Pair drawn{.version = version_, .logits = logits_, .direction = directions_.of(pair)};
      waiting_ = perturbed(drawn.direction, -1);
      proposals.push_back({number, pair, perturbed(drawn.direction, 1), 0, version_});
      pairs_.emplace(pair, std::move(drawn));
    } else {
      proposals.push_back({number, pair, *std::exchange(waiting_, std::nullopt), 0, pairs_.at(pair).version});
    }
  }
  return proposals;
}

TellResult Pairs::tell(const Outcome& outcome) {
  check_reward(outcome);
  if (outcome.number < 0 || outcome.number >= next_number_) return TellResult::kUnknown;
  const auto found = pairs_.find(outcome.number / 2);
  const auto half = static_cast<size_t>(outcome.number % 2);
  if (found == pairs_.end() || found->second.halves[half] != Half::kOpen) return TellResult::kDuplicate;
  found->second.halves[half] = Half::kTold;
  found->second.rewards[half] = value_of(outcome);
  const Half other = found->second.halves[1 - half];
  const bool stale = version_ - found->second.version > config_.max_policy_lag;
  if (other == Half::kOpen) return stale ? TellResult::kStale : TellResult::kLearned;
  const Pair pair = std::move(found->second);
  pairs_.erase(found);
  if (other == Half::kGivenUp || stale) return TellResult::kStale;
  learn(pair);
  return TellResult::kLearned;
}

void Pairs::give_up(int64_t number) {
  if (number < 0 || number >= next_number_) return;
  const auto found = pairs_.find(number / 2);
  const auto half = static_cast<size_t>(number % 2);
  if (found == pairs_.end() || found->second.halves[half] != Half::kOpen) return;
  found->second.halves[half] = Half::kGivenUp;
  if (found->second.halves[1 - half] != Half::kOpen) pairs_.erase(found);
}

void Pairs::learn(const Pair& pair) {
  const double difference = pair.rewards[0] - pair.rewards[1];
  const double slope = weight(pair) * difference / (2 * perturbation(pair.version));
  for (size_t layer = 0; layer < slope_sum_.size(); ++layer) {
    slope_sum_[layer] += slope * pair.direction[layer];
  }
  if (++pairs_in_sum_ == pairs_per_update_) update();
}

double Pairs::weight(const Pair& pair) const {
  double move = 0;
  for (size_t layer = 0; layer < logits_.size(); ++layer) {
    move = std::max(move, std::abs(logits_[layer] - pair.logits[layer]));
  }
  const double relative = move / perturbation(pair.version);
  return 1 / (1 + relative * relative);
}

void Pairs::update() {
  const double gain = gain_ / std::pow(static_cast<double>(version_ + 1) + gain_offset_, gain_decay_);
  for (size_t layer = 0; layer < logits_.size(); ++layer) {
    logits_[layer] += gain * slope_sum_[layer] / pairs_per_update_;
  }
  keep_in_reach();
  // A constant added to all logits changes no share; taking the mean out keeps the numbers small.
  const double mean = std::accumulate(logits_.begin(), logits_.end(), 0.0) / config_.layers;
  for (double& logit : logits_) logit -= mean;
  slope_sum_.assign(slope_sum_.size(), 0);
  pairs_in_sum_ = 0;
  ++version_;
  const double part = averaging_ == 0 ? 1 : (averaging_ + 1.0) / static_cast<double>(averaging_ + version_);
  for (size_t layer = 0; layer < logits_.size(); ++layer)
    mean_logits_[layer] += part * (logits_[layer] - mean_logits_[layer]);
}

void Pairs::keep_in_reach() {
  const auto spread = static_cast<double>(config_.total - int64_t{config_.layers} * config_.floor);
  const double least_share = 0.5 / std::max<double>(spread, config_.layers);
  const double largest = *std::ranges::max_element(logits_);
  double sum = 0;
  for (const double logit : logits_) sum += std::exp(logit - largest);
  const double least_logit = largest + std::log(sum) + std::log(least_share);
  for (double& logit : logits_) logit = std::max(logit, least_logit);
}

void Pairs::bound(const Bounds& bounds) {
  config_ = rebound(config_, bounds);
  if (waiting_) waiting_ = kept(*waiting_, config_.floor, limits_of(config_));
  ++version_;
}

Schedule Pairs::recommend() const {
  return apportion(softmax(mean_logits_), config_);
}

std::string Pairs::save() const {
  json pairs = json::array();
  for (const auto& [number, pair] : pairs_) {
    pairs.push_back({{"pair", number},
                     {"version", pair.version},
                     {"logits", pair.logits},
                     {"halves", pair.halves},
                     {"rewards", pair.rewards}});
  }
  return write_state(config_, {{"logits", logits_},
                               {"mean_logits", mean_logits_},
                               {"version", version_},
                               {"next_number", next_number_},
                               {"pairs", std::move(pairs)},
                               {"waiting", waiting_ ? json(waiting_->samples) : json()},
                               {"slope_sum", slope_sum_},
                               {"pairs_in_sum", pairs_in_sum_}});
}

}  // namespace

namespace learner_rows {

extern const Learner pairs{
    .name = "pairs",
    .summary = "scores a perturbation of the policy's logits and its mirror image on the same questions",
    .parameters = kParameters,
    .mixes_kinds = true,
    .make = [](const PolicyConfig& config) -> std::unique_ptr<Policy> {
      return std::make_unique<Pairs>(config);
    },
    .restore = [](const PolicyConfig& config, const json& state) -> std::unique_ptr<Policy> {
      return std::make_unique<Pairs>(config, state);
    }};

}  // namespace learner_rows
}  // namespace allot::policy
