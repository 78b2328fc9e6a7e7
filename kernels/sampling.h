// The rules that make a sampled attention row a pure function of its probabilities and its random numbers.
// The reference, the CPU kernels and device kernels all include this file, so that they pick the same keys
// from the same draws. Only rules are here: which number a draw has, which point of the CDF it selects, how
// budgets are distributed.
//
// Let P_n = p_0 + ... + p_n be the CDF of a row over its visible keys. Every sample of the value stage is a
// target t in (0, 1] and picks the first key n with P_n >= t, so a key of weight zero is never picked. The
// paper (section 2.2) writes strata [m/S, (m+1)/S) and picks P_{n-1} <= t < P_n; with u uniform on [0, 1)
// both describe the same distribution, and (s + 1 - u)/S below is exactly the count floor(S P_n + u) -
// floor(S P_{n-1} + u).
//
// | estimator | draw number                    | target                                 | weight  |
// |-----------|--------------------------------|----------------------------------------|---------|
// | iid       | s, of sample s                 | 1 - u_s                                | 1/S     |
// | strat     | s                              | (s + 1 - u_s) / S                      | 1/S     |
// | sys       | 0                              | (s + 1 - u_0) / S                      | 1/S     |
// | prop      | t, of tile t                   | (s + 1 - u_t) / S_t of the tile's mass | 1/S     |
// | flash     | t                              | (s + 1 - u_t) / S_t of the tile's mass | W_t/S_t |
// | threshold | 0                              | (s + 1 - u_0) / (S - kept) of the rest | tau     |
// | joint     | 0, of the group's first head   | threshold's, of the rows' sizes        | p / pi  |
// | pooled    | 0, of head 0                   | the same, of the rows of all groups    | p / pi  |
// | level     | 0, of the group's first head   | (s + 1 - u_0) / S of the rest          | p / pi  |
// | Bernoulli | kScoreDraws + b * head_dim + i | element i of the query, sample b of B  |         |
//
// Under threshold the keys kept (p >= tau) weigh p and the rest is the mass of the others.
//
// Under joint, pooled and level a row's size is the sum of its probabilities in the heads of its group; joint
// and pooled have the samples of all these heads together (kernels/methods/shared/method.h). Where budgets
// count rows of a group of g heads, S is R / g.
//
// The mean group query (Appendix C.2) is drawn once a head group, under the number of the group's
// first query head.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace allot::kernels {

// Largest sample budget and largest Bernoulli budget B of a row: no context is longer. No memory depends on
// it. Where a kernel forms the CDF in float32, a target misses its point by up to about 2^-24 of the row's
// mass, whatever the budget, so of S samples a share of about S * 2^-24 lands on the key next to the one that
// the reference picks.
inline constexpr int32_t kMaxBudget = 262144;

// Draw of the estimators with one offset a row (sys, threshold).
inline constexpr uint32_t kRowDraw = 0;

// Draw of sample b of query element i in the Bernoulli score stages.
ALLOT_HOST_DEVICE constexpr uint32_t bernoulli_draw(int32_t b, int32_t i, int32_t head_dim) {
  return kScoreDraws + static_cast<uint32_t>(b) * static_cast<uint32_t>(head_dim) + static_cast<uint32_t>(i);
}

// Target of sample `s` of `samples` in its stratum ((s)/samples, (s + 1)/samples], as a fraction of
// the mass sampled.
template <class Real>
ALLOT_HOST_DEVICE constexpr Real stratum_target(int32_t s, int32_t samples, float u) {
  return (static_cast<Real>(s + 1) - static_cast<Real>(u)) / static_cast<Real>(samples);
}

// Target of an independent sample.
template <class Real>
ALLOT_HOST_DEVICE constexpr Real independent_target(float u) {
  return Real{1} - static_cast<Real>(u);
}

// Samples of `level` in a rest of this mass, in units of 1 / S: as many as its targets that lie in it.
template <class Real>
ALLOT_HOST_DEVICE constexpr int32_t level_draws(Real mass, float u) {
  return static_cast<int32_t>(mass + static_cast<Real>(u));  // rounds down
}
// Target of its sample `s`, in the same units.
template <class Real>
ALLOT_HOST_DEVICE constexpr Real level_target(int32_t s, float u) {
  return static_cast<Real>(s + 1) - static_cast<Real>(u);
}

// Tiles of `tile` keys in a row of `keys` keys.
ALLOT_HOST_DEVICE constexpr int32_t tile_count(int32_t keys, int32_t tile) {
  return (keys + tile - 1) / tile;
}

// Samples of tile `t` under `flash`: S / tiles each, and one more in the first S mod tiles tiles ("S/T,
// rounded" in Algorithm 6, spread so that a row draws exactly S).
ALLOT_HOST_DEVICE constexpr int32_t flash_tile_budget(int32_t samples, int32_t tiles, int32_t t) {
  return samples / tiles + (t < samples % tiles ? 1 : 0);
}

}  // namespace allot::kernels
