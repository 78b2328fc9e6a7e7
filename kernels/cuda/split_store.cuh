// A vector in the registers of neighbouring lanes, eight elements each, rotated and split into planes as
// kernels/split_keys.h says, to the bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/split_keys.h"

namespace allot::kernels::cuda {

// The signs of elements 32 kWord to 32 kWord + 31 of the rotation, the first in the lowest bit.
template <int kWord>
inline constexpr uint32_t kRotationSigns = [] {
  uint32_t signs = 0;
  for (int i = 0; i < 32; ++i) signs |= uint32_t{rotation_negates(32 * kWord + i)} << i;
  return signs;
}();

// Bit i: whether the rotation negates element `first` + i, a multiple of 8 below 128, for i up to 7, or up to
// 15 where it is one of 16. A table would lie in local memory, which is slow.
__device__ __forceinline__ uint32_t rotation_signs(int first) {
  const uint32_t lower = (first & 32) == 0 ? kRotationSigns<0> : kRotationSigns<1>;
  const uint32_t upper = (first & 32) == 0 ? kRotationSigns<2> : kRotationSigns<3>;
  return (first < 64 ? lower : upper) >> (first & 31);
}

// x with its sign changed where bit i is set.
__device__ __forceinline__ float negated_by_bit(float x, uint32_t bits, int i) {
  return __uint_as_float(__float_as_uint(x) ^ (bits << (31 - i) & 0x80000000u));
}

// The stages of the rotation among elements whose numbers differ by less than 8 * kLanes: x are elements
// `first` to first + 7, and lane `lane` of kLanes neighbours has those from 8 * lane on of the stretch. The
// lanes `these` of the warp call it.
template <int kLanes>
__device__ __forceinline__ void rotate_stretch(float (&x)[8], int first, int lane, uint32_t these) {
  const uint32_t signs = rotation_signs(first);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = negated_by_bit(x[i], signs, i);
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
    const float sign = (lane & stride) == 0 ? 1.0f : -1.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = fmaf(sign, x[i], __shfl_xor_sync(these, x[i], stride));
  }
}

// The larger of `largest` and a magnitude, by their bits, among which those of NaN are the largest.
__device__ __forceinline__ uint32_t larger_bits(uint32_t largest, float x) {
  return max(largest, __float_as_uint(x) & 0x7FFFFFFFu);
}

// The units of a vector in the largest of whose magnitudes kLanes lanes have found these bits.
template <int kLanes>
__device__ __forceinline__ SplitUnits units_of_lanes(uint32_t largest, uint32_t these) {
#pragma unroll
  for (int stride = 1; stride < kLanes; stride *= 2)
    largest = max(largest, __shfl_xor_sync(these, largest, stride));
  return split_units(__uint_as_float(largest));
}

// split_element() of eight elements.
__device__ __forceinline__ void store_planes(const float (&x)[8], const SplitUnits& units, uint2& high,
                                             uint2& low) {
  // What is added to this is rounded as by rintf() and lies in the lowest bits of the sum: the lowest byte is
  // that of the low plane, and with 128 more the next one that of the high plane.
  constexpr float kRounder = 0x1.8p23f;
  uint32_t fixed[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) fixed[i] = __float_as_uint(__fadd_rn(__fmul_rn(x[i], units.inverse), kRounder));
  // Four bytes, of each number the one that the lower half of `which` says of a first, the upper of a second.
  const auto bytes = [&](int first, uint32_t which, uint32_t more) {
    const uint32_t lower = __byte_perm(fixed[first] + more, fixed[first + 1] + more, which);
    const uint32_t upper = __byte_perm(fixed[first + 2] + more, fixed[first + 3] + more, which);
    return units.unit != units.unit ? 0 : __byte_perm(lower, upper, 0x5410);
  };
  high = {bytes(0, 0x51, 128), bytes(4, 0x51, 128)};
  low = {bytes(0, 0x40, 0), bytes(4, 0x40, 0)};
}

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
  static_assert(can_split(kHeadDim) && kHeadDim <= 128);
  constexpr int kLanes = kHeadDim / 8;
  rotate_stretch<kLanes>(x, 8 * lane, lane, kFullWarp);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = larger_bits(largest, x[i]);
  const SplitUnits units = units_of_lanes<kLanes>(largest, kFullWarp);
  SplitEight eight;
  store_planes(x, units, eight.high, eight.low);
  eight.unit = units.unit;
  return eight;
}

// The same of a vector whose lanes have eight elements of its lower and eight of its upper half each.
struct SplitHalves {
  uint2 high[2];
  uint2 low[2];
  float unit;
};

// Lane `lane` of the kHeadDim / 16 that share a vector has those from 8 * lane on of either half. All lanes
// of the vector call it; others of the warp need not.
template <int kHeadDim>
__device__ __forceinline__ SplitHalves split_halves(float (&lower)[8], float (&upper)[8], int lane) {
  static_assert(can_split(kHeadDim) && kHeadDim <= 128);
  constexpr int kLanes = kHeadDim / 16;
  const uint32_t these = (kFullWarp >> (32 - kLanes)) << (threadIdx.x % 32 / kLanes * kLanes);
  rotate_stretch<kLanes>(lower, 8 * lane, lane, these);
  rotate_stretch<kLanes>(upper, kHeadDim / 2 + 8 * lane, lane, these);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float a = lower[i], b = upper[i];
    lower[i] = a + b;
    upper[i] = a - b;
    largest = larger_bits(larger_bits(largest, lower[i]), upper[i]);
  }
  const SplitUnits units = units_of_lanes<kLanes>(largest, these);
  SplitHalves halves;
  store_planes(lower, units, halves.high[0], halves.low[0]);
  store_planes(upper, units, halves.high[1], halves.low[1]);
  halves.unit = units.unit;
  return halves;
}

// 16 elements of a key from its planes, before their rounding. Lane `lane` of the kHeadDim / 16 that share
// the key has those from 16 * lane on; all of them call it, others of the warp need not. The rotation is
// undone on the whole numbers, whose sums are below 2^24, so that the one rounding here is that of their
// product with the unit.
template <int kHeadDim>
__device__ __forceinline__ void restore_sixteen(const uint4& high, const uint4& low, float unit, int lane,
                                                float (&x)[16]) {
  static_assert(can_split(kHeadDim) && kHeadDim <= 128);
  constexpr int kLanes = kHeadDim / 16;
  const uint32_t these = (kFullWarp >> (32 - kLanes)) << (threadIdx.x % 32 / kLanes * kLanes);
  const uint32_t high_words[4] = {high.x, high.y, high.z, high.w};
  const uint32_t low_words[4] = {low.x, low.y, low.z, low.w};
  int32_t fixed[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    fixed[i] = 256 * static_cast<int8_t>(high_words[i / 4] >> (i % 4 * 8)) +
               static_cast<int8_t>(low_words[i / 4] >> (i % 4 * 8));
  }
#pragma unroll
  for (int stride = 1; stride < 16; stride *= 2) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if ((i & stride) != 0) continue;
      const int32_t a = fixed[i], b = fixed[i + stride];
      fixed[i] = a + b;
      fixed[i + stride] = a - b;
    }
  }
#pragma unroll
  for (int stride = 1; stride < kLanes; stride *= 2) {
    const int32_t sign = (lane & stride) == 0 ? 1 : -1;
#pragma unroll
    for (int i = 0; i < 16; ++i) fixed[i] = __shfl_xor_sync(these, fixed[i], stride) + sign * fixed[i];
  }
  const float factor = unit / (256 * kHeadDim);
  const uint32_t signs = rotation_signs(16 * lane);
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = negated_by_bit(static_cast<float>(fixed[i]) * factor, signs, i);
}

}  // namespace allot::kernels::cuda
