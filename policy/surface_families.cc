// The families of random surfaces.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "policy/allocation.h"
#include "policy/draws.h"
#include "policy/surface.h"

namespace allot::policy {
namespace {

constexpr int kLayers = 28;
constexpr int64_t kTotal = 224;
constexpr double kEven = static_cast<double>(kTotal) / kLayers;

class Draws {
 public:
  Draws(std::string_view family, uint64_t instance, uint64_t attempt)
      : stream_(attempt, instance, draw_purpose(family)) {}

  double between(double low, double high) { return low + (high - low) * stream_.uniform(); }
  int whole(int low, int high) {  // low..high
    return low + static_cast<int>(stream_.below(static_cast<uint32_t>(high - low + 1)));
  }
  bool coin() { return stream_.below(2) == 0; }
  double log_normal(double spread) { return std::exp(spread * standard_normal(stream_)); }
  std::vector<size_t> permutation(size_t count) {
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t k = count; k > 1; --k)
      std::swap(order[k - 1], order[stream_.below(static_cast<uint32_t>(k))]);
    return order;
  }

 private:
  DrawStream stream_;
};

using Curve = std::vector<double>;    // by samples, [total + 1]
using Curves = std::vector<Curve>;    // [layers]
using Weights = std::vector<double>;  // [layers]

template <class Function>
Curve tabulate(Function function) {
  Curve curve(kTotal + 1);
  for (size_t samples = 0; samples < curve.size(); ++samples)
    curve[samples] = function(static_cast<double>(samples));
  return curve;
}

// How the error of a layer falls with its samples; 1 where every layer has as many.
Curve decay(Draws& draws) {
  if (draws.coin()) return tabulate([](double samples) { return kEven / std::max(samples, 0.5); });
  const double scale = draws.between(0.5, 1.2) * kEven;
  return tabulate([=](double samples) { return std::exp((kEven - samples) / scale); });
}

Curves scaled(const Weights& weights, const Curve& curve) {
  Curves curves;
  for (const double weight : weights) {
    curves.push_back(curve);
    for (double& value : curves.back()) value *= weight;
  }
  return curves;
}

double penalty_of_even(const Curves& curves) {
  double sum = 0;
  for (const Curve& curve : curves) sum += curve[static_cast<size_t>(kEven)];
  return sum;
}

// Climbs by exchanging samples between two layers, in ever smaller lots.
Schedule climb(const Surface& surface, Schedule schedule) {
  double accuracy = surface.accuracy(schedule);
  for (const int lot : {8, 4, 2, 1}) {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t from = 0; from < kLayers; ++from) {
        for (size_t to = 0; to < kLayers && schedule.samples[from] >= lot; ++to) {
          if (from == to) continue;
          schedule.samples[from] -= lot;
          schedule.samples[to] += lot;
          const double changed = surface.accuracy(schedule);
          if (changed > accuracy + 1e-9) {
            accuracy = changed;
            moved = true;
          } else {
            schedule.samples[from] += lot;
            schedule.samples[to] -= lot;
          }
        }
      }
    }
  }
  return schedule;
}

// Costs that cheapest_schedule takes: the mean over the types.
std::vector<double> mean_costs(std::span<const Surface::QuestionType> types) {
  std::vector<double> costs(kLayers * (kTotal + 1));
  for (const Surface::QuestionType& type : types) {
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t samples = 0; samples <= kTotal; ++samples) {
        costs[layer * (kTotal + 1) + samples] += type.share * type.penalties[layer][samples];
      }
    }
  }
  return costs;
}

Schedule best_schedule(const Surface& surface) {
  const Schedule of_mean = cheapest_schedule(mean_costs(surface.types), kLayers, kTotal, 0);
  if (surface.types.size() == 1) return of_mean;
  Schedule best = climb(surface, of_mean);
  std::vector<Schedule> starts{even_schedule(kLayers, kTotal, 0)};
  for (size_t type = 0; type < surface.types.size(); ++type) {
    starts.push_back(
        cheapest_schedule(mean_costs(std::span(surface.types).subspan(type, 1)), kLayers, kTotal, 0));
  }
  for (const Schedule& start : starts) {
    Schedule climbed = climb(surface, start);
    if (surface.accuracy(climbed) > surface.accuracy(best)) best = std::move(climbed);
  }
  return best;
}

// Moves the offset so that the even schedule answers `uniform`.
void set_uniform(Surface* surface, double uniform) {
  const Schedule even = even_schedule(kLayers, kTotal, 0);
  double low = -60;
  double high = 60;
  for (int round = 0; round < 60; ++round) {
    surface->offset = (low + high) / 2;
    (surface->accuracy(even) < uniform ? low : high) = surface->offset;
  }
}

// The least gap, in accuracy, that an instance has: less cannot be told from noise in 500 episodes.
constexpr double kLeastGap = 0.15;

// With the penalties of the even schedule summing to `strength` in every type, or to as much more as the
// least gap takes.
RatedSurface rated(Draws& draws, uint64_t instance, std::vector<Curves> curves_of_types, double strength) {
  Surface surface;
  surface.exponential = curves_of_types.size() == 1 && draws.whole(0, 2) == 0;
  surface.dense = draws.between(0.85, 1);
  surface.question_spread = draws.between(0.3, 1.5);
  double shares = 0;
  for (Curves& curves : curves_of_types) {
    const double even = penalty_of_even(curves);
    for (Curve& curve : curves) {
      for (double& value : curve) value *= strength / even;
    }
    surface.types.push_back({.share = draws.between(0.5, 1.5), .penalties = std::move(curves)});
    shares += surface.types.back().share;
  }
  for (Surface::QuestionType& type : surface.types) type.share /= shares;
  constexpr double kUniform[] = {0.3, 0.6, 0.05};
  const double uniform = kUniform[instance % 3];
  const Schedule even = even_schedule(kLayers, kTotal, 0);
  RatedSurface made{.surface = std::move(surface), .layers = kLayers, .total = kTotal, .best = even};
  for (int round = 0; round < 12; ++round) {
    set_uniform(&made.surface, uniform);
    made.best = best_schedule(made.surface);
    made.uniform_accuracy = made.surface.accuracy(even);
    made.best_accuracy = made.surface.accuracy(made.best);
    if (made.best == even || made.best_accuracy - made.uniform_accuracy >= kLeastGap) break;
    // The exponential surface takes its strength from the offset; its questions decide how far it can rise.
    made.surface.question_spread *= 0.8;
    for (Surface::QuestionType& type : made.surface.types) {
      for (Curve& curve : type.penalties) {
        for (double& value : curve) value *= 1.3;
      }
    }
  }
  return made;
}

// A block of layers in the middle, and often the first one, carries nearly everything.
RatedSurface middle(uint64_t instance, Draws& draws) {
  Weights weights(kLayers);
  const double rest = draws.between(0.01, 0.1);
  for (double& weight : weights) weight = rest * draws.log_normal(0.5);
  const int width = draws.whole(5, 9);
  const int start = draws.whole(8, 20 - width);
  for (int layer = start; layer < start + width; ++layer)
    weights[static_cast<size_t>(layer)] = draws.log_normal(0.3);
  if (draws.coin()) weights[0] = 0.5 * draws.log_normal(0.3);
  return rated(draws, instance, {scaled(weights, decay(draws))}, draws.between(2, 5));
}

RatedSurface first(uint64_t instance, Draws& draws) {
  Weights weights(kLayers);
  const double rest = draws.between(0.005, 0.05);
  for (double& weight : weights) weight = rest * draws.log_normal(0.5);
  const double fall = draws.between(1, 4);
  for (int layer = 0; layer < 8; ++layer)
    weights[static_cast<size_t>(layer)] += std::exp(-layer / fall) * draws.log_normal(0.2);
  return rated(draws, instance, {scaled(weights, decay(draws))}, draws.between(2, 5));
}

RatedSurface power_law(uint64_t instance, Draws& draws) {
  Weights weights(kLayers);
  const double exponent = draws.between(0.8, 2);
  const std::vector<size_t> order = draws.permutation(kLayers);
  for (size_t rank = 0; rank < kLayers; ++rank)
    weights[order[rank]] = std::pow(static_cast<double>(rank + 1), -exponent);
  return rated(draws, instance, {scaled(weights, decay(draws))}, draws.between(2, 5));
}

RatedSurface question_types(uint64_t instance, Draws& draws) {
  std::vector<Curves> types;
  const Curve curve = decay(draws);
  const int count = draws.whole(2, 4);
  for (int type = 0; type < count; ++type) {
    const double rest = draws.between(0.005, 0.05);
    Weights weights(kLayers);
    for (double& weight : weights) weight = rest * draws.log_normal(0.5);
    const int width = draws.whole(2, 5);
    const std::vector<size_t> order = draws.permutation(kLayers);
    for (int k = 0; k < width; ++k) weights[order[static_cast<size_t>(k)]] = draws.log_normal(0.3);
    types.push_back(scaled(weights, curve));
  }
  return rated(draws, instance, std::move(types), draws.between(2, 5));
}

// Each layer fails below a number of samples of its own; some need more than their even part.
RatedSurface thresholds(uint64_t instance, Draws& draws) {
  std::vector<double> needs(kLayers);
  const int above = draws.whole(5, 10);
  const std::vector<size_t> order = draws.permutation(kLayers);
  double sum = 0;
  for (size_t k = 0; k < kLayers; ++k) {
    needs[order[k]] = std::floor(static_cast<int>(k) < above ? draws.between(kEven + 1, 2 * kEven + 1)
                                                             : draws.between(1, kEven));
    sum += needs[order[k]];
  }
  const double most = draws.between(0.8, 1) * static_cast<double>(kTotal);
  if (sum > most) {
    for (double& need : needs) need = std::max(1.0, std::floor(need * most / sum));
  }
  Curves curves;
  const double softness = draws.coin() ? 0 : draws.between(0.2, 1);
  for (const double need : needs) {
    const double weight = draws.log_normal(0.3);
    curves.push_back(tabulate([=](double samples) {
      const double beyond = samples - need + 0.5;
      return weight * (softness > 0 ? 1 / (1 + std::exp(beyond / softness)) : beyond < 0 ? 1.0 : 0.0);
    }));
  }
  return rated(draws, instance, {std::move(curves)}, draws.between(2, 5));
}

RatedSurface equal(uint64_t instance, Draws& draws) {
  return rated(draws, instance, {scaled(Weights(kLayers, 1), decay(draws))}, draws.between(2, 5));
}

// Draws until an instance has the least gap.
template <RatedSurface (*kDraw)(uint64_t, Draws&)>
RatedSurface with_gap(uint64_t instance) {
  for (uint64_t attempt = 0;; ++attempt) {
    Draws draws("surface", instance, attempt);
    RatedSurface made = kDraw(instance, draws);
    if (made.best_accuracy - made.uniform_accuracy >= kLeastGap) return made;
  }
}

constexpr SurfaceFamily kFamilies[] = {
    {"middle", "a block of middle layers matters, at times the first, too", true, with_gap<middle>},
    {"first", "the first layers matter, the earlier the more", true, with_gap<first>},
    {"power-law", "sensitivities fall as a power of their rank, in random order", true, with_gap<power_law>},
    {"question-types", "two to four types of question that need different layers", true,
     with_gap<question_types>},
    {"thresholds", "each layer fails below a number of samples of its own", true, with_gap<thresholds>},
    {"equal", "all layers are equal", false, [](uint64_t instance) {
       Draws draws("surface", instance, 0);
       return equal(instance, draws);
     }}};

}  // namespace

std::span<const SurfaceFamily> surface_families() {
  return kFamilies;
}

const SurfaceFamily* find_surface_family(std::string_view name) {
  const auto found = std::ranges::find(kFamilies, name, &SurfaceFamily::name);
  return found == std::end(kFamilies) ? nullptr : found;
}

}  // namespace allot::policy
