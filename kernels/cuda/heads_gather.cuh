// Adds the value rows that several heads have drawn, a head for each value row that a warp reads at once, so
// that a lane has eight rows of its head under way and nothing is to be exchanged. Sums are formed in the
// order in which Gather forms them, so they have the same bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/value_kernel.cuh"

namespace allot::kernels::cuda {

// Value rows [heads, pitch] of which a head's first `samples` were drawn; kNoRow where none could be.
struct DrawnRows {
  const uint32_t* rows;
  int32_t pitch;
  int32_t heads;
  int32_t samples;  // at least one
};

// Writes the mean of each head's rows to out, [heads, kHeadDim]; NaN where a head has drawn none. All lanes
// of a warp call it.
template <class T, int kHeadDim>
__device__ __forceinline__ void add_heads(const void* values, const DrawnRows& drawn, int lane, T* out) {
  using OneHead = Gather<T, kHeadDim, 1>;
  constexpr int kRowLanes = OneHead::kRowLanes;
  constexpr int kStreams = OneHead::kStreams;
  constexpr int kUnroll = OneHead::kUnroll;
  static_assert(kUnroll % kStreams == 0);
  const int element = lane % kRowLanes * 8;
  const float weight = 1.0f / static_cast<float>(drawn.samples);
#pragma unroll 1
  for (int32_t head = lane / kRowLanes; head < drawn.heads; head += kStreams) {
    if (element >= kHeadDim) continue;
    const uint32_t* const rows = drawn.rows + head * drawn.pitch;
    const bool none = rows[0] == kNoRow;
    float sums[kStreams][8] = {};
#pragma unroll 1
    for (int32_t first = 0; first < drawn.samples; first += kUnroll) {
      uint4 value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        value[u] = {0, 0, 0, 0};
        if (first + u < drawn.samples && !none) {
          value[u] = load_streamed_vector(static_cast<const T*>(values) +
                                          int64_t{rows[first + u]} * kHeadDim + element);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add_weighted<T>(value[u], weight, sums[u % kStreams]);
    }
#pragma unroll
    for (int d = 1; d < kStreams; d *= 2) {
#pragma unroll
      for (int s = 0; s < kStreams; s += 2 * d) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[s][i] += sums[s + d][i];
      }
    }
    write_eight(out + head * kHeadDim + element, [&](int i) { return none ? NAN : sums[0][i]; });
  }
}

}  // namespace allot::kernels::cuda
