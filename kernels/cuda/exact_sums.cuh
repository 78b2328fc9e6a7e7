// The warps of a block of the exact decode kernel that add: what the multiplying ones leave of a piece, and
// the parts of a row, by the block that is the last to have one.
#pragma once

#include <cstdint>

#include "kernels/cuda/exact_piece.cuh"

namespace allot::kernels::cuda {

template <class T, int kHeadDim, class Shape>
class ExactAdder {
 public:
  __device__ __forceinline__ ExactAdder(const Args& args, const ExactShared<Shape>& shared)
      : args_(args), shared_(shared), thread_(static_cast<int>(threadIdx.x) - 32 * shared.warps) {}

  // Until the block has no more pieces.
  __device__ __forceinline__ void run() {
    const auto blocks = static_cast<int32_t>(gridDim.x);
#pragma unroll 1
    for (int32_t number = 0;; ++number) {
      const ExactPiece piece = shared_.piece_of(args_, shared_.items[number % 4]);
      if (!piece.exists) break;
      const int32_t item = thread_ == 0 ? 4 * blocks + atomicAdd(args_.next_piece, 1) : 0;
      wait_at(shared_address(&shared_.left[number % 2]), number / 2);
      add_warps(piece, number % 2);
      meet_some<32 * kAddingWarps>();
      if (thread_ == 0) shared_.items[number % 4] = item;
      arrive_at(shared_address(&shared_.added[number % 2]));
      if (piece.parts == 1) continue;
      if (thread_ == 0) {
        int32_t* const arrivals = &args_.arrivals[row_index(piece, 0)];
        __threadfence();
        const bool last = atomicAdd(arrivals, 1) == piece.parts - 1;
        if (last) *arrivals = 0;
        __threadfence();
        *shared_.verdict = last;
      }
      meet_some<32 * kAddingWarps>();
      if (*shared_.verdict != 0) add_parts(piece);
    }
  }

 private:
  static constexpr int kQuads = kHeadDim / 4;

  __device__ __forceinline__ int64_t row_index(const ExactPiece& piece, int column) const {
    return int64_t{piece.slot} * args_.p.num_q_heads + piece.kv_head * args_.group + column;
  }
  __device__ __forceinline__ T* out_of(const ExactPiece& piece, int column) const {
    return static_cast<T*>(args_.p.out) +
           (args_.first_query * int64_t{args_.p.num_q_heads} + row_index(piece, column)) * kHeadDim;
  }
  __device__ __forceinline__ float* partial_of(const ExactPiece& piece, int column) const {
    const int64_t row = int64_t{piece.sequence} * args_.p.num_q_heads + piece.kv_head * args_.group + column;
    return args_.exact_partial + row * args_.exact_parts * kHeadDim;
  }
  static __device__ __forceinline__ void store(T* target, const float4& x) {
    *reinterpret_cast<uint2*>(target) = {pack<T>(x.x, x.y), pack<T>(x.z, x.w)};
  }
  static __device__ __forceinline__ void add(float4& sum, float factor, const float4& x) {
    sum.x = fmaf(factor, x.x, sum.x);
    sum.y = fmaf(factor, x.y, sum.y);
    sum.z = fmaf(factor, x.z, sum.z);
    sum.w = fmaf(factor, x.w, sum.w);
  }

  // Adds what the warps have left of a piece: the output of a row that is one part, else sums
  // relative to the part's largest score.
  __device__ __forceinline__ void add_warps(const ExactPiece& piece, int buffer) const {
#pragma unroll 1
    for (int unit = thread_; unit < args_.group * kQuads; unit += 32 * kAddingWarps) {
      const int column = unit / kQuads;
      const int element = unit % kQuads * 4;
      T* const out = out_of(piece, column) + element;
      if (piece.keys < 0) {
        store(out, {NAN, NAN, NAN, NAN});
        continue;
      }
      float largest = -INFINITY;
#pragma unroll 1
      for (int w = 0; w < shared_.warps; ++w)
        largest = fmaxf(largest, shared_.stats_of(buffer, w)[column].max);
      float total = 0;
      float4 x{0, 0, 0, 0};
#pragma unroll 4
      for (int w = 0; w < shared_.warps; ++w) {
        const TileStats stats = shared_.stats_of(buffer, w)[column];
        const float factor = stats.max == -INFINITY ? 0.0f : fast_exp2(stats.max - largest);
        total = fmaf(factor, stats.sum, total);
        add(x, factor,
            *reinterpret_cast<const float4*>(shared_.sums_of(buffer, w) + column * Shape::kColumnFloats +
                                             element));
      }
      if (piece.parts == 1) {
        const float share = 1 / total;
        store(out, {x.x * share, x.y * share, x.z * share, x.w * share});
      } else {
        __stcg(reinterpret_cast<float4*>(partial_of(piece, column) + piece.part * kHeadDim + element), x);
        if (element == 0)
          args_.stats[row_index(piece, column) * args_.row_tiles + piece.part] = {largest, total};
      }
    }
  }

  // Adds the parts of a row group.
  __device__ __forceinline__ void add_parts(const ExactPiece& piece) const {
#pragma unroll 1
    for (int column = thread_ / 32; column < args_.group; column += kAddingWarps) {
      const TileStats* const stats = args_.stats + row_index(piece, column) * args_.row_tiles;
      static_assert(kMostExactParts == 64, "two a lane");
      const int lane = thread_ % 32;
      TileStats own[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int part = lane + 32 * i;
        own[i] = {-INFINITY, 0};
        if (part < piece.parts) {
          const float2 pair = __ldcg(reinterpret_cast<const float2*>(stats + part));
          own[i] = {pair.x, pair.y};
        }
      }
      float largest = fmaxf(own[0].max, own[1].max);
#pragma unroll
      for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
      const float first = fast_exp2(own[0].max - largest);
      const float second = fast_exp2(own[1].max - largest);
      float total = first * own[0].sum + second * own[1].sum;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(kFullWarp, total, d);
      shared_.factors[column * kMostExactParts + lane] = first / total;
      shared_.factors[column * kMostExactParts + lane + 32] = second / total;
    }
    meet_some<32 * kAddingWarps>();
    // Threads that are left over share the parts of the others: slices of them, added at the end.
    constexpr int kThreads = 32 * kAddingWarps;
    const int units = args_.group * kQuads;
    const int slices = units < kThreads ? kThreads / units : 1;
#pragma unroll 1
    for (int begin = 0; begin < units; begin += kThreads) {
      const int slice = slices > 1 ? thread_ / units : 0;
      const int unit = begin + thread_ - slice * units;
      const bool active = unit < units && slice < slices;
      const int column = unit / kQuads;
      const int element = unit % kQuads * 4;
      float4 x{0, 0, 0, 0};
      if (active) {
        const float* const partial = partial_of(piece, column) + element;
        const int last = piece.parts * (slice + 1) / slices;
#pragma unroll 16
        for (int part = piece.parts * slice / slices; part < last; ++part) {
          add(x, shared_.factors[column * kMostExactParts + part],
              __ldcg(reinterpret_cast<const float4*>(partial + part * kHeadDim)));
        }
      }
      if (slices > 1) {
        shared_.slices[thread_] = x;
        meet_some<32 * kAddingWarps>();
        if (slice == 0) {
#pragma unroll 1
          for (int i = 1; i < slices; ++i) add(x, 1, shared_.slices[i * units + thread_]);
        }
      }
      if (active && slice == 0) store(out_of(piece, column) + element, x);
    }
    meet_some<32 * kAddingWarps>();
  }

  const Args& args_;
  const ExactShared<Shape>& shared_;
  const int thread_;  // of those that add
};

}  // namespace allot::kernels::cuda
