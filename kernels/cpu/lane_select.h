// Selects the keys of sixteen rows at once: lane i is row i, and the sizes of a key lie together, as prefill
// has them. Beside select.h, which takes sixteen keys of one row at a time, and by the same rules. What a
// lane takes depends on its own sizes alone, which are added from the first key on, so rows of size 0 behind
// its last key change nothing.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/cpu/lane_picks.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/vec_generic.h"
#include "kernels/cpu/workspace.h"

namespace allot::kernels::cpu {

// How many keys are summed before their sum is added to the running total of a row: keeps float32 sums of
// long rows exact enough.
inline constexpr int32_t kSumChunk = 256;

// Calls visit(key, sizes of the key, sum of the sizes so far that `part` leaves) for every key; returns the
// last sum.
template <class V, class Part, class Visit>
ALLOT_INLINE typename V::F sum_lanes(const LaneSizes& rows, const Part& part, const Visit& visit) {
  using F = typename V::F;
  F base = V::zero();
  for (int32_t chunk = 0; chunk < rows.keys; chunk += kSumChunk) {
    F sum = V::zero();
    for (int32_t key = chunk; key < std::min(rows.keys, chunk + kSumChunk); ++key) {
      const F size = V::load(rows.sizes + int64_t{key} * kLanes);
      sum = sum + part(size);
      visit(key, size, base + sum);
    }
    base = base + sum;
  }
  return base;
}

// `threshold` of every row: `samples` keys each, `u` the row's uniform number.
template <class V>
LanePicks threshold_lanes(const LaneSizes& rows, const int32_t (&samples)[kLanes], const float (&u)[kLanes],
                          Workspace& work) {
  using F = typename V::F;
  // As select_threshold does, from tau = mass / S down. A size too small for a normal number is never kept,
  // so that nothing is where tau vanishes.
  constexpr float kLeast = std::numeric_limits<float>::min();
  alignas(64) float tau[kLanes], mass[kLanes], kept[kLanes], drawn[kLanes], rate[kLanes], spacing[kLanes];
  const F zero = V::zero(), one = V::set1(1.0f);
  F positive = zero;
  V::store(mass,
           sum_lanes<V>(
               rows, [](F size) { return size; },
               [&](int32_t, F size, F) { positive = positive + V::select_less(zero, size, one, zero); }));
  V::store(kept, positive);
  uint32_t open = 0;  // lanes whose tau may still fall
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    const bool all = kept[lane] <= static_cast<float>(samples[lane]) || lane >= rows.lanes;
    tau[lane] = all ? kLeast : std::max(mass[lane] / static_cast<float>(samples[lane]), kLeast);
    drawn[lane] = 0;
    if (!all) open |= 1u << lane;
  }
  const uint32_t choosing = open;
  while (open != 0) {
    const F limit = V::load(tau);
    F above = zero;
    V::store(mass, sum_lanes<V>(
                       rows, [&](F size) { return V::keep_less(size, limit); },
                       [&](int32_t, F size, F) { above = above + V::select_less(size, limit, zero, one); }));
    V::store(kept, above);
    for (uint32_t bits = open; bits != 0; bits &= bits - 1) {
      const int lane = std::countr_zero(bits);
      const float left = static_cast<float>(samples[lane]) - kept[lane];
      const float next = std::max(mass[lane] / left, kLeast);
      // With none left the others weigh nothing within rounding.
      if (left > 0 && next < tau[lane]) {
        tau[lane] = next;
      } else {
        open &= ~(1u << lane);
      }
    }
  }
  // The last round had every lane's last tau, since others' rounds do not change it.
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    if (choosing >> lane & 1) drawn[lane] = std::max(static_cast<float>(samples[lane]) - kept[lane], 0.0f);
    const bool draws = drawn[lane] > 0 && mass[lane] > 0;
    // Slightly more, so that rounding at the end of a row never loses the last sample.
    rate[lane] = draws ? drawn[lane] * (1 + 0x1p-22f) / mass[lane] : 0;
    spacing[lane] = draws ? mass[lane] / drawn[lane] : 0;
  }
  LanePicks picks(rows, work);
  const uint32_t real = (1u << rows.lanes) - 1;
  const F limit = V::load(tau), most = V::load(drawn), per_mass = V::load(rate), offset = V::load(u);
  F before = zero;
  sum_lanes<V>(
      rows, [&](F size) { return V::keep_less(size, limit); },
      [&](int32_t key, F size, F reached_mass) {
        const F reached = V::min(V::floor(V::fma(reached_mass, per_mass, offset)), most);
        const F count = reached - before;
        before = reached;
        uint32_t bits = (~V::less_bits(size, limit) | V::less_bits(zero, count)) & real;
        if (bits == 0) return;
        alignas(64) float weights[kLanes];
        V::store(weights, V::select_less(size, limit, count * V::load(spacing) / size, one));
        for (; bits != 0; bits &= bits - 1) {
          const int lane = std::countr_zero(bits);
          picks.add(lane, {key, weights[lane]});
        }
      });
  return picks;
}

// Every row's keys at targets of one spacing, 1 / per_mass (select_level).
template <class V>
LanePicks level_lanes(const LaneSizes& rows, float per_mass, const float (&u)[kLanes], Workspace& work) {
  using F = typename V::F;
  LanePicks picks(rows, work);
  const uint32_t real = (1u << rows.lanes) - 1;
  const F rate = V::set1(per_mass), offset = V::load(u), zero = V::zero(), one = V::set1(1.0f);
  F before = zero;
  sum_lanes<V>(
      rows, [](F size) { return size; },
      [&](int32_t key, F size, F reached_mass) {
        const F reached = V::floor(V::fma(reached_mass, rate, offset));
        const F targets = size * rate;
        // Rounding of the sum must not lose a row that is surely taken.
        uint32_t bits = (V::less_bits(before, reached) | ~V::less_bits(targets, one)) & real;
        before = reached;
        if (bits == 0) return;
        alignas(64) float weights[kLanes];
        V::store(weights, V::max(one, one / targets));
        for (; bits != 0; bits &= bits - 1) {
          const int lane = std::countr_zero(bits);
          picks.add(lane, {key, weights[lane]});
        }
      });
  return picks;
}

// Calls visit(key, size, count) for every key with its systematic counts floor(S P_n + u) - floor(S P_{n-1} +
// u) in the rows, `total` being the sums of their sizes. S is made slightly larger and the running count is
// limited to S, so that rounding at the end of a row never loses the last sample: each row's counts add up to
// S.
template <class V, class Visit>
ALLOT_INLINE void count_lanes(const LaneSizes& rows, int32_t samples, typename V::F total,
                              const float (&u)[kLanes], const Visit& visit) {
  using F = typename V::F;
  const F most = V::set1(static_cast<float>(samples));
  const F rate = V::set1(static_cast<float>(samples) * (1 + 0x1p-22f)) / total;
  const F offset = V::load(u);
  F before = V::zero();
  sum_lanes<V>(
      rows, [](F size) { return size; },
      [&](int32_t key, F, F reached_mass) {
        const F reached = V::min(V::floor(V::fma(reached_mass, rate, offset)), most);
        visit(key, reached - before);
        before = reached;
      });
}

// The keys of those counts; the weight of a pick is its count.
template <class V>
LanePicks systematic_lanes(const LaneSizes& rows, int32_t samples, typename V::F total,
                           const float (&u)[kLanes], Workspace& work) {
  using F = typename V::F;
  LanePicks picks(rows, work);
  const uint32_t real = (1u << rows.lanes) - 1;
  count_lanes<V>(rows, samples, total, u, [&](int32_t key, F count) {
    uint32_t bits = V::less_bits(V::zero(), count) & real;
    if (bits == 0) return;
    alignas(64) float counts[kLanes];
    V::store(counts, count);
    for (; bits != 0; bits &= bits - 1) {
      const int lane = std::countr_zero(bits);
      picks.add(lane, {key, counts[lane]});
    }
  });
  return picks;
}

// The selections of the estimators for sixteen rows at once: overloads for those that have one, of which
// every row takes `samples`.
template <class V>
LanePicks pick_lanes(methods::Threshold, const LaneSizes& rows, int32_t samples, const float (&u)[kLanes],
                     Workspace& work) {
  int32_t of_each[kLanes];
  std::fill(of_each, of_each + kLanes, samples);
  return threshold_lanes<V>(rows, of_each, u, work);
}

template <class V>
struct PickLanesOf {
  using Function = LanePicks (*)(const LaneSizes&, int32_t, const float (&)[kLanes], Workspace&);
  template <class Method>
  static LanePicks call(const LaneSizes& rows, int32_t samples, const float (&u)[kLanes], Workspace& work) {
    return pick_lanes<V>(Method{}, rows, samples, u, work);
  }
  // Null for a method whose rows are selected one by one.
  template <class Method>
  static constexpr Function of() {
    if constexpr (requires(const LaneSizes& rows, const float(&u)[kLanes], Workspace& work) {
                    pick_lanes<V>(Method{}, rows, 1, u, work);
                  }) {
      return call<Method>;
    } else {
      return nullptr;
    }
  }
};

}  // namespace allot::kernels::cpu
