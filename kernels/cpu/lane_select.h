// Selects the keys of sixteen rows at once: lane i is row i, and the sizes of a key lie together, as prefill
// has them. Beside select.h, which takes sixteen keys of one row at a time, and by the same rules. What a
// lane takes depends on its own sizes alone, which are added from the first key on, so rows of size 0 behind
// its last key change nothing.
#pragma once

#include <algorithm>
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

// The least tau of `threshold_lanes`: a size too small for a normal number is never kept, so that nothing is
// where tau vanishes.
inline constexpr float kLeastTau = std::numeric_limits<float>::min();

// What `threshold` keeps of every row with a limit tau: how many keys are at least tau, and the sum of the
// others.
template <class V>
struct Kept {
  typename V::F keys;
  typename V::F rest;
};

template <class V>
Kept<V> keep_lanes(const LaneSizes& rows, typename V::F tau) {
  using F = typename V::F;
  const F zero = V::zero(), one = V::set1(1.0f);
  F keys = zero;
  const F rest = sum_lanes<V>(
      rows, [&](F size) { return V::keep_less(size, tau); },
      [&](int32_t, F size, F) { keys = keys + V::select_less(size, tau, zero, one); });
  return {keys, rest};
}

// `threshold` of every row: `samples` keys each, `u` the row's uniform number. The weight of a key that is
// taken is weigh(size, 1 / the probability with which it is).
template <class V, class Weigh>
LanePicks<V> threshold_lanes(const LaneSizes& rows, const int32_t (&samples)[kLanes],
                             const float (&u)[kLanes], const Weigh& weigh, Workspace& work) {
  using F = typename V::F;
  const F zero = V::zero(), one = V::set1(1.0f), least = V::set1(kLeastTau);
  alignas(64) float wanted_keys[kLanes];
  for (int32_t lane = 0; lane < kLanes; ++lane) {
    // Lanes without a row want all, which ends their rounds.
    wanted_keys[lane] =
        lane < rows.lanes ? static_cast<float>(samples[lane]) : std::numeric_limits<float>::max();
  }
  const F wanted = V::load(wanted_keys);
  // As select_threshold does, from tau = mass / S down. A row that takes all its keys has the least tau from
  // the start; the last round has every lane's last tau, since it does not change that of a lane that is
  // done.
  F positive = zero;
  const F mass = sum_lanes<V>(
      rows, [](F size) { return size; },
      [&](int32_t, F size, F) { positive = positive + V::select_less(zero, size, one, zero); });
  F tau = V::select_less(wanted, positive, V::max(mass / wanted, least), least);
  Kept<V> kept = {positive, mass};
  for (bool falls = V::less_bits(wanted, positive) != 0; falls;) {
    kept = keep_lanes<V>(rows, tau);
    const F left = wanted - kept.keys;
    // With none left the others weigh nothing within rounding.
    const F next = V::select_less(zero, left, V::max(kept.rest / left, least), tau);
    falls = V::less_bits(next, tau) != 0;
    tau = V::select_less(next, tau, next, tau);
  }
  const F drawn = V::select_less(wanted, positive, V::max(wanted - kept.keys, zero), zero);
  // Slightly more, so that rounding at the end of a row never loses the last sample.
  const F rate = V::select_less(
      zero, drawn, V::select_less(zero, kept.rest, drawn * V::set1(1 + 0x1p-22f) / kept.rest, zero), zero);
  const F spacing =
      V::select_less(zero, drawn, V::select_less(zero, kept.rest, kept.rest / drawn, zero), zero);
  LanePicks<V> picks(rows, work);
  const F offset = V::load(u);
  F before = zero;
  sum_lanes<V>(
      rows, [&](F size) { return V::keep_less(size, tau); },
      [&](int32_t key, F size, F reached_mass) {
        const F reached = V::min(V::floor(V::fma(reached_mass, rate, offset)), drawn);
        const F count = reached - before;
        before = reached;
        const uint32_t taken = ~V::less_bits(size, tau) | V::less_bits(zero, count);
        picks.take(key, taken);
        if (taken != 0)
          V::store(rows.sizes + int64_t{key} * kLanes,
                   weigh(size, V::select_less(size, tau, count * spacing / size, one)));
      });
  picks.finish();
  return picks;
}

// Every row's keys at targets of one spacing, 1 / per_mass (select_level); the weight of a pick is 1 / the
// probability with which it is taken.
template <class V>
LanePicks<V> level_lanes(const LaneSizes& rows, float per_mass, const float (&u)[kLanes], Workspace& work) {
  using F = typename V::F;
  LanePicks<V> picks(rows, work);
  const F rate = V::set1(per_mass), offset = V::load(u), one = V::set1(1.0f);
  F before = V::zero();
  sum_lanes<V>(
      rows, [](F size) { return size; },
      [&](int32_t key, F size, F reached_mass) {
        const F reached = V::floor(V::fma(reached_mass, rate, offset));
        const F targets = size * rate;
        // Rounding of the sum must not lose a row that is surely taken.
        const uint32_t taken = V::less_bits(before, reached) | ~V::less_bits(targets, one);
        before = reached;
        picks.take(key, taken);
        if (taken != 0) V::store(rows.sizes + int64_t{key} * kLanes, V::max(one, one / targets));
      });
  picks.finish();
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
LanePicks<V> systematic_lanes(const LaneSizes& rows, int32_t samples, typename V::F total,
                              const float (&u)[kLanes], Workspace& work) {
  using F = typename V::F;
  LanePicks<V> picks(rows, work);
  count_lanes<V>(rows, samples, total, u, [&](int32_t key, F count) {
    picks.take(key, V::less_bits(V::zero(), count));
    V::store(rows.sizes + int64_t{key} * kLanes, count);
  });
  picks.finish();
  return picks;
}

// The selections of the estimators for sixteen rows at once: overloads for those that have one, of which
// every row takes `samples`. A pick's weight is that of its value in the row's sum.
template <class V>
LanePicks<V> pick_lanes(methods::Threshold, const LaneSizes& rows, int32_t samples, const float (&u)[kLanes],
                        Workspace& work) {
  int32_t of_each[kLanes];
  std::fill(of_each, of_each + kLanes, samples);
  using F = typename V::F;
  return threshold_lanes<V>(
      rows, of_each, u, [](F size, F rate) { return size * rate; }, work);
}

template <class V>
struct PickLanesOf {
  using Function = LanePicks<V> (*)(const LaneSizes&, int32_t, const float (&)[kLanes], Workspace&);
  template <class Method>
  static LanePicks<V> call(const LaneSizes& rows, int32_t samples, const float (&u)[kLanes],
                           Workspace& work) {
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
