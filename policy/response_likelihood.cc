#include "policy/response_likelihood.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace allot::policy {
namespace {

// The most that the exponential of a logit is taken of; moves go further by up to 120 without overflow.
constexpr double kMostLogit = 300;
// This many odds, each below kMultipliedOdds, can be multiplied without overflow.
constexpr size_t kBlock = 16;
constexpr double kMultipliedOdds = 1e17;

}  // namespace

bool accepted(DrawStream& draws, double log_ratio) {
  const double drawn = draws.uniform();
  return log_ratio >= 0 || drawn < std::exp(log_ratio);
}

ResponseLikelihood::ResponseLikelihood(int layers, int64_t total)
    : samples_(static_cast<size_t>(layers)),
      right_by_samples_(static_cast<size_t>(layers), std::vector<double>(static_cast<size_t>(total) + 1)),
      seen_(static_cast<size_t>(layers), std::vector<int32_t>(static_cast<size_t>(total) + 1)),
      change_(static_cast<size_t>(total) + 1),
      factors_(static_cast<size_t>(total) + 1) {}

void ResponseLikelihood::add(ResponseOutcome outcome) {
  const size_t number = outcomes_.size();
  const auto found = std::ranges::find(group_index_, outcome.group, &std::pair<int64_t, size_t>::first);
  size_t group = groups_.size();
  if (found == group_index_.end()) {
    group_index_.emplace_back(outcome.group, group);
    groups_.emplace_back();
  } else {
    group = found->second;
  }
  groups_[group].push_back(number);
  group_of_.push_back(group);
  for (size_t layer = 0; layer < samples_.size(); ++layer) {
    samples_[layer].push_back(static_cast<uint16_t>(outcome.samples[layer]));
  }
  const double right = outcome.reward * outcome.questions;
  for (size_t layer = 0; layer < samples_.size(); ++layer) {
    const auto samples = static_cast<size_t>(outcome.samples[layer]);
    right_by_samples_[layer][samples] += right;
    ++seen_[layer][samples];
  }
  if (blocks_.empty() || number == blocks_.back() + kBlock ||
      questions_[blocks_.back()] != outcome.questions) {
    blocks_.push_back(number);
  }
  right_.push_back(right);
  sum_of_right_ += right;
  questions_.push_back(outcome.questions);
  outcomes_.push_back(std::move(outcome));
}

void ResponseLikelihood::begin(double intercept, std::span<const double> group_effects,
                               std::span<const LayerCost> costs) {
  std::vector<double> logits(outcomes_.size(), intercept);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += group_effects[group_of_[i]];
  for (size_t layer = 0; layer < samples_.size(); ++layer) {
    const auto [amplitude, curve] = costs[layer];
    for (size_t i = 0; i < logits.size(); ++i) logits[i] -= amplitude * curve[samples_[layer][i]];
  }
  odds_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    odds_[i] = std::exp(std::clamp(logits[i], -kMostLogit, kMostLogit));
  moved_.resize(odds_.size());
  log_wrong_ = log_wrong(odds_);
  tried_ = false;
  log_right_ = 0;
}

// sum of questions * log(1 + odds), which is minus the log-likelihood of as many wrong answers. The product
// of a block needs one logarithm.
double ResponseLikelihood::log_wrong(std::span<const double> odds) const {
  double sum = 0;
  for (size_t block = 0; block < blocks_.size();) {
    // Whole blocks together, whose multiplications need not wait for each other.
    constexpr size_t kTogether = 4;
    const size_t after = block + kTogether;
    if (after < blocks_.size() && blocks_[after] - blocks_[block] == kTogether * kBlock) {
      const double* of_blocks = odds.data() + blocks_[block];
      std::array<double, kTogether> products;
      products.fill(1);
      double most = 0;
      for (size_t i = 0; i < kBlock; ++i) {
        for (size_t k = 0; k < kTogether; ++k) {
          const double own = of_blocks[k * kBlock + i];
          products[k] *= 1 + own;
          most = own > most ? own : most;
        }
      }
      if (most < kMultipliedOdds) {
        for (size_t k = 0; k < kTogether; ++k) sum += questions_[blocks_[block + k]] * std::log(products[k]);
        block = after;
        continue;
      }
    }
    const double questions = questions_[blocks_[block]];
    const size_t end = block + 1 < blocks_.size() ? blocks_[block + 1] : odds.size();
    double product = 1;
    for (size_t i = blocks_[block]; i < end; ++i) {
      if (odds[i] < kMultipliedOdds) {
        product *= 1 + odds[i];
      } else {
        sum += questions * std::log(odds[i]);
      }
    }
    sum += questions * std::log(product);
    ++block;
  }
  return sum;
}

double ResponseLikelihood::try_layer(size_t layer, const LayerCost& from, const LayerCost& to) {
  double sum = 0;
  for (size_t samples = 0; samples < change_.size(); ++samples) {
    if (seen_[layer][samples] == 0) continue;
    change_[samples] =
        std::clamp(from.amplitude * from.curve[samples] - to.amplitude * to.curve[samples], -60.0, 60.0);
    sum += seen_[layer][samples] * change_[samples];
  }
  const double shift = odds_.empty() ? 0 : -sum / static_cast<double>(odds_.size());
  for (size_t samples = 0; samples < change_.size(); ++samples) {
    if (seen_[layer][samples] == 0) continue;
    const double change = change_[samples] + shift;
    log_right_ += right_by_samples_[layer][samples] * change;
    factors_[samples] = std::exp(change);
  }
  const std::vector<uint16_t>& own = samples_[layer];
  const double* source = tried_ ? moved_.data() : odds_.data();
  for (size_t i = 0; i < own.size(); ++i) moved_[i] = source[i] * factors_[own[i]];
  tried_ = true;
  return shift;
}

void ResponseLikelihood::try_shift(double shift) {
  const double factor = std::exp(shift);
  const double* source = tried_ ? moved_.data() : odds_.data();
  for (size_t i = 0; i < moved_.size(); ++i) moved_[i] = source[i] * factor;
  log_right_ += sum_of_right_ * shift;
  tried_ = true;
}

bool ResponseLikelihood::take(DrawStream& draws, double log_prior) {
  const double moved = log_wrong(moved_);
  const bool taken = accepted(draws, (log_right_ - moved + log_wrong_) / dispersion_ + log_prior);
  if (taken) {
    odds_.swap(moved_);
    log_wrong_ = moved;
  }
  tried_ = false;
  log_right_ = 0;
  return taken;
}

void ResponseLikelihood::move_groups(DrawStream& draws, std::span<double> group_effects) {
  double questions = 0;
  for (const double one : questions_) questions += one;
  const double mean = (sum_of_right_ + 1) / (questions + 2);
  const double per_outcome = questions_.empty() ? 16 : questions / static_cast<double>(questions_.size());
  const double width = std::sqrt(std::max(1 - dispersion_, 0.01) / (per_outcome * mean * (1 - mean)));
  for (size_t group = 0; group < groups_.size(); ++group) {
    double& effect = group_effects[group];
    const double step = 0.7 * width * standard_normal(draws);
    const double factor = std::exp(step);
    double change = 0;
    double wrong = 0;
    for (const size_t i : groups_[group]) {
      change += right_[i] * step;
      wrong += questions_[i] * std::log((1 + odds_[i] * factor) / (1 + odds_[i]));
    }
    const double prior = 0.5 * (effect * effect - (effect + step) * (effect + step)) / (width * width);
    if (!accepted(draws, (change - wrong) / dispersion_ + prior)) continue;
    effect += step;
    log_wrong_ += wrong;
    for (const size_t i : groups_[group]) odds_[i] *= factor;
  }
}

}  // namespace allot::policy
