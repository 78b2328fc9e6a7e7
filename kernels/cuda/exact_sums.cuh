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
    int32_t unit = 0;
    ExactPiece next = shared_.first_piece(args_, shared_.items[0]);
#pragma unroll 1
    for (int32_t number = 0; next.exists; ++number) {
      const ExactPiece piece = next;
      const int32_t own_unit = unit;
      const bool takes = thread_ == 0 && piece.ends_unit();
      const int32_t item = takes ? 4 * blocks + atomicAdd(args_.next_piece, 1) : 0;
      wait_at(shared_address(&shared_.left[number % 2]), number / 2);
      add_warps(piece, number % 2);
      meet_some<32 * kAddingWarps>();
      if (takes) shared_.items[own_unit % 4] = item;
      arrive_at(shared_address(&shared_.added[number % 2]));
      next = shared_.next_piece(args_, piece, unit);
      if (!piece.ends_unit() || piece.is_whole_row()) continue;
      if (thread_ == 0) {
        int32_t* const arrivals = &args_.arrivals[row_index(piece, 0)];
        __threadfence();
        const bool last = atomicAdd(arrivals, 1) == shared_.units_of(piece) - 1;
        if (last) {
          *arrivals = 0;
          __threadfence();
        }
        *shared_.verdict = last;
      }
      meet_some<32 * kAddingWarps>();
      if (*shared_.verdict != 0) add_units(piece);
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
  // Of a score against a larger one.
  static __device__ __forceinline__ float factor_of(float score, float largest) {
    return score == -INFINITY ? 0.0f : fast_exp2(score - largest);
  }
  // What joins sums of parts with these factors. The same operations wherever a span is added up.
  static __device__ __forceinline__ MergeFactors merge(TileStats& stats, const TileStats& added) {
    const float largest = fmaxf(stats.max, added.max);
    const MergeFactors factors{factor_of(stats.max, largest), factor_of(added.max, largest)};
    stats = {largest, fmaf(factors.added, added.sum, factors.before * stats.sum)};
    return factors;
  }
  static __device__ __forceinline__ void merge(float4& sum, const MergeFactors& factors, const float4& x) {
    sum.x = fmaf(factors.added, x.x, factors.before * sum.x);
    sum.y = fmaf(factors.added, x.y, factors.before * sum.y);
    sum.z = fmaf(factors.added, x.z, factors.before * sum.z);
    sum.w = fmaf(factors.added, x.w, factors.before * sum.w);
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

  // Adds what the warps have left of a piece to its unit's, and writes this behind the last one: the output
  // of a row that is one unit, else sums relative to the unit's largest score.
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
        const float factor = factor_of(stats.max, largest);
        total = fmaf(factor, stats.sum, total);
        add(x, factor,
            *reinterpret_cast<const float4*>(shared_.sums_of(buffer, w) + column * Shape::kColumnFloats +
                                             element));
      }
      TileStats stats{largest, total};
      const int32_t place = piece.part - piece.unit_begin;
      auto* const span_sum = reinterpret_cast<float4*>(shared_.span_sums + column * kHeadDim + element);
      if (place > 0) {
        TileStats before = shared_.span_stats[(place - 1) * Shape::kColumns + column];
        const MergeFactors factors = merge(before, stats);
        stats = before;
        const float4 added = x;
        x = *span_sum;
        merge(x, factors, added);
      }
      if (!piece.ends_unit()) {
        *span_sum = x;
        if (element == 0) shared_.span_stats[place * Shape::kColumns + column] = stats;
      } else if (piece.is_whole_row()) {
        const float share = 1 / stats.sum;
        store(out, {x.x * share, x.y * share, x.z * share, x.w * share});
      } else {
        float* const partial = partial_of(piece, column) + piece.unit_begin * kHeadDim + element;
        __stcg(reinterpret_cast<float4*>(partial), x);
        if (element == 0) args_.stats[row_index(piece, column) * args_.row_tiles + piece.unit_begin] = stats;
      }
    }
  }

  // Adds the units of a row group: those of a span, then the spans.
  __device__ __forceinline__ void add_units(const ExactPiece& piece) const {
    const int32_t unit_parts = shared_.takes_spans ? exact_span_parts(piece.keys) : 1;
    const int32_t span_units = exact_span_parts(piece.keys) / unit_parts;  // 1, 2 or 4
    const int32_t span_bits = span_units / 2;
    const int32_t row_units = shared_.units_of(piece);
    const int32_t spans = exact_span_count(piece.keys);
#pragma unroll 1
    for (int column = thread_ / 32; column < args_.group; column += kAddingWarps) {
      static_assert(kMostExactSpans <= 32, "a lane each");
      const int lane = thread_ % 32;
      const int32_t first = lane * span_units;
      const TileStats* const stats = args_.stats + row_index(piece, column) * args_.row_tiles;
      MergeFactors* const factors = shared_.factors + column * kMostExactParts;
      float2 loaded[kMostSpanParts] = {};
#pragma unroll
      for (int i = 0; i < kMostSpanParts; ++i) {
        if (i < span_units && first + i < row_units)
          loaded[i] = __ldcg(reinterpret_cast<const float2*>(stats + (first + i) * unit_parts));
      }
      TileStats own{-INFINITY, 0};
      if (first < row_units) own = {loaded[0].x, loaded[0].y};
#pragma unroll
      for (int i = 1; i < kMostSpanParts; ++i) {
        if (i < span_units && first + i < row_units)
          factors[first + i] = merge(own, {loaded[i].x, loaded[i].y});
      }
      float largest = own.max;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
      const float factor = factor_of(own.max, largest);
      float total = factor * own.sum;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(kFullWarp, total, d);
      if (lane < spans) shared_.span_factors[column * kMostExactSpans + lane] = factor / total;
    }
    meet_some<32 * kAddingWarps>();
    // Threads that are left over share the spans of the others: slices of them, added at the end.
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
        const int last = min(row_units, spans * (slice + 1) / slices * span_units);
        float4 span_sum{0, 0, 0, 0};
#pragma unroll 16
        for (int u = spans * slice / slices * span_units; u < last; ++u) {
          const float4 sum = __ldcg(reinterpret_cast<const float4*>(partial + u * unit_parts * kHeadDim));
          if ((u & (span_units - 1)) == 0) {
            span_sum = sum;
          } else {
            merge(span_sum, shared_.factors[column * kMostExactParts + u], sum);
          }
          if (((u + 1) & (span_units - 1)) == 0 || u + 1 == row_units)
            add(x, shared_.span_factors[column * kMostExactSpans + (u >> span_bits)], span_sum);
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
