// The kernel of rotate_and_store_cuda. A power of two of neighbouring lanes does one head of one token: each
// has N elements of its lower and N of its upper half, so that a rotation needs no exchange.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/split_store.cuh"
#include "kernels/rows.h"

namespace allot::kernels::cuda {

inline constexpr uint32_t kRotaryThreads = 128;

// cos or sin, float32 whatever the elements are.
template <int N>
__device__ __forceinline__ void load_floats(const float* from, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = *from;
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      x[i] = four.x;
      x[i + 1] = four.y;
      x[i + 2] = four.z;
      x[i + 3] = four.w;
    }
  }
}

// An element of a head after its norm, with the two roundings of rows.h.
template <class T>
__device__ __forceinline__ float normed(float x, float factor, float weight) {
  return as_float(rounded<T>(as_float(rounded<T>(x * factor)) * weight));
}

// A head's elements of this lane, as they are stored, into planes: those of the key at `row` of the pages, or
// of the query.
template <int kHeadDim>
__device__ __forceinline__ void store_planes(const RotaryParams& p, bool is_query, int64_t row, int32_t lane,
                                             float (&lower)[8], float (&upper)[8]) {
  const SplitHalves halves = split_halves<kHeadDim>(lower, upper, lane);
  const int64_t at = (is_query ? 2 * row : row) * kHeadDim + 8 * lane;
  const auto store = [](int8_t* to, const uint2(&plane)[2]) {
    *reinterpret_cast<uint2*>(to) = plane[0];
    *reinterpret_cast<uint2*>(to + kHeadDim / 2) = plane[1];
  };
  if (is_query) {
    store(p.planes.query + at, halves.high);
    store(p.planes.query + at + kHeadDim, halves.low);
    if (lane == 0) p.planes.query_units[row] = halves.unit / kHeadDim;
    return;
  }
  const auto key = static_cast<int32_t>(row % kSplitBlockKeys);
  auto* const block =
      static_cast<int8_t*>(p.planes.high) + row / kSplitBlockKeys * split_block_bytes(kHeadDim);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    *reinterpret_cast<uint2*>(block + split_high_offset(kHeadDim, key, h * (kHeadDim / 2) + 8 * lane)) =
        halves.high[h];
  }
  if (lane == 0) *reinterpret_cast<float*>(block + split_unit_offset(kHeadDim, key)) = halves.unit;
  if (p.planes.low != nullptr) store(p.planes.low + at, halves.low);
}

// blockIdx.x is the token. With kSplitDim, the heads' dimension, keys go to planes; 0: to pages.
template <class T, int N, int kSplitDim>
__global__ void __launch_bounds__(kRotaryThreads) rotate_and_store(RotaryParams p, int32_t lanes) {
  let_dependents_start();
  if (!p.settled_places) wait_for_predecessor();
  const int64_t token = blockIdx.x;
  const int64_t slot = p.slots[token];
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes;
  const int32_t head = static_cast<int32_t>(blockIdx.y * kRotaryThreads + threadIdx.x) / lanes;
  const int32_t half = p.head_dim / 2;
  const int32_t first_value = p.num_q_heads + p.num_kv_heads;
  const bool is_query = head < p.num_q_heads;
  const bool is_value = head >= first_value;
  const bool exists = head < first_value + p.num_kv_heads;
  const int32_t position = p.positions[token];
  const bool in_range = position >= 0 && position < p.table_rows && slot < p.num_pages * int64_t{p.page_size};
  const float* const cosines = p.cos + int64_t{position} * half;
  const float* const sines = p.sin + int64_t{position} * half;
  const bool rotates = in_range && !is_value;
  float c[N], s[N];  // of the lane's first elements; most heads have no others
  if (rotates && lane * N < half) {
    load_floats<N>(cosines + lane * N, c);
    load_floats<N>(sines + lane * N, s);
  }
  wait_for_predecessor();  // again costs nothing
  if (slot < 0) return;    // padding

  T* const from = static_cast<T*>(p.qkv) + token * p.qkv_stride + int64_t{head} * p.head_dim;
  const T* const bias =
      p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + int64_t{head} * p.head_dim;
  const auto load = [&](int32_t i, float(&x)[N]) {
    load_elements<T, N>(from + i, x);
    if (bias == nullptr) return;
    float b[N];
    load_elements<T, N>(bias + i, b);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] += b[j];
  };

  const T* const norm = static_cast<const T*>(is_query ? p.q_norm : is_value ? nullptr : p.k_norm);
  float factor = 1;
  if (p.q_norm != nullptr || p.k_norm != nullptr) {  // all lanes of a warp take part
    float squares = 0;
    if (exists && norm != nullptr) {
      for (int32_t i = lane * N; i < half; i += lanes * N) {
        float low[N], high[N];
        load(i, low);
        load(half + i, high);
#pragma unroll
        for (int j = 0; j < N; ++j) squares = fmaf(low[j], low[j], fmaf(high[j], high[j], squares));
      }
    }
    for (int32_t offset = lanes / 2; offset > 0; offset /= 2) {
      squares += __shfl_xor_sync(kFullWarp, squares, offset);
    }
    factor = 1 / sqrtf(squares / static_cast<float>(p.head_dim) + p.norm_epsilon);
  }
  if (!exists || (!in_range && !is_query)) return;

  T* to = from;
  int64_t row = 0;  // of the pages
  if (!is_query) {
    const auto page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.page_size);
    const auto offset = static_cast<uint32_t>(slot) % static_cast<uint32_t>(p.page_size);
    const int32_t kv_head = is_value ? head - first_value : head - p.num_q_heads;
    row = (int64_t{page} * p.num_kv_heads + kv_head) * p.page_size + offset;
    to = static_cast<T*>(is_value ? p.value_pages : p.key_pages) + row * p.head_dim;
  }
  const bool has_norm = is_value && p.value_norms != nullptr;
  float stored_squares = 0;
  for (int32_t i = lane * N; i < half; i += lanes * N) {
    float low[N], high[N];
    load(i, low);
    load(half + i, high);
    if (norm != nullptr) {
      float low_weight[N], high_weight[N];
      load_elements<T, N>(norm + i, low_weight);
      load_elements<T, N>(norm + half + i, high_weight);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        low[j] = normed<T>(low[j], factor, low_weight[j]);
        high[j] = normed<T>(high[j], factor, high_weight[j]);
      }
    }
    if (!in_range) {
#pragma unroll
      for (int j = 0; j < N; ++j) low[j] = high[j] = __uint_as_float(0x7FC00000);
    } else if (rotates) {
      if (i >= lanes * N) {
        load_floats<N>(cosines + i, c);
        load_floats<N>(sines + i, s);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float x = low[j], y = high[j];
        low[j] = x * c[j] - y * s[j];
        high[j] = y * c[j] + x * s[j];
      }
    }
    if constexpr (kSplitDim > 0) {
      static_assert(N == 8);
      if (!is_query && !is_value) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          low[j] = as_float(rounded<T>(low[j]));
          high[j] = as_float(rounded<T>(high[j]));
        }
        store_planes<kSplitDim>(p, false, row, lane, low, high);
        return;
      }
    }
    store_elements<T, N>(to + i, low);
    store_elements<T, N>(to + half + i, high);
    if constexpr (kSplitDim > 0) {
      if (is_query && p.planes.query != nullptr)
        store_planes<kSplitDim>(p, true, token * p.num_q_heads + head, lane, low, high);
    }
    if (!has_norm) continue;
#pragma unroll
    for (int j = 0; j < N; ++j)  // as they are stored
      stored_squares = fmaf(low[j], low[j], fmaf(high[j], high[j], stored_squares));
  }
  if (!has_norm) return;
  stored_squares = sum_of_lanes(stored_squares, lanes);
  if (lane == 0) p.value_norms[row] = sqrtf(stored_squares);
}

}  // namespace allot::kernels::cuda
