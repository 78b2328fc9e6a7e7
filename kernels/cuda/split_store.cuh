// A vector in the registers of neighbouring lanes, eight elements each, rotated and split into planes as
// kernels/split_keys.h says, to the bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/split_keys.h"

namespace allot::kernels::cuda {

// The planes of eight elements, and the unit of their vector.
struct SplitEight {
  uint2 high;
  uint2 low;
  float unit;
};

// Lane `lane` of the kHeadDim / 8 that share a vector has its elements from 8 * lane on. All lanes of the
// warp call it.
template <int kHeadDim>
__device__ __forceinline__ SplitEight split_eight(float (&x)[8], int lane) {
  static_assert(can_split(kHeadDim));
  constexpr int kLanes = kHeadDim / 8;
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = rotation_negates(8 * lane + i) ? -x[i] : x[i];
#pragma unroll
  for (int stride = 1; stride < 8; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
#pragma unroll
  for (int stride = 1; stride < kLanes; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float other = __shfl_xor_sync(kFullWarp, x[i], stride);
      x[i] = (lane & stride) == 0 ? x[i] + other : other - x[i];
    }
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = larger_magnitude(largest, x[i]);
#pragma unroll
  for (int stride = 1; stride < kLanes; stride *= 2)
    largest = larger_magnitude(largest, __shfl_xor_sync(kFullWarp, largest, stride));
  const SplitUnits units = split_units(largest);
  uint32_t high[2] = {}, low[2] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const SplitElement element = split_element(x[i], units);
    high[i / 4] |= uint32_t{static_cast<uint8_t>(element.high)} << (i % 4 * 8);
    low[i / 4] |= uint32_t{static_cast<uint8_t>(element.low)} << (i % 4 * 8);
  }
  return {{high[0], high[1]}, {low[0], low[1]}, units.unit};
}

}  // namespace allot::kernels::cuda
