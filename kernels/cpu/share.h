// Value rows that several heads of a query choose and read together (kernels/methods/shared/method.h).
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/gather.h"
#include "kernels/cpu/read_rows.h"
#include "kernels/cpu/select.h"

namespace allot::kernels::cpu {

// The weights of all heads of a scope.
struct SharedWeights {
  const float* weights;  // [groups, heads, stride] exp(score - largest of the head), zeros up to a whole lane
  int64_t stride;        // >= keys, rounded up to a whole number of lanes
  int32_t groups;
  int32_t heads;  // of each group
  int32_t keys;

  const float* row(int32_t group, int32_t head) const {
    return weights + (int64_t{group} * heads + head) * stride;
  }
};

// The size of every row: the sum of its probabilities in the heads of its group, times its norm where there
// are `norms` [groups, padded keys]. Returns [groups, padded keys], zeros in the padding; `scales` [groups,
// heads] becomes 1 / the sum of each head's weights.
template <class V>
const float* row_sizes(const SharedWeights& shared, const float* norms, float* scales, Workspace& work) {
  const int32_t padded = whole_lanes(shared.keys);
  float* sizes = work.sizes.reserve(int64_t{shared.groups} * padded);
  for (int32_t group = 0; group < shared.groups; ++group) {
    float* of_group = sizes + int64_t{group} * padded;
    for (int32_t head = 0; head < shared.heads; ++head) {
      const float* w = shared.row(group, head);
      const float scale = 1 / RowCdf<V>(w, shared.keys, work).total();
      scales[group * shared.heads + head] = scale;
      for (int32_t n = 0; n < padded; n += kLanes) {
        auto size = V::load(w + n) * V::set1(scale);
        if (head > 0) size = V::load(of_group + n) + size;
        if (norms != nullptr && head == shared.heads - 1)
          size = size * V::load(norms + int64_t{group} * padded + n);
        V::store(of_group + n, size);
      }
    }
  }
  return sizes;
}

// Reads a row of sizes [0, keys) with probability size * per_mass, or surely from 1 / per_mass on. A pick's
// weight is its size over that probability.
template <class V>
Picks select_level(const float* sizes, int32_t keys, float per_mass, const DrawRow& draws, Workspace& work) {
  const RowCdf<V> cdf(sizes, keys, work);
  const float u = draw_uniform(draws, kRowDraw);
  const int32_t targets = level_draws(cdf.total() * per_mass, u);
  Pick* picks = work.picks.reserve(int64_t{keys} + 1);
  int32_t count = 0;
  for (int32_t s = 0; s < targets;) {
    const int32_t key = cdf.locate(level_target<float>(s, u) / per_mass);
    if (count > 0 && picks[count - 1].key == key) {
      ++s;
      continue;
    }
    picks[count++] = {key, std::max(sizes[key], 1 / per_mass)};
    // At least sizes[key] * per_mass targets, rounded down, fall in the row; the last of them is looked up,
    // in case of rounding.
    s += std::max(1, static_cast<int32_t>(sizes[key] * per_mass) - 1);
  }
  return {.count = count, .scale = 1};
}

// Estimates all rows of a scope. `pages` and `offsets` are where the value vectors of the first group lie;
// those of the next group lie a KV head further in every page. `norms` are those of row_sizes, or null.
// out(row) is where row `group * heads + head` goes.
template <class V, class T, class Out>
void attend_shared(const SharedWeights& shared, const AttentionParams& p, int32_t budget,
                   const DrawRow& draws, const T* pages, const int64_t* offsets, const float* norms,
                   const Out& out, Workspace& work, ReadRows& read, int64_t first_set) {
  float* scales = work.scales.reserve(int64_t{shared.groups} * shared.heads);
  const float* sizes = row_sizes<V>(shared, norms, scales, work);
  const int32_t padded = whole_lanes(shared.keys);
  const int32_t listed = shared.groups * padded;
  const int64_t of_group = rows_of_group(p.method.unit, budget, shared.heads);
  const auto rows = static_cast<int32_t>(std::min(of_group, int64_t{shared.keys}) * shared.groups);
  const auto per_mass = static_cast<float>(static_cast<double>(of_group) / shared.heads);
  const Picks picks = row_of(p.method.estimator).spaced
                          ? select_level<V>(sizes, listed, per_mass, draws, work)
                          : select_threshold<V>(sizes, listed, rows, draws, work);
  const Pick* chosen = work.picks.reserve(0);
  const int64_t most = int64_t{shared.keys} + 1;
  int64_t* places = work.places.reserve(most);
  float* factors = work.factors.reserve(most * shared.heads);
  for (int32_t group = 0; group < shared.groups; ++group) {
    const T* values = pages + int64_t{group} * p.page_size * p.head_dim;
    // `rate`: 1 / the probability that the row is read.
    int32_t count = 0;
    const auto add = [&](int32_t key, float rate) {
      read.mark(first_set + group, key);
      const char* bytes = reinterpret_cast<const char*>(values + offsets[key]);
      for (size_t byte = 0; byte < p.head_dim * sizeof(T); byte += 64) V::prefetch(bytes + byte);
      for (int32_t head = 0; head < shared.heads; ++head)
        factors[head * most + count] = shared.row(group, head)[key] * rate;
      places[count++] = offsets[key];
    };
    if (picks.all) {
      for (int32_t n = 0; n < shared.keys; ++n) add(n, 1.0f);
    } else {
      for (int32_t i = 0; i < picks.count; ++i) {
        const int32_t key = chosen[i].key - group * padded;
        if (key >= 0 && key < padded) add(key, chosen[i].weight / sizes[chosen[i].key]);
      }
    }
    const int32_t first_row = group * shared.heads;
    gather_heads<V>(
        ValueList<T>{.base = values, .places = places, .factors = factors, .stride = most, .count = count},
        shared.heads, p.head_dim, [&](int32_t head) { return scales[first_row + head]; },
        [&](int32_t head) { return out(first_row + head); });
  }
}

}  // namespace allot::kernels::cpu
