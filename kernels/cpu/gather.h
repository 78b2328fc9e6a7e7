// Weighted sums of value vectors that lie anywhere in the pages.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

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

// Rows that heads of a group read together: values at pages + offsets[key], of which head h weighs
// pick.weight * weights[h * head_stride + key * key_stride].
template <class T>
struct SharedPicks {
  const T* pages;
  const int64_t* offsets;
  std::span<const Pick> picks;
  const float* weights;
  int64_t head_stride;
  int64_t key_stride;
};

// sums[h][c] = weighted sum of elements dim + 16 c .. dim + 16 c + 16 of the values, for kHeads heads.
// kPartial: there are only `left` elements.
template <class V, class T, int kHeads, int kChunks, bool kPartial = false>
ALLOT_INLINE void gather_chunks(const SharedPicks<T>& from, int32_t head, int32_t dim, int32_t left,
                                typename V::F (&sums)[kHeads][kChunks]) {
  using F = typename V::F;
  const float* const weights = from.weights + head * from.head_stride;
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < kChunks; ++c) sums[h][c] = V::zero();
  }
  for (const Pick& pick : from.picks) {
    const T* value = from.pages + from.offsets[pick.key] + dim;
    F values[kChunks];
    for (int c = 0; c < kChunks; ++c)
      values[c] = kPartial ? V::load_partial(value, left) : V::load(value + c * kLanes);
    const float* w = weights + pick.key * from.key_stride;
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const F factor = V::set1(w[h * from.head_stride] * pick.weight);
      for (int c = 0; c < kChunks; ++c) sums[h][c] = V::fma(values[c], factor, sums[h][c]);
    }
  }
}

// The estimates of heads [head, head + kHeads); scale(h) is what a head's sum is multiplied by, out(h) where
// it goes.
template <class V, int kHeads, class T, class Scale, class Out>
void gather_some_heads(const SharedPicks<T>& from, int32_t head, int32_t head_dim, const Scale& scale,
                       const Out& out) {
  using F = typename V::F;
  int32_t dim = 0;
  for (; dim + V::kGatherChunks * kLanes <= head_dim; dim += V::kGatherChunks * kLanes) {
    F sums[kHeads][V::kGatherChunks];
    gather_chunks<V>(from, head, dim, 0, sums);
    for (int h = 0; h < kHeads; ++h) {
      const F factor = V::set1(scale(head + h));
      for (int c = 0; c < V::kGatherChunks; ++c)
        V::store(out(head + h) + dim + c * kLanes, sums[h][c] * factor);
    }
  }
  for (; dim < head_dim; dim += kLanes) {
    const int32_t left = std::min(kLanes, head_dim - dim);
    F sums[kHeads][1];
    if (left == kLanes) {
      gather_chunks<V>(from, head, dim, left, sums);
    } else {
      gather_chunks<V, T, kHeads, 1, true>(from, head, dim, left, sums);
    }
    for (int h = 0; h < kHeads; ++h) {
      const F result = sums[h][0] * V::set1(scale(head + h));
      if (left == kLanes) {
        V::store(out(head + h) + dim, result);
      } else {
        V::store_partial(out(head + h) + dim, result, left);
      }
    }
  }
}

// The same for heads [0, heads), as many at a time as the registers hold: a value is read once for them.
template <class V, class T, class Scale, class Out>
void gather_heads(const SharedPicks<T>& from, int32_t heads, int32_t head_dim, const Scale& scale,
                  const Out& out) {
  int32_t head = 0;
  if constexpr (V::kGatherHeads == 4) {
    for (; head + 4 <= heads; head += 4) gather_some_heads<V, 4>(from, head, head_dim, scale, out);
    if (head + 3 == heads) return gather_some_heads<V, 3>(from, head, head_dim, scale, out);
  }
  for (; head + 2 <= heads; head += 2) gather_some_heads<V, 2>(from, head, head_dim, scale, out);
  if (head < heads) gather_some_heads<V, 1>(from, head, head_dim, scale, out);
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
