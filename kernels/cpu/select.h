// Selects the keys that an estimator takes from the weights w_n = exp(score_n - max) of one row, sixteen keys
// at a time. kernels/sampling.h has the rules. The weights need no normalisation, because a target t of the
// CDF is t * sum(w) here.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/vec_generic.h"
#include "kernels/cpu/workspace.h"
#include "kernels/sampling.h"

namespace allot::kernels::cpu {

// CDF of weights [0, keys) at two coarse levels, so that a target is found without a pass over the keys.
template <class V>
class RowCdf {
 public:
  static constexpr int32_t kSuper = kLanes * kLanes;

  RowCdf(const float* weights, int32_t keys, Workspace& work) : weights_(weights), keys_(keys) {
    using F = typename V::F;
    const int32_t supers = (keys + kSuper - 1) / kSuper;
    block_ends_ = work.block_ends.reserve(int64_t{supers} * kLanes);
    super_ends_ = work.super_ends.reserve(supers);
    double total = 0;  // sum of whole super blocks: long rows lose no precision
    for (int32_t super = 0; super < supers; ++super) {
      F sums[kLanes];
      for (int block = 0; block < kLanes; ++block) sums[block] = load_block(super * kLanes + block);
      const F ends = V::set1(static_cast<float>(total)) + V::prefix_sum(V::reduce_add_each(sums));
      V::store(block_ends_ + super * kLanes, ends);
      super_ends_[super] = block_ends_[super * kLanes + kLanes - 1];
      total = super_ends_[super];
    }
    supers_ = supers;
  }

  // Sum of the weights.
  float total() const { return supers_ == 0 ? 0.0f : super_ends_[supers_ - 1]; }

  // First key whose CDF reaches `target` > 0, never one of weight 0. A target beyond the total, as rounding
  // may make it, gives the last key of positive weight. The row must have one.
  int32_t locate(float target) const {
    int32_t super = 0;
    if (supers_ > 1) {
      super =
          static_cast<int32_t>(std::lower_bound(super_ends_, super_ends_ + supers_, target) - super_ends_);
      super = std::min(super, supers_ - 1);
    }
    const uint32_t before = V::less_bits(V::load(block_ends_ + super * kLanes), V::set1(target));
    int32_t block = super * kLanes + std::min(std::popcount(before), kLanes - 1);
    const float base = block == 0 ? 0.0f : block_ends_[block - 1];
    const auto weights = load_block(block);
    const uint32_t reached = ~V::less_bits(V::prefix_sum(weights), V::set1(target - base)) & 0xFFFFu;
    const uint32_t positive = V::less_bits(V::zero(), weights);
    const uint32_t candidates = reached & positive;
    if (candidates != 0) [[likely]]
      return block * kLanes + std::countr_zero(candidates);
    return last_positive(block);
  }

 private:
  typename V::F load_block(int32_t block) const {
    const int32_t first = block * kLanes;
    const int32_t count = std::clamp(keys_ - first, 0, kLanes);
    if (count == kLanes) return V::load(weights_ + first);
    return count == 0 ? V::zero() : V::load_partial(weights_ + first, count);
  }

  // Last key of positive weight in blocks [0, block], else the first in later ones.
  int32_t last_positive(int32_t block) const {
    for (int32_t key = std::min(keys_, (block + 1) * kLanes) - 1; key >= 0; --key) {
      if (weights_[key] > 0) return key;
    }
    for (int32_t key = std::min(keys_, (block + 1) * kLanes); key < keys_; ++key) {
      if (weights_[key] > 0) return key;
    }
    return keys_ - 1;  // only NaN weights get here
  }

  const float* weights_;
  int32_t keys_;
  float* block_ends_;
  float* super_ends_;
  int32_t supers_;
};

// Appends `samples` systematic picks of the range that `cdf` covers, which starts at key `first`.
template <class V>
ALLOT_INLINE void pick_systematic(const RowCdf<V>& cdf, int32_t first, int32_t samples, float u, float weight,
                                  Pick* picks) {
  for (int32_t s = 0; s < samples; ++s) {
    picks[s] = {first + cdf.locate(stratum_target<float>(s, samples, u) * cdf.total()), weight};
  }
}

// Algorithm 4. Writes each tile's budget; the budgets add up to `samples`.
template <class V>
void largest_remainder(const double* masses, double total, int32_t tiles, int32_t samples, int32_t* budgets,
                       int32_t* order) {
  int32_t left = samples;
  for (int32_t t = 0; t < tiles; ++t) {
    budgets[t] = static_cast<int32_t>(samples * (masses[t] / total));
    left -= budgets[t];
    order[t] = t;
  }
  const auto fraction = [&](int32_t t) {
    const double share = samples * (masses[t] / total);
    return share - std::floor(share);
  };
  const auto larger = [&](int32_t a, int32_t b) {
    const double fa = fraction(a), fb = fraction(b);
    return fa != fb ? fa > fb : a < b;
  };
  // Rounding may leave `left` one below 0 or above the number of tiles with a fraction; both walks
  // stay in range.
  const int32_t ordered = std::min(std::max(left, 0), tiles);
  std::partial_sort(order, order + ordered, order + tiles, larger);
  for (int32_t i = 0; left > 0; i = (i + 1) % tiles, --left) ++budgets[order[i]];
  for (int32_t t = tiles - 1; left < 0; t = t == 0 ? tiles - 1 : t - 1) {
    if (budgets[t] > 0) {
      --budgets[t];
      ++left;
    }
  }
}

// kProportional: budgets are proportional to the tiles' mass (`prop`), else equal (`flash`).
template <class V, bool kProportional>
Picks select_tiles(const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
                   Workspace& work) {
  const int32_t samples = choice.samples;
  const int32_t tiles = tile_count(keys, choice.tile);
  double* masses = work.masses.reserve(tiles);
  int32_t* budgets = work.order.reserve(2 * int64_t{tiles});
  const auto tile_cdf = [&](int32_t t) {
    return RowCdf<V>(weights + t * choice.tile, std::min(choice.tile, keys - t * choice.tile), work);
  };
  double total = 0;
  for (int32_t t = 0; t < tiles; ++t) {
    masses[t] = tile_cdf(t).total();
    total += masses[t];
  }
  if constexpr (kProportional) {
    largest_remainder<V>(masses, total, tiles, samples, budgets, budgets + tiles);
  } else {
    for (int32_t t = 0; t < tiles; ++t) budgets[t] = flash_tile_budget(samples, tiles, t);
  }
  Pick* picks = work.picks.reserve(samples);
  int32_t count = 0;
  for (int32_t t = 0; t < tiles; ++t) {
    if (budgets[t] == 0 || masses[t] == 0) continue;  // a tile without mass adds nothing under `flash`
    const float weight = kProportional ? 1.0f : static_cast<float>(masses[t] / budgets[t]);
    pick_systematic<V>(tile_cdf(t), t * choice.tile, budgets[t],
                       draw_uniform(draws, static_cast<uint32_t>(t)), weight, picks + count);
    count += budgets[t];
  }
  return {.count = count, .scale = static_cast<float>(kProportional ? 1.0 / samples : 1.0 / total)};
}

// Bit i: lane i is positive and at least tau.
template <class V>
ALLOT_INLINE uint32_t at_least(typename V::F w, float tau) {
  return ~V::less_bits(w, V::set1(tau)) & V::less_bits(V::zero(), w);
}

// Puts the keys of at least tau on the list with their weight, and the weights of the others into `rest`;
// returns how many are on the list. `weights` and `rest` have a whole number of lanes.
template <class V>
int32_t split_at(const float* weights, int32_t keys, float tau, float* rest, Pick* picks) {
  int32_t count = 0;
  for (int32_t n = 0; n < keys; n += kLanes) {
    const auto w = V::load(weights + n);
    V::store(rest + n, V::keep_less(w, V::set1(tau)));
    for (uint32_t bits = at_least<V>(w, tau); bits != 0; bits &= bits - 1) {
      const int32_t key = n + std::countr_zero(bits);
      picks[count++] = {key, weights[key]};
    }
  }
  return count;
}

template <class V>
Picks select_threshold(const float* weights, int32_t keys, int32_t samples, const DrawRow& draws,
                       Workspace& work) {
  using F = typename V::F;
  // Rows of at least tau are kept. Starting from tau = mass / S and keeping more rows as tau falls reaches
  // the solution of sum min(1, p_n / tau) = S from above in at most S rounds, in practice in two or three.
  const auto below = [&](float tau, int32_t& kept) {
    F mass = V::zero();
    kept = 0;
    for (int32_t n = 0; n < keys; n += kLanes) {  // the row is padded with zeros
      const F w = V::load(weights + n);
      kept += std::popcount(at_least<V>(w, tau));
      mass = mass + V::keep_less(w, V::set1(tau));
    }
    return V::reduce_add(mass);
  };
  int32_t kept = 0;
  int32_t positive = 0;
  for (int32_t n = 0; n < keys; n += kLanes)
    positive += std::popcount(V::less_bits(V::zero(), V::load(weights + n)));
  const float total = RowCdf<V>(weights, keys, work).total();
  if (positive <= samples) return {.scale = 1 / total, .all = true};
  float tau = total / static_cast<float>(samples);
  float rest_mass = 0;
  for (int32_t previous = -1; previous != kept;) {
    previous = kept;
    rest_mass = below(tau, kept);
    if (kept >= samples) break;  // the others weigh nothing within rounding
    const float next = rest_mass / static_cast<float>(samples - kept);
    if (!(next < tau)) break;
    tau = next;
  }
  Pick* picks = work.picks.reserve(int64_t{keys} + samples);
  float* rest = work.rest.reserve(int64_t{keys} + kLanes);
  int32_t count = split_at<V>(weights, keys, tau, rest, picks);
  const int32_t drawn = samples - count;
  if (drawn > 0) {
    const RowCdf<V> cdf(rest, keys, work);
    pick_systematic<V>(cdf, 0, drawn, draw_uniform(draws, kRowDraw), cdf.total() / static_cast<float>(drawn),
                       picks + count);
    count += drawn;
  }
  return {.count = count, .scale = 1 / total};
}

template <class V>
Picks select_topk(const float* weights, int32_t keys, int32_t samples, Workspace& work) {
  if (samples >= keys) return {.scale = 1 / RowCdf<V>(weights, keys, work).total(), .all = true};
  int32_t* order = work.order.reserve(keys);
  for (int32_t n = 0; n < keys; ++n) order[n] = n;
  const auto larger = [weights](int32_t a, int32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  std::nth_element(order, order + samples, order + keys, larger);
  Pick* picks = work.picks.reserve(samples);
  double kept = 0;
  for (int32_t s = 0; s < samples; ++s) {
    picks[s] = {order[s], weights[order[s]]};
    kept += weights[order[s]];
  }
  return {.count = samples, .scale = static_cast<float>(1 / kept)};
}

// One sample at each target of the whole row: target(s) is the CDF point of sample s.
template <class V, class Target>
ALLOT_INLINE Picks pick_targets(const float* weights, int32_t keys, int32_t samples, Workspace& work,
                                const Target& target) {
  const RowCdf<V> cdf(weights, keys, work);
  Pick* picks = work.picks.reserve(samples);
  for (int32_t s = 0; s < samples; ++s) picks[s] = {cdf.locate(target(s) * cdf.total()), 1.0f};
  return {.count = samples, .scale = 1 / static_cast<float>(samples)};
}

// The selections of the estimators by whole vectors: overloads for those that have one.
template <class V>
Picks pick(methods::Iid, const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
           Workspace& work) {
  return pick_targets<V>(weights, keys, choice.samples, work, [&](int32_t s) {
    return independent_target<float>(draw_uniform(draws, static_cast<uint32_t>(s)));
  });
}
template <class V>
Picks pick(methods::Strat, const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
           Workspace& work) {
  return pick_targets<V>(weights, keys, choice.samples, work, [&](int32_t s) {
    return stratum_target<float>(s, choice.samples, draw_uniform(draws, static_cast<uint32_t>(s)));
  });
}
template <class V>
Picks pick(methods::Sys, const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
           Workspace& work) {
  const float u = draw_uniform(draws, kRowDraw);
  return pick_targets<V>(weights, keys, choice.samples, work,
                         [&](int32_t s) { return stratum_target<float>(s, choice.samples, u); });
}
template <class V>
Picks pick(methods::Prop, const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
           Workspace& work) {
  return select_tiles<V, true>(weights, keys, choice, draws, work);
}
template <class V>
Picks pick(methods::Flash, const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
           Workspace& work) {
  return select_tiles<V, false>(weights, keys, choice, draws, work);
}
template <class V>
Picks pick(methods::Threshold, const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
           Workspace& work) {
  return select_threshold<V>(weights, keys, choice.samples, draws, work);
}
template <class V>
Picks pick(methods::Topk, const float* weights, int32_t keys, const Choice& choice, const DrawRow& /*draws*/,
           Workspace& work) {
  return select_topk<V>(weights, keys, choice.samples, work);
}

template <class V>
struct PickOf {
  using Function = Picks (*)(const float*, int32_t, const Choice&, const DrawRow&, Workspace&);
  template <class Method>
  static Picks call(const float* weights, int32_t keys, const Choice& choice, const DrawRow& draws,
                    Workspace& work) {
    if constexpr (requires { pick<V>(Method{}, weights, keys, choice, draws, work); }) {
      return pick<V>(Method{}, weights, keys, choice, draws, work);
    } else {
      return Method::pick(weights, keys, choice, draws, work);
    }
  }
  // Null for a method without samples, whose rows sum all keys, and for a wider scope than a head (share.h).
  template <class Method>
  static constexpr Function of() {
    if constexpr (Method::kRow.samples && Method::kRow.scope == Scope::kHead) {
      return call<Method>;
    } else {
      return nullptr;
    }
  }
};

// Picks of a row of `keys` weights; `weights` is followed by zeros up to a whole number of lanes. `samples` >
// 0, so the method must be one that samples, and every head chooses for itself.
template <class V>
Picks select_row(const float* weights, int32_t keys, const AttentionParams& p, int32_t samples,
                 const DrawRow& draws, Workspace& work) {
  static constexpr Methods::Table<typename PickOf<V>::Function, PickOf<V>> kPick;
  const Estimator estimator = p.method.estimator;
  const Choice choice{samples, p.method.tile, own_parameters(estimator, p.method.parameters)};
  return kPick[estimator](weights, keys, choice, draws, work);
}

}  // namespace allot::kernels::cpu
