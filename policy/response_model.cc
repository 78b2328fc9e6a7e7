#include "policy/response_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace allot::policy {
namespace {

// The prior. Half the even part in all layers costs a logit or so.
constexpr double kCentreOffset = -0.8;
constexpr double kCentreWidth = 1.2;
constexpr double kLogWidthCentre = -0.7;
constexpr double kLogWidthWidth = 0.6;
constexpr double kGapCentre = 1.5;
constexpr double kGapWidth = 1;
constexpr double kGapWidthAfterStart = 0.4;  // around 0: the start says which layers matter
constexpr double kShareCentre = -0.8;
constexpr double kShareWidth = 1;
// Values of `alike` and `together`, and of their steps how many go to 0: neighbours may as well have nothing
// to do with each other.
constexpr double kLikeness[] = {0.4, 0.7, 0.85, 0.95};
constexpr double kUnlike = 0.75;
// The most by which a start says that one layer matters more or less than the average: rounding hides more.
constexpr double kMostExpected = 3;

double normal(DrawStream& draws) {
  const double radius = std::sqrt(-2 * std::log1p(-draws.uniform()));
  return radius * std::cos(2 * std::numbers::pi * draws.uniform());
}

bool accepted(DrawStream& draws, double log_ratio) {
  const double drawn = draws.uniform();
  return log_ratio >= 0 || drawn < std::exp(log_ratio);
}

// The most that the exponential of a logit is taken of; moves go further by up to 120 without overflow.
constexpr double kMostLogit = 300;
// So many odds, each below the limit, can be multiplied without overflow.
constexpr size_t kBlock = 16;
constexpr double kMultipliedOdds = 1e17;

double log_normal_density(double x, double centre, double width) {
  const double z = (x - centre) / width;
  return -0.5 * z * z - std::log(width);
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

double log_prior_of_intercept(double intercept) {
  return log_normal_density(intercept, -0.5, 3);
}

}  // namespace

ResponseCurves::ResponseCurves(int layers, int64_t total) : length_(static_cast<size_t>(total) + 1) {
  const double even = static_cast<double>(total) / layers;
  const auto add = [&](const auto& function) {
    const double at_even = function(even);
    const double of_half = function(even / 2) - at_even;
    for (size_t samples = 0; samples < length_; ++samples) {
      table_.push_back((function(static_cast<double>(samples)) - at_even) / of_half);
    }
  };
  for (const double scale : {1.7, 1.0, 0.6}) {
    add([=](double samples) { return std::exp(-samples / (scale * even)); });
  }
  // Below an even part of one sample a layer without samples must still cost more than one with half of it.
  const double least = std::min(0.4, even / 4);
  for (const double power : {0.5, 1.0, 2.0}) {
    add([=](double samples) { return std::pow(std::max(samples, least), -power); });
  }
}

ResponseModel::ResponseModel(int layers, int64_t total, const Schedule& start)
    : layers_(layers),
      total_(total),
      curves_(layers, total),
      started_(!start.samples.empty()),
      expected_(curves_.count(), std::vector<double>(static_cast<size_t>(layers))),
      samples_(static_cast<size_t>(layers)),
      right_by_samples_(static_cast<size_t>(layers), std::vector<double>(static_cast<size_t>(total) + 1)),
      seen_(static_cast<size_t>(layers), std::vector<int32_t>(static_cast<size_t>(total) + 1)) {
  if (!started_) return;
  // Where a schedule is the best, one more sample saves as much in every layer.
  for (size_t number = 0; number < curves_.count(); ++number) {
    std::vector<double>& expected = expected_[number];
    const std::span<const double> curve = curves_.curve(number);
    for (size_t layer = 0; layer < expected.size(); ++layer) {
      const auto samples =
          std::min(static_cast<size_t>(start.samples[layer]), static_cast<size_t>(total) - 1);
      expected[layer] = -std::log(std::max(curve[samples] - curve[samples + 1], 1e-12));
    }
    double mean = 0;
    for (const double one : expected) mean += one / layers;
    double sum = 0;
    for (double& one : expected) {
      one = std::clamp(one - mean, -kMostExpected, kMostExpected);
      sum += std::exp(one) / layers;
    }
    // All layers together are expected to matter as much as without a start.
    for (double& one : expected) one -= std::log(sum);
  }
}

ResponseModel::State ResponseModel::prior_draw(DrawStream& draws) const {
  State state;
  Population& population = state.population;
  population.centre = kCentreOffset - std::log(layers_) + kCentreWidth * normal(draws);
  population.gap =
      std::abs(started_ ? kGapWidthAfterStart * normal(draws) : kGapCentre + kGapWidth * normal(draws));
  population.log_width = kLogWidthCentre + kLogWidthWidth * normal(draws);
  population.log_width_of_few = kLogWidthCentre + kLogWidthWidth * normal(draws);
  population.share_of_few = kShareCentre + kShareWidth * normal(draws);
  state.curve = draws.below(static_cast<uint32_t>(curves_.count()));
  for (size_t layer = 0; layer < samples_.size(); ++layer) {
    const bool few = draws.uniform() < sigmoid(population.share_of_few);
    const double width = std::exp(few ? population.log_width_of_few : population.log_width);
    state.few.push_back(few ? 1 : 0);
    state.log_amplitudes.push_back(expected_[state.curve][layer] + population.centre +
                                   (few ? population.gap : 0) + width * normal(draws));
  }
  return state;
}

double ResponseModel::accuracy(const State& state, const Schedule& schedule) const {
  const std::span<const double> curve = curves_.curve(state.curve);
  double logit = state.intercept;
  for (size_t layer = 0; layer < state.log_amplitudes.size(); ++layer) {
    logit -= std::exp(state.log_amplitudes[layer]) * curve[static_cast<size_t>(schedule.samples[layer])];
  }
  return sigmoid(logit);
}

void ResponseModel::add_costs(const State& state, double weight, std::span<double> costs) const {
  const auto length = static_cast<size_t>(total_) + 1;
  const std::span<const double> curve = curves_.curve(state.curve);
  for (size_t layer = 0; layer < state.log_amplitudes.size(); ++layer) {
    const double amplitude = weight * std::exp(state.log_amplitudes[layer]);
    for (size_t samples = 0; samples < length; ++samples) {
      costs[layer * length + samples] += amplitude * curve[samples];
    }
  }
}

void ResponseModel::add(ResponseOutcome outcome) {
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

void ResponseModel::compute_odds(const State& state) {
  std::vector<double> logits(outcomes_.size(), state.intercept);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += state.group_effects[group_of_[i]];
  for (size_t layer = 0; layer < samples_.size(); ++layer) {
    const double amplitude = std::exp(state.log_amplitudes[layer]);
    const std::span<const double> curve = curves_.curve(state.curve);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] -= amplitude * curve[samples_[layer][i]];
  }
  odds_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    odds_[i] = std::exp(std::clamp(logits[i], -kMostLogit, kMostLogit));
  moved_.resize(odds_.size());
  log_wrong_ = log_wrong(odds_);
}

// sum of questions * log(1 + odds), which is minus the log-likelihood of as many wrong answers. The product
// of a block needs one logarithm.
double ResponseModel::log_wrong(std::span<const double> odds) const {
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

// Multiplies the odds of each outcome by what `factors_` holds for its samples of `layer`, into `to`.
void ResponseModel::multiply(size_t layer, std::span<const double> from, std::vector<double>* to) const {
  const std::vector<uint16_t>& own = samples_[layer];
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] = from[i] * factors_[own[i]];
}

void ResponseModel::sweep(DrawStream& draws, State* state) {
  state->group_effects.resize(groups_.size());
  compute_odds(*state);
  for (int round = 0; round < 3; ++round) sweep_intercept(draws, state);
  sweep_groups(draws, state);
  for (size_t layer = 0; layer < samples_.size(); ++layer) sweep_layer(draws, layer, state);
  sweep_curve(draws, state);
  sweep_scale(draws, state);
  sweep_population(draws, state);
  sweep_likeness(draws, state);
}

bool ResponseModel::take(DrawStream& draws, double log_right, double log_prior) {
  const double moved = log_wrong(moved_);
  if (!accepted(draws, (log_right - moved + log_wrong_) / dispersion_ + log_prior)) return false;
  odds_.swap(moved_);
  log_wrong_ = moved;
  return true;
}

void ResponseModel::sweep_intercept(DrawStream& draws, State* state) {
  constexpr double kSteps[] = {0.03, 0.15, 0.6};
  const double step = kSteps[draws.below(3)] * normal(draws);
  const double factor = std::exp(step);
  for (size_t i = 0; i < odds_.size(); ++i) moved_[i] = odds_[i] * factor;
  const double prior =
      log_normal_density(state->intercept + step, -0.5, 3) - log_normal_density(state->intercept, -0.5, 3);
  if (take(draws, sum_of_right_ * step, prior)) state->intercept += step;
}

void ResponseModel::sweep_groups(DrawStream& draws, State* state) {
  double questions = 0;
  for (const double one : questions_) questions += one;
  const double mean = (sum_of_right_ + 1) / (questions + 2);
  const double per_outcome = questions_.empty() ? 16 : questions / static_cast<double>(questions_.size());
  const double width = std::sqrt(std::max(1 - dispersion_, 0.01) / (per_outcome * mean * (1 - mean)));
  for (size_t group = 0; group < groups_.size(); ++group) {
    double& effect = state->group_effects[group];
    const double step = 0.7 * width * normal(draws);
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

double ResponseModel::mean_change(size_t layer, LayerCurve from, LayerCurve to) {
  const double old_amplitude = std::exp(from.log_amplitude), amplitude = std::exp(to.log_amplitude);
  const std::span<const double> old_curve = curves_.curve(from.curve), curve = curves_.curve(to.curve);
  double sum = 0;
  change_.resize(curve.size());
  for (size_t samples = 0; samples < curve.size(); ++samples) {
    if (seen_[layer][samples] == 0) continue;
    change_[samples] =
        std::clamp(old_amplitude * old_curve[samples] - amplitude * curve[samples], -60.0, 60.0);
    sum += seen_[layer][samples] * change_[samples];
  }
  return odds_.empty() ? 0 : sum / static_cast<double>(odds_.size());
}

double ResponseModel::set_factors(size_t layer, double shift) {
  double log_right = 0;
  factors_.resize(change_.size());
  for (size_t samples = 0; samples < change_.size(); ++samples) {
    if (seen_[layer][samples] == 0) continue;
    const double change = change_[samples] + shift;
    log_right += right_by_samples_[layer][samples] * change;
    factors_[samples] = std::exp(change);
  }
  return log_right;
}

void ResponseModel::sweep_curve(DrawStream& draws, State* state) {
  const size_t curve = state->curve;
  const bool up = draws.below(2) == 1;
  if (up ? curve + 1 >= curves_.count() : curve == 0) return;
  const size_t proposed = up ? curve + 1 : curve - 1;
  moved_ = odds_;
  double log_right = 0;
  double shift = 0;
  for (size_t layer = 0; layer < samples_.size(); ++layer) {
    const double log_amplitude = state->log_amplitudes[layer];
    const double moved = log_amplitude + expected_[proposed][layer] - expected_[curve][layer];
    const double mean = mean_change(layer, {log_amplitude, curve}, {moved, proposed});
    log_right += set_factors(layer, -mean);
    shift -= mean;
    multiply(layer, moved_, &moved_);
  }
  const double prior =
      log_prior_of_intercept(state->intercept + shift) - log_prior_of_intercept(state->intercept);
  if (!take(draws, log_right, prior)) return;
  state->intercept += shift;
  state->curve = proposed;
  for (size_t layer = 0; layer < samples_.size(); ++layer)
    state->log_amplitudes[layer] += expected_[proposed][layer] - expected_[curve][layer];
}

void ResponseModel::sweep_scale(DrawStream& draws, State* state) {
  constexpr double kSteps[] = {0.05, 0.2, 0.6};
  const double step = kSteps[draws.below(3)] * normal(draws);
  moved_ = odds_;
  double log_right = 0;
  double shift = 0;
  for (size_t layer = 0; layer < samples_.size(); ++layer) {
    const double log_amplitude = state->log_amplitudes[layer];
    const double mean =
        mean_change(layer, {log_amplitude, state->curve}, {log_amplitude + step, state->curve});
    log_right += set_factors(layer, -mean);
    shift -= mean;
    multiply(layer, moved_, &moved_);
  }
  // The centre goes along, so that the layers lie around it as before.
  double& centre = state->population.centre;
  const double prior = log_prior_of_intercept(state->intercept + shift) -
                       log_prior_of_intercept(state->intercept) + log_prior_of_centre(centre + step) -
                       log_prior_of_centre(centre);
  if (!take(draws, log_right, prior)) return;
  state->intercept += shift;
  centre += step;
  for (double& log_amplitude : state->log_amplitudes) log_amplitude += step;
}

// Each move also shifts the intercept so that the mean logit stays: otherwise the two, which the outcomes tie
// to each other, would creep.
void ResponseModel::sweep_layer(DrawStream& draws, size_t layer, State* state) {
  constexpr double kSteps[] = {0.15, 0.5, 1.5};
  const auto of_both = [](const std::array<double, 2>& logs) {
    const double most = std::max(logs[0], logs[1]);
    return most + std::log(std::exp(logs[0] - most) + std::exp(logs[1] - most));
  };
  const Terms terms = terms_of(state->population);
  std::array<double, 2> current = log_densities_of_layer(*state, terms, layer, state->log_amplitudes[layer]);
  for (int move = 0; move < 2; ++move) {
    const double old = state->log_amplitudes[layer];
    const double proposed = old + kSteps[draws.below(3)] * normal(draws);
    const double shift = -mean_change(layer, {old, state->curve}, {proposed, state->curve});
    const std::array<double, 2> moved = log_densities_of_layer(*state, terms, layer, proposed);
    const double prior = of_both(moved) - of_both(current) +
                         log_prior_of_intercept(state->intercept + shift) -
                         log_prior_of_intercept(state->intercept);
    const double log_right = set_factors(layer, shift);
    multiply(layer, odds_, &moved_);
    if (!take(draws, log_right, prior)) continue;
    state->intercept += shift;
    state->log_amplitudes[layer] = proposed;
    current = moved;
  }
  state->few[layer] = draws.uniform() < sigmoid(current[1] - current[0]) ? 1 : 0;
}

double ResponseModel::distance(const State& state, const Population& population, const Terms& terms,
                               size_t layer) const {
  const bool few = state.few[layer] != 0;
  return (state.log_amplitudes[layer] - expected_[state.curve][layer] - population.centre -
          (few ? population.gap : 0)) /
         terms.widths[few ? 1 : 0];
}

ResponseModel::Terms ResponseModel::terms_of(const Population& population) {
  Terms terms{.widths = {std::exp(population.log_width), std::exp(population.log_width_of_few)}};
  for (size_t own = 0; own < 2; ++own) {
    const double share = sigmoid(own == 1 ? population.share_of_few : -population.share_of_few);
    terms.log_shares[own] = std::log(share);
    for (size_t neighbour = 0; neighbour < 2; ++neighbour) {
      terms.log_chances[neighbour][own] =
          std::log((neighbour == own ? population.together : 0) + (1 - population.together) * share);
    }
  }
  terms.variance = 1 - population.alike * population.alike;
  terms.log_variance = std::log(terms.variance);
  return terms;
}

// Of a layer at `distance` whose neighbour is at `neighbour`.
double ResponseModel::log_density_beside(double neighbour, double distance, double alike,
                                         const Terms& terms) {
  const double off = distance - alike * neighbour;
  return -0.5 * off * off / terms.variance - 0.5 * terms.log_variance;
}

std::array<double, 2> ResponseModel::log_densities_of_layer(const State& state, const Terms& terms,
                                                            size_t layer, double log_amplitude) const {
  const Population& population = state.population;
  const size_t layers = state.log_amplitudes.size();
  const double from_centre = log_amplitude - expected_[state.curve][layer] - population.centre;
  std::array<double, 2> logs{};
  for (size_t few = 0; few < 2; ++few) {
    const double own = (from_centre - (few != 0 ? population.gap : 0)) / terms.widths[few];
    double& sum = logs[few];
    sum = -(few != 0 ? population.log_width_of_few : population.log_width);
    if (layer == 0) {
      sum += -0.5 * own * own + terms.log_shares[few];
    } else {
      sum += log_density_beside(distance(state, population, terms, layer - 1), own, population.alike, terms) +
             terms.log_chances[static_cast<size_t>(state.few[layer - 1])][few];
    }
    if (layer + 1 < layers) {
      sum += log_density_beside(own, distance(state, population, terms, layer + 1), population.alike, terms) +
             terms.log_chances[few][static_cast<size_t>(state.few[layer + 1])];
    }
  }
  return logs;
}

double ResponseModel::log_density(const State& state, const Population& population) const {
  const Terms terms = terms_of(population);
  double sum = 0;
  double last = 0;
  for (size_t layer = 0; layer < state.log_amplitudes.size(); ++layer) {
    const auto few = static_cast<size_t>(state.few[layer]);
    const double own = distance(state, population, terms, layer);
    sum -= few != 0 ? population.log_width_of_few : population.log_width;
    if (layer == 0) {
      sum += -0.5 * own * own + terms.log_shares[few];
    } else {
      sum += log_density_beside(last, own, population.alike, terms) +
             terms.log_chances[static_cast<size_t>(state.few[layer - 1])][few];
    }
    last = own;
  }
  return sum;
}

double ResponseModel::log_prior_of_centre(double centre) const {
  return log_normal_density(centre, kCentreOffset - std::log(layers_), kCentreWidth);
}

double ResponseModel::log_density(const Population& population) const {
  return log_prior_of_centre(population.centre) +
         (started_ ? log_normal_density(population.gap, 0, kGapWidthAfterStart)
                   : log_normal_density(population.gap, kGapCentre, kGapWidth)) +
         log_normal_density(population.log_width, kLogWidthCentre, kLogWidthWidth) +
         log_normal_density(population.log_width_of_few, kLogWidthCentre, kLogWidthWidth) +
         log_normal_density(population.share_of_few, kShareCentre, kShareWidth);
}

void ResponseModel::sweep_population(DrawStream& draws, State* state) const {
  double current = log_density(*state, state->population) + log_density(state->population);
  for (int round = 0; round < 8; ++round) {
    Population moved = state->population;
    switch (round % 4) {
      case 0:
        moved.centre += 0.3 * normal(draws);
        moved.log_width += 0.3 * normal(draws);
        break;
      case 1:
        moved.gap += 0.4 * normal(draws);
        moved.log_width_of_few += 0.3 * normal(draws);
        break;
      case 2:
        moved.share_of_few += 0.5 * normal(draws);
        break;
      default: {
        // The higher centre stays.
        const double step = 0.4 * normal(draws);
        moved.centre += step;
        moved.gap -= step;
      }
    }
    if (moved.gap < 0) continue;
    const double density = log_density(*state, moved) + log_density(moved);
    if (!accepted(draws, density - current)) continue;
    state->population = moved;
    current = density;
  }
}

void ResponseModel::sweep_likeness(DrawStream& draws, State* state) const {
  double current = log_density(*state, state->population);
  for (double Population::*likeness : {&Population::alike, &Population::together}) {
    Population moved = state->population;
    // Drawn from the prior, so that only the layers decide.
    const bool unlike = draws.uniform() < kUnlike;
    moved.*likeness = unlike ? 0 : kLikeness[draws.below(std::size(kLikeness))];
    const double density = log_density(*state, moved);
    if (!accepted(draws, density - current)) continue;
    state->population = moved;
    current = density;
  }
}

}  // namespace allot::policy
