// Weighted sums of value vectors that lie anywhere in the pages.
#pragma once

#include <cstdint>

#include "kernels/cpu/vec_generic.h"
#include "kernels/cpu/workspace.h"

namespace allot::kernels::cpu {

// sum += weight * value for one value vector of `chunks` registers.
template <class V, class T>
ALLOT_INLINE void accumulate_value(const T* value, float weight, int32_t head_dim, float* sum) {
  using F = typename V::F;
  const F factor = V::set1(weight);
  int32_t i = 0;
  for (; i + kLanes <= head_dim; i += kLanes)
    V::store(sum + i, V::fma(V::load(value + i), factor, V::load(sum + i)));
  if (i < head_dim)
    V::store(sum + i, V::fma(V::load_partial(value + i, head_dim - i), factor, V::load(sum + i)));
}

// The same over a list, with the sums of one or two chunks in registers.
template <class V, class T, int kChunks, class WeightedKey>
ALLOT_INLINE void gather_values(const T* pages, const int64_t* offsets, int32_t count,
                                const WeightedKey& weighted_key, int32_t head_dim, float* sum) {
  using F = typename V::F;
  if constexpr (kChunks != 0) {
    F sums[kChunks];
    for (int c = 0; c < kChunks; ++c) sums[c] = V::zero();
    for (int32_t i = 0; i < count; ++i) {
      const Pick pick = weighted_key(i);
      const T* value = pages + offsets[pick.key];
      const F factor = V::set1(pick.weight);
      for (int c = 0; c < kChunks; ++c) sums[c] = V::fma(V::load(value + c * kLanes), factor, sums[c]);
    }
    for (int c = 0; c < kChunks; ++c) V::store(sum + c * kLanes, sums[c]);
  } else {
    for (int32_t c = 0; c < head_dim; c += kLanes) V::store(sum + c, V::zero());
    for (int32_t i = 0; i < count; ++i) {
      const Pick pick = weighted_key(i);
      accumulate_value<V>(pages + offsets[pick.key], pick.weight, head_dim, sum);
    }
  }
}

// The same for a width that is known when the program runs; the usual ones unrolled.
template <class V, class T, class WeightedKey>
void gather_values(const T* pages, const int64_t* offsets, int32_t count, const WeightedKey& weighted_key,
                   int32_t head_dim, float* sum) {
  switch (head_dim) {
    case 32:
      return gather_values<V, T, 2>(pages, offsets, count, weighted_key, head_dim, sum);
    case 64:
      return gather_values<V, T, 4>(pages, offsets, count, weighted_key, head_dim, sum);
    case 128:
      return gather_values<V, T, 8>(pages, offsets, count, weighted_key, head_dim, sum);
    default:
      return gather_values<V, T, 0>(pages, offsets, count, weighted_key, head_dim, sum);
  }
}

template <class V, class T>
void write_row(const float* sum, float scale, int32_t head_dim, T* out) {
  for (int32_t i = 0; i < head_dim; i += kLanes) {
    const auto x = V::load(sum + i) * V::set1(scale);
    if (head_dim - i >= kLanes) {
      V::store(out + i, x);
    } else {
      V::store_partial(out + i, x, head_dim - i);
    }
  }
}

}  // namespace allot::kernels::cpu
