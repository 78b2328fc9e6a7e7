// One query against the paged cache: lanes are keys. A KV head's keys are read once from memory for its whole
// head group; a sampling estimator then reads only the value vectors it picked.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/item_data.h"
#include "kernels/cpu/score_query.h"
#include "kernels/cpu/select.h"
#include "kernels/cpu/vec_math.h"

namespace allot::kernels::cpu {

// A vector of head_dim elements as ceil(head_dim / 16) float registers. bfloat16 is taken 32 at a time as
// even and odd elements, which costs one instruction a register; query and key only need the same order.
template <class V>
ALLOT_INLINE typename V::F load_chunk(const float* p, int32_t head_dim, int32_t chunk) {
  const int32_t left = head_dim - chunk * kLanes;
  return left >= kLanes ? V::load(p + chunk * kLanes) : V::load_partial(p + chunk * kLanes, left);
}

// Dot products of 16 keys with one query: lane i is key i. `kChunks` is ceil(head_dim / 16) where it is known
// when compiling, 0 otherwise.
template <class V, int kChunks>
ALLOT_INLINE typename V::F dot_block(const float* const (&keys)[kLanes], const float* query,
                                     int32_t head_dim) {
  using F = typename V::F;
  const int32_t chunks = kChunks != 0 ? kChunks : (head_dim + kLanes - 1) / kLanes;
  F sums[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    F sum = V::zero();
    for (int32_t c = 0; c < chunks; ++c) {
      const F key = kChunks != 0 ? V::load(keys[i] + c * kLanes) : load_chunk<V>(keys[i], head_dim, c);
      sum = V::fma(key, V::load(query + c * kLanes), sum);
    }
    sums[i] = sum;
  }
  return V::reduce_add_each(sums);
}

template <class V, int kChunks>
ALLOT_INLINE typename V::F dot_block(const uint16_t* const (&keys)[kLanes], const float* query,
                                     int32_t head_dim) {
  using F = typename V::F;
  const int32_t pairs = kChunks != 0 ? kChunks / 2 : head_dim / (2 * kLanes);
  F sums[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    F sum = V::zero();
    for (int32_t c = 0; c < pairs; ++c) {
      F even, odd;
      V::load_even_odd(keys[i] + c * 2 * kLanes, even, odd);
      sum = V::fma(even, V::load(query + c * 2 * kLanes), sum);
      sum = V::fma(odd, V::load(query + c * 2 * kLanes + kLanes), sum);
    }
    if constexpr (kChunks == 0) {
      for (int32_t first = pairs * 2 * kLanes; first < head_dim; first += kLanes) {
        const F key = V::load_partial(keys[i] + first, std::min(kLanes, head_dim - first));
        sum = V::fma(key, V::load(query + first), sum);
      }
    }
    sums[i] = sum;
  }
  return V::reduce_add_each(sums);
}

// Puts a query of head_dim floats, padded with zeros, into the order of dot_block.
template <class V>
void arrange_query(const float* query, int32_t head_dim, const float*, float* arranged) {
  std::copy(query, query + head_dim, arranged);
}
template <class V>
void arrange_query(const float* query, int32_t head_dim, const uint16_t*, float* arranged) {
  const int32_t paired = head_dim / (2 * kLanes) * (2 * kLanes);
  for (int32_t i = 0; i < paired; ++i) {
    const int32_t in_block = i % (2 * kLanes);
    arranged[i - in_block + in_block / 2 + in_block % 2 * kLanes] = query[i];
  }
  std::copy(query + paired, query + head_dim, arranged + paired);
}

// Scores before scaling of every key for every head of the group: weights[g * stride + key], the padding of
// the last block included.
template <class V, class T, int kChunks>
void score_keys(const ItemData<V, T>& data, const int64_t* offsets, const float* queries,
                int32_t query_stride, float* weights, int64_t stride) {
  constexpr int32_t kAhead = 4 * kLanes;  // keys between a block and what is prefetched for it
  const T* pages = data.key_pages();
  const auto vector_bytes = static_cast<int32_t>(data.p.head_dim * sizeof(T));
  for (int32_t first = 0; first < data.keys; first += kLanes) {
    const T* keys[kLanes];
    for (int i = 0; i < kLanes; ++i) keys[i] = pages + offsets[std::min(first + i, data.keys - 1)];
    for (int32_t key = first + kAhead; key < std::min(first + kAhead + kLanes, data.keys); ++key) {
      for (int32_t byte = 0; byte < vector_bytes; byte += 64) {
        V::prefetch(reinterpret_cast<const char*>(pages + offsets[key]) + byte);
      }
    }
    for (int32_t g = 0; g < data.group; ++g) {
      V::store(weights + g * stride + first,
               dot_block<V, kChunks>(keys, queries + g * query_stride, data.p.head_dim));
    }
  }
}

// In place: 16-padded scores of `keys` keys to exp(scale * (score - largest)), zeros in the padding.
template <class V>
void exponentiate(float* row, int32_t keys, float scale) {
  using F = typename V::F;
  // The padding repeats the last key, so the largest score needs no mask.
  F largest = V::load(row);
  for (int32_t n = kLanes; n < keys; n += kLanes) largest = V::max(largest, V::load(row + n));
  const float to_power = scale * kLog2E;
  const F shift = V::set1(-V::reduce_max(largest) * to_power);
  for (int32_t n = 0; n < keys; n += kLanes) {
    V::store(row + n, exp2<V>(V::fma(V::load(row + n), V::set1(to_power), shift)));
  }
  for (int32_t n = keys; n % kLanes != 0; ++n) row[n] = 0;
}

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

// Dense values for the whole group at once, so that each value vector is read from memory once: two keys and
// two heads at a time keep four chains of additions going.
template <class V, class T>
void accumulate_all(const ItemData<V, T>& data, const int64_t* offsets, const float* weights, int64_t stride,
                    float* sums, int32_t sum_stride) {
  using F = typename V::F;
  const T* pages = data.value_pages();
  const int32_t head_dim = data.p.head_dim;
  constexpr int32_t kKeys = 8;  // per step: amortises loading and storing the sums
  for (int32_t g = 0; g < data.group; ++g) {
    for (int32_t c = 0; c < head_dim; c += kLanes) V::store(sums + g * sum_stride + c, V::zero());
  }
  for (int32_t first = 0; first < data.keys; first += kKeys) {
    const int32_t count = std::min(kKeys, data.keys - first);
    for (int32_t key = first + 2 * kKeys; key < std::min(first + 3 * kKeys, data.keys); ++key) {
      V::prefetch(pages + offsets[key]);
    }
    for (int32_t c = 0; c < head_dim; c += kLanes) {
      const int32_t lanes = std::min(kLanes, head_dim - c);
      F values[kKeys];
      for (int k = 0; k < kKeys; ++k) {
        if (k >= count) {
          values[k] = V::zero();
        } else if (lanes == kLanes) {
          values[k] = V::load(pages + offsets[first + k] + c);
        } else {
          values[k] = V::load_partial(pages + offsets[first + k] + c, lanes);
        }
      }
      for (int32_t g = 0; g < data.group; ++g) {
        const float* w = weights + g * stride + first;  // padded with zeros to a whole number of lanes
        F even = V::load(sums + g * sum_stride + c);
        F odd = V::zero();
        for (int k = 0; k < kKeys; k += 2) {
          even = V::fma(values[k], V::set1(w[k]), even);
          odd = V::fma(values[k + 1], V::set1(w[k + 1]), odd);
        }
        V::store(sums + g * sum_stride + c, even + odd);
      }
    }
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

template <class V, class T, int kChunks>
void decode_item(const AttentionParams& p, const Item& item, Workspace& work) {
  const ItemData<V, T> data(p, item);
  if (data.samples == 0) {
    for (int32_t g = 0; g < data.group; ++g) {
      T* out = data.out(0, data.first_head + g);
      std::fill(out, out + p.head_dim, T{});
    }
    return;
  }
  const int64_t* offsets = data.locate_keys(work);
  const int32_t padded_dim = (p.head_dim + kLanes - 1) / kLanes * kLanes;
  float* queries = work.query.reserve(int64_t{data.group + 1} * padded_dim);
  float* plain = queries + int64_t{data.group} * padded_dim;
  std::fill(queries, plain + padded_dim, 0.0f);
  for (int32_t g = 0; g < data.group; ++g) {
    score_query<V>(data, 0, data.first_head + g, plain);
    arrange_query<V>(plain, p.head_dim, data.key_pages(), queries + int64_t{g} * padded_dim);
  }
  const int64_t stride = (int64_t{data.keys} + kLanes - 1) / kLanes * kLanes;
  float* weights = work.weights.reserve(data.group * stride);
  score_keys<V, T, kChunks>(data, offsets, queries, padded_dim, weights, stride);
  for (int32_t g = 0; g < data.group; ++g) exponentiate<V>(weights + g * stride, data.keys, p.scale);

  float* sums = work.accumulator.reserve(int64_t{data.group} * padded_dim);
  if (data.samples == kDenseBudget) {
    accumulate_all<V>(data, offsets, weights, stride, sums, padded_dim);
    for (int32_t g = 0; g < data.group; ++g) {
      const float total = RowCdf<V>(weights + g * stride, data.keys, work).total();
      write_row<V>(sums + g * padded_dim, 1 / total, p.head_dim, data.out(0, data.first_head + g));
    }
    return;
  }
  for (int32_t g = 0; g < data.group; ++g) {
    const float* row = weights + g * stride;
    const int32_t head = data.first_head + g;
    const Picks picks = select_row<V>(row, data.keys, p, data.samples, data.draws(0, head), work);
    if (picks.all) {
      gather_values<V, T, kChunks>(
          data.value_pages(), offsets, data.keys,
          [row](int32_t i) {
            return Pick{i, row[i]};
          },
          p.head_dim, sums);
    } else {
      const Pick* list = work.picks.reserve(0);
      gather_values<V, T, kChunks>(
          data.value_pages(), offsets, picks.count, [list](int32_t i) { return list[i]; }, p.head_dim, sums);
    }
    write_row<V>(sums, picks.scale, p.head_dim, data.out(0, head));
  }
}

template <class V, class T>
void decode(const AttentionParams& p, const Item& item, Workspace& work) {
  switch (p.head_dim) {  // the usual sizes, unrolled
    case 32:
      return decode_item<V, T, 2>(p, item, work);
    case 64:
      return decode_item<V, T, 4>(p, item, work);
    case 128:
      return decode_item<V, T, 8>(p, item, work);
    default:
      return decode_item<V, T, 0>(p, item, work);
  }
}

}  // namespace allot::kernels::cpu
