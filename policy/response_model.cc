#include "policy/response_model.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace allot::policy {
namespace {

// The prior. Half the even part in all layers costs a logit or so.
constexpr double kCentreOffset = -0.8;
// A quarter of the layers below their steps costs four logits or so.
const double kCentreOffsetOfSteps = std::log(16.0);
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

double log_normal_density(double x, double centre, double width) {
  const double z = (x - centre) / width;
  return -0.5 * z * z - std::log(width);
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// What a shift of the intercept changes of the log density of its prior.
double change_of_intercept(const ResponseModel::State& state, double shift) {
  return log_normal_density(state.intercept + shift, -0.5, 3) - log_normal_density(state.intercept, -0.5, 3);
}

}  // namespace

ResponseModel::ResponseModel(ResponseCurves::Form form, int layers, int64_t total, const Schedule& start)
    : form_(form),
      layers_(layers),
      total_(total),
      even_(static_cast<double>(total) / layers),
      curves_(form, layers, total),
      started_(form == ResponseCurves::Form::kSmooth && !start.samples.empty()),
      expected_(curves_.shapes(), std::vector<double>(static_cast<size_t>(layers))),
      likelihood_(layers, total),
      costs_(static_cast<size_t>(layers)) {
  if (!started_) return;
  // Where a schedule is the best, one more sample saves as much in every layer.
  for (size_t shape = 0; shape < curves_.shapes(); ++shape) {
    std::vector<double>& expected = expected_[shape];
    const std::span<const double> curve = curves_.curve(shape);
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

LayerCost ResponseModel::cost(const State& state, size_t layer) const {
  return {std::exp(state.log_amplitudes[layer]),
          curves_.curve(state.shape, static_cast<size_t>(state.needs[layer]))};
}

ResponseModel::State ResponseModel::prior_draw(DrawStream& draws) const {
  State state;
  Population& population = state.population;
  population.centre = centre_of_prior() + kCentreWidth * standard_normal(draws);
  population.gap = std::abs(started_ ? kGapWidthAfterStart * standard_normal(draws)
                                     : kGapCentre + kGapWidth * standard_normal(draws));
  population.log_width = kLogWidthCentre + kLogWidthWidth * standard_normal(draws);
  population.log_width_of_few = kLogWidthCentre + kLogWidthWidth * standard_normal(draws);
  population.share_of_few = kShareCentre + kShareWidth * standard_normal(draws);
  state.shape = draws.below(static_cast<uint32_t>(curves_.shapes()));
  for (size_t layer = 0; layer < count_layers(); ++layer) {
    const bool few = draws.uniform() < sigmoid(population.share_of_few);
    const double width = std::exp(few ? population.log_width_of_few : population.log_width);
    state.few.push_back(few ? 1 : 0);
    state.log_amplitudes.push_back(expected_[state.shape][layer] + population.centre +
                                   (few ? population.gap : 0) + width * standard_normal(draws));
    state.needs.push_back(form_ == ResponseCurves::Form::kSteps ? draw_need(draws) : 0);
  }
  return state;
}

double ResponseModel::accuracy(const State& state, const Schedule& schedule) const {
  double logit = state.intercept;
  for (size_t layer = 0; layer < count_layers(); ++layer) {
    const auto [amplitude, curve] = cost(state, layer);
    logit -= amplitude * curve[static_cast<size_t>(schedule.samples[layer])];
  }
  return sigmoid(logit);
}

void ResponseModel::add_costs(const State& state, double weight, std::span<double> costs) const {
  const auto length = static_cast<size_t>(total_) + 1;
  for (size_t layer = 0; layer < count_layers(); ++layer) {
    const auto [amplitude, curve] = cost(state, layer);
    for (size_t samples = 0; samples < length; ++samples) {
      costs[layer * length + samples] += weight * amplitude * curve[samples];
    }
  }
}

LayerCosts ResponseModel::costs(std::span<const State> draws) const {
  LayerCosts costs{.model = CostModel::kResponse,
                   .unit = even_,
                   .weights = {count_layers(), std::vector<double>(curves_.shapes())}};
  for (const State& draw : draws) {
    for (size_t layer = 0; layer < count_layers(); ++layer)
      costs.weights[layer][draw.shape] +=
          std::exp(draw.log_amplitudes[layer]) / static_cast<double>(draws.size());
  }
  std::vector<std::vector<double>> seen(count_layers());
  for (const ResponseOutcome& outcome : outcomes()) {
    for (size_t layer = 0; layer < count_layers(); ++layer) seen[layer].push_back(outcome.samples[layer]);
  }
  costs.fitted = fitted_range(seen);
  return costs;
}

void ResponseModel::sweep(DrawStream& draws, State* state) {
  state->group_effects.resize(likelihood_.num_groups());
  for (size_t layer = 0; layer < count_layers(); ++layer) costs_[layer] = cost(*state, layer);
  likelihood_.begin(state->intercept, state->group_effects, costs_);
  for (int round = 0; round < 3; ++round) sweep_intercept(draws, state);
  likelihood_.move_groups(draws, state->group_effects);
  for (size_t layer = 0; layer < count_layers(); ++layer) sweep_layer(draws, layer, state);
  sweep_shape(draws, state);
  sweep_scale(draws, state);
  sweep_population(draws, state);
  sweep_likeness(draws, state);
}

void ResponseModel::sweep_intercept(DrawStream& draws, State* state) {
  constexpr double kSteps[] = {0.03, 0.15, 0.6};
  const double step = kSteps[draws.below(3)] * standard_normal(draws);
  likelihood_.try_shift(step);
  if (likelihood_.take(draws, change_of_intercept(*state, step))) state->intercept += step;
}

void ResponseModel::sweep_shape(DrawStream& draws, State* state) {
  const size_t shape = state->shape;
  const bool up = draws.below(2) == 1;
  if (up ? shape + 1 >= curves_.shapes() : shape == 0) return;
  State moved = *state;
  moved.shape = up ? shape + 1 : shape - 1;
  double shift = 0;
  for (size_t layer = 0; layer < count_layers(); ++layer) {
    moved.log_amplitudes[layer] += expected_[moved.shape][layer] - expected_[shape][layer];
    shift += likelihood_.try_layer(layer, cost(*state, layer), cost(moved, layer));
  }
  if (!likelihood_.take(draws, change_of_intercept(*state, shift))) return;
  moved.intercept += shift;
  *state = std::move(moved);
}

void ResponseModel::sweep_scale(DrawStream& draws, State* state) {
  constexpr double kSteps[] = {0.05, 0.2, 0.6};
  const double step = kSteps[draws.below(3)] * standard_normal(draws);
  double shift = 0;
  for (size_t layer = 0; layer < count_layers(); ++layer) {
    const LayerCost old = cost(*state, layer);
    shift += likelihood_.try_layer(layer, old, {old.amplitude * std::exp(step), old.curve});
  }
  // The centre goes along, so that the layers lie around it as before.
  double& centre = state->population.centre;
  const double prior =
      change_of_intercept(*state, shift) + log_prior_of_centre(centre + step) - log_prior_of_centre(centre);
  if (!likelihood_.take(draws, prior)) return;
  state->intercept += shift;
  centre += step;
  for (double& log_amplitude : state->log_amplitudes) log_amplitude += step;
}

void ResponseModel::sweep_layer(DrawStream& draws, size_t layer, State* state) {
  constexpr double kSteps[] = {0.15, 0.5, 1.5};
  LayerMove move{.layer = layer, .terms = terms_of(state->population)};
  move.log_densities = log_densities_of_layer(*state, move.terms, layer, state->log_amplitudes[layer]);
  for (int round = 0; round < 2; ++round) {
    const double proposed = state->log_amplitudes[layer] + kSteps[draws.below(3)] * standard_normal(draws);
    try_layer(draws, proposed, state->needs[layer], &move, state);
  }
  if (form_ == ResponseCurves::Form::kSteps) {
    // A need near the old one, and any other with an amplitude of its own.
    const auto far = static_cast<int32_t>(std::max(3.0, 0.4 * even_));
    const auto away = 1 + static_cast<int32_t>(draws.below(static_cast<uint32_t>(far)));
    const int32_t near = state->needs[layer] + (draws.below(2) == 1 ? away : -away);
    try_layer(draws, state->log_amplitudes[layer], near, &move, state);
    const auto any = static_cast<int32_t>(draws.below(static_cast<uint32_t>(curves_.needs())));
    try_layer(draws, state->log_amplitudes[layer] + 0.5 * standard_normal(draws), any, &move, state);
  }
  const auto& [of_most, of_few] = move.log_densities;
  state->few[layer] = draws.uniform() < sigmoid(of_few - of_most) ? 1 : 0;
}

// A move also shifts the intercept so that the mean logit stays: otherwise the two, which the outcomes tie
// to each other, would creep.
void ResponseModel::try_layer(DrawStream& draws, double log_amplitude, int32_t need, LayerMove* move,
                              State* state) {
  if (need < 0 || static_cast<size_t>(need) >= curves_.needs()) return;
  const auto of_both = [](const std::array<double, 2>& logs) {
    const double most = std::max(logs[0], logs[1]);
    return most + std::log(std::exp(logs[0] - most) + std::exp(logs[1] - most));
  };
  const size_t layer = move->layer;
  const LayerCost moved{std::exp(log_amplitude), curves_.curve(state->shape, static_cast<size_t>(need))};
  const double shift = likelihood_.try_layer(layer, cost(*state, layer), moved);
  const std::array<double, 2> log_densities =
      log_densities_of_layer(*state, move->terms, layer, log_amplitude);
  const double prior = of_both(log_densities) - of_both(move->log_densities) + log_prior_of_need(need) -
                       log_prior_of_need(state->needs[layer]) + change_of_intercept(*state, shift);
  if (!likelihood_.take(draws, prior)) return;
  state->intercept += shift;
  state->log_amplitudes[layer] = log_amplitude;
  state->needs[layer] = need;
  move->log_densities = log_densities;
}

// Up to the even part any need is about as likely, far above it hardly any.
double ResponseModel::log_prior_of_need(int32_t need) const {
  const double high = static_cast<double>(need) / (1.5 * even_);
  return -1.5 * std::log1p(high * high);
}

// Near the prior; only the chain's first states depend on it.
int32_t ResponseModel::draw_need(DrawStream& draws) const {
  const double most = static_cast<double>(curves_.needs() - 1);
  return static_cast<int32_t>(std::min(most, 1.8 * even_ * draws.uniform()));
}

double ResponseModel::distance(const State& state, const Population& population, const Terms& terms,
                               size_t layer) const {
  const bool few = state.few[layer] != 0;
  return (state.log_amplitudes[layer] - expected_[state.shape][layer] - population.centre -
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
  const double from_centre = log_amplitude - expected_[state.shape][layer] - population.centre;
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

double ResponseModel::centre_of_prior() const {
  return (form_ == ResponseCurves::Form::kSteps ? kCentreOffsetOfSteps : kCentreOffset) - std::log(layers_);
}

double ResponseModel::log_prior_of_centre(double centre) const {
  return log_normal_density(centre, centre_of_prior(), kCentreWidth);
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
        moved.centre += 0.3 * standard_normal(draws);
        moved.log_width += 0.3 * standard_normal(draws);
        break;
      case 1:
        moved.gap += 0.4 * standard_normal(draws);
        moved.log_width_of_few += 0.3 * standard_normal(draws);
        break;
      case 2:
        moved.share_of_few += 0.5 * standard_normal(draws);
        break;
      default: {
        // The higher centre stays.
        const double step = 0.4 * standard_normal(draws);
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
