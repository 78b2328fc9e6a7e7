// Rows of elements as floats: N elements at a time, 16 bytes where alignment allows, else one.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/device.cuh"
#include "kernels/estimator.h"

namespace allot::kernels::cuda {

// First statement of a kernel launched with launch_overlapped().
__device__ __forceinline__ void begin_overlapped() {
  let_dependents_start();
  wait_for_predecessor();
}

// Elements of 16 bytes.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

__device__ __forceinline__ float as_float(float x) {
  return x;
}
__device__ __forceinline__ float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float as_float(__half x) {
  return __half2float(x);
}

template <class T>
__device__ __forceinline__ T rounded(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return __float2half_rn(x);
  }
}

template <class T>
__device__ __forceinline__ void expand(const uint4& raw, float (&x)[kVector<T>]) {
  const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[i] = __uint_as_float(words[i]);
    } else {
      const float2 pair = unpack<T>(words[i]);
      x[2 * i] = pair.x;
      x[2 * i + 1] = pair.y;
    }
  }
}

template <class T, int N>
__device__ __forceinline__ void load_elements(const T* from, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = as_float(*from);
  } else {
    static_assert(N == kVector<T>);
    expand<T>(*reinterpret_cast<const uint4*>(from), x);
  }
}

// Rounds x to T, in memory and in place.
template <class T, int N>
__device__ __forceinline__ void store_elements(T* to, float (&x)[N]) {
  if constexpr (N == 1) {
    const T element = rounded<T>(x[0]);
    *to = element;
    x[0] = as_float(element);
  } else {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        words[i] = __float_as_uint(x[i]);
      } else {
        words[i] = pack<T>(x[2 * i], x[2 * i + 1]);
      }
    }
    const uint4 raw = make_uint4(words[0], words[1], words[2], words[3]);
    *reinterpret_cast<uint4*>(to) = raw;
    expand<T>(raw, x);
  }
}

// Rounds x to T in place.
template <class T, int N>
__device__ __forceinline__ void round_elements(float (&x)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = as_float(rounded<T>(x[j]));
}

// The sum over a power of two of neighbouring lanes, all of which call it; others of the warp need not.
__device__ __forceinline__ float sum_of_lanes(float x, int32_t lanes) {
  const uint32_t these = (kFullWarp >> (32 - lanes)) << (threadIdx.x % 32 / lanes * lanes);
  for (int32_t offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(these, x, offset);
  return x;
}

// Calls launch.template operator()<T, N>() for the dtype's element and its vector, or 1 where not `aligned`.
template <class Launch>
void for_element(DType dtype, bool aligned, const Launch& launch) {
  const auto for_type = [&]<class T>() {
    if (aligned) {
      launch.template operator()<T, kVector<T>>();
    } else {
      launch.template operator()<T, 1>();
    }
  };
  switch (dtype) {
    case DType::kFloat32:
      return for_type.template operator()<float>();
    case DType::kBFloat16:
      return for_type.template operator()<__nv_bfloat16>();
    case DType::kFloat16:
      return for_type.template operator()<__half>();
  }
}

// True where every pointer (null ones too) and the byte count are multiples of 16.
template <class... Pointers>
bool aligned_to_vectors(int64_t bytes, Pointers... pointers) {
  return bytes % 16 == 0 && ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

}  // namespace allot::kernels::cuda
