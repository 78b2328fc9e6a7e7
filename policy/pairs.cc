#include "policy/pairs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "policy/multinomial.h"
#include "policy/state.h"

namespace allot::policy {

using nlohmann::json;

Pairs::Pairs(const PolicyConfig& config)
    : config_(config),
      directions_(config.layers, config.seed),
      logits_(static_cast<size_t>(config.layers)),
      slope_sum_(static_cast<size_t>(config.layers)) {}

Pairs::Pairs(const PolicyConfig& config, const json& learner)
    : config_(config),
      directions_(config.layers, config.seed),
      logits_(read_logits(learner, "logits", config.layers)),
      version_(learner.at("version")),
      next_number_(learner.at("next_number")),
      slope_sum_(read_logits(learner, "slope_sum", config.layers)),
      pairs_in_sum_(learner.at("pairs_in_sum")) {
  require_state(version_ >= 0 && next_number_ >= 0, "version and next_number must be at least 0");
  require_state(pairs_in_sum_ >= 0 && pairs_in_sum_ < config_.pairs_per_update,
                "pairs_in_sum is " + std::to_string(pairs_in_sum_) + ", expected 0 to " +
                    std::to_string(config_.pairs_per_update - 1));
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
  return config_.perturbation / std::pow(static_cast<double>(version + 1), config_.perturbation_decay);
}

Schedule Pairs::perturbed(const std::vector<double>& direction, double sign) const {
  std::vector<double> logits = logits_;
  const double step = sign * perturbation(version_);
  for (size_t layer = 0; layer < logits.size(); ++layer) logits[layer] += step * direction[layer];
  return apportion(softmax(logits), config_.total, config_.floor);
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
  found->second.rewards[half] = outcome.reward;
  const Half other = found->second.halves[1 - half];
  const bool stale = version_ - found->second.version > config_.max_policy_lag;
  if (other == Half::kOpen) return stale ? TellResult::kStale : TellResult::kLearned;
  const Pair pair = std::move(found->second);
  pairs_.erase(found);
  if (other == Half::kSetAside || stale) return TellResult::kStale;
  learn(pair);
  return TellResult::kLearned;
}

void Pairs::set_aside(int64_t number) {
  if (number < 0 || number >= next_number_) return;
  const auto found = pairs_.find(number / 2);
  const auto half = static_cast<size_t>(number % 2);
  if (found == pairs_.end() || found->second.halves[half] != Half::kOpen) return;
  found->second.halves[half] = Half::kSetAside;
  if (found->second.halves[1 - half] != Half::kOpen) pairs_.erase(found);
}

void Pairs::learn(const Pair& pair) {
  const double difference = pair.rewards[0] - pair.rewards[1];
  const double slope = weight(pair) * difference / (2 * perturbation(pair.version));
  for (size_t layer = 0; layer < slope_sum_.size(); ++layer) {
    slope_sum_[layer] += slope * pair.direction[layer];
  }
  if (++pairs_in_sum_ == config_.pairs_per_update) update();
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
  const double gain =
      config_.gain / std::pow(static_cast<double>(version_ + 1) + config_.gain_offset, config_.gain_decay);
  for (size_t layer = 0; layer < logits_.size(); ++layer) {
    logits_[layer] += gain * slope_sum_[layer] / config_.pairs_per_update;
  }
  keep_in_reach();
  // A constant added to all logits changes no share; taking the mean out keeps the numbers small.
  const double mean = std::accumulate(logits_.begin(), logits_.end(), 0.0) / config_.layers;
  for (double& logit : logits_) logit -= mean;
  slope_sum_.assign(slope_sum_.size(), 0);
  pairs_in_sum_ = 0;
  ++version_;
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

Schedule Pairs::recommend() const {
  return apportion(shares(), config_.total, config_.floor);
}

std::vector<double> Pairs::shares() const {
  return softmax(logits_);
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
                               {"version", version_},
                               {"next_number", next_number_},
                               {"pairs", std::move(pairs)},
                               {"waiting", waiting_ ? json(waiting_->samples) : json()},
                               {"slope_sum", slope_sum_},
                               {"pairs_in_sum", pairs_in_sum_}});
}

}  // namespace allot::policy
