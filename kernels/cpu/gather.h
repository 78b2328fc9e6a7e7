// Weighted sums of value vectors that lie anywhere in the pages.
#pragma once

#include <algorithm>
#include <bit>
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

// Value vectors that heads of a group read together, `count` of them: element places[i] after `base` is where
// vector i starts, and head h weighs it factors[h * stride + i].
template <class T>
struct ValueList {
  const T* base;
  const int64_t* places;
  const float* factors;
  int64_t stride;
  int32_t count;
};

// sums[h][c] = weighted sum of elements dim + 16 c .. dim + 16 c + 16 of the values, for kHeads heads.
// kPartial: there are only `left` elements.
template <class V, class T, int kHeads, int kChunks, bool kPartial = false>
ALLOT_INLINE void gather_chunks(const ValueList<T>& from, int32_t head, int32_t dim, int32_t left,
                                typename V::F (&sums)[kHeads][kChunks]) {
  using F = typename V::F;
  // Copies, since the compiler cannot know that no store changes what the list points at.
  const T* const base = from.base + dim;
  const int64_t* const places = from.places;
  const float* const factors = from.factors + head * from.stride;
  const int64_t stride = from.stride;
  const int32_t count = from.count;
  for (int h = 0; h < kHeads; ++h) {
    for (int c = 0; c < kChunks; ++c) sums[h][c] = V::zero();
  }
  for (int32_t i = 0; i < count; ++i) {
    const T* value = base + places[i];
    F factor[kHeads];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) factor[h] = V::set1(factors[h * stride + i]);
#pragma GCC unroll 8
    for (int c = 0; c < kChunks; ++c) {
      const F x = kPartial ? V::load_partial(value, left) : V::load(value + c * kLanes);
#pragma GCC unroll 4
      for (int h = 0; h < kHeads; ++h) sums[h][c] = V::fma(x, factor[h], sums[h][c]);
    }
  }
}

// Estimates of heads [head, head + kHeads) from element `dim` on, kChunks registers at a time as long as they
// fit; returns the first element that is left.
template <class V, int kHeads, int kChunks, class T, class Scale, class Out>
ALLOT_INLINE int32_t gather_span(const ValueList<T>& from, int32_t head, int32_t dim, int32_t head_dim,
                                 const Scale& scale, const Out& out) {
  using F = typename V::F;
  for (; dim + kChunks * kLanes <= head_dim; dim += kChunks * kLanes) {
    F sums[kHeads][kChunks];
    gather_chunks<V>(from, head, dim, 0, sums);
    for (int h = 0; h < kHeads; ++h) {
      const F factor = V::set1(scale(head + h));
      auto* const row = out(head + h) + dim;
      for (int c = 0; c < kChunks; ++c) V::store(row + c * kLanes, sums[h][c] * factor);
    }
  }
  return dim;
}

// The estimates of heads [head, head + kHeads); scale(h) is what a head's sum is multiplied by, out(h) where
// it goes.
template <class V, int kHeads, class T, class Scale, class Out>
void gather_some_heads(const ValueList<T>& from, int32_t head, int32_t head_dim, const Scale& scale,
                       const Out& out) {
  using F = typename V::F;
  // As many sums as fit in the registers; more than 8 of a head would only make more code.
  constexpr int kChunks = std::min(8u, std::bit_floor(unsigned{V::kGatherSums} / kHeads));
  int32_t dim = gather_span<V, kHeads, kChunks>(from, head, 0, head_dim, scale, out);
  if constexpr (kChunks > 4) dim = gather_span<V, kHeads, 4>(from, head, dim, head_dim, scale, out);
  if constexpr (kChunks > 2) dim = gather_span<V, kHeads, 2>(from, head, dim, head_dim, scale, out);
  if constexpr (kChunks > 1) dim = gather_span<V, kHeads, 1>(from, head, dim, head_dim, scale, out);
  if (dim == head_dim) return;
  const int32_t left = head_dim - dim;
  F sums[kHeads][1];
  gather_chunks<V, T, kHeads, 1, true>(from, head, dim, left, sums);
  for (int h = 0; h < kHeads; ++h)
    V::store_partial(out(head + h) + dim, sums[h][0] * V::set1(scale(head + h)), left);
}

// The same for heads [0, heads), as many at a time as the registers hold: a value is read once for them.
template <class V, class T, class Scale, class Out>
void gather_heads(const ValueList<T>& from, int32_t heads, int32_t head_dim, const Scale& scale,
                  const Out& out) {
  int32_t head = 0;
  if constexpr (V::kGatherSums >= 16) {
    for (; head + 4 <= heads; head += 4) gather_some_heads<V, 4>(from, head, head_dim, scale, out);
  }
  // Two and two rather than three and one.
  for (; heads - head == 3 || heads - head > 4; head += 3)
    gather_some_heads<V, 3>(from, head, head_dim, scale, out);
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
