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
    int32_t unit = 0;
    ExactPiece next = shared_.first_piece(args_, shared_.items[0]);
#pragma unroll 1
    for (int32_t number = 0; next.exists; ++number) {
      const ExactPiece piece = next;
      const int32_t own_unit = unit;
      const bool takes = thread_ == 0 && piece.ends_unit();
      const int32_t item = takes ? shared_.take_item(args_) : 0;
      wait_at(shared_address(&shared_.left[number % 2]), number / 2);
      add_warps(piece, number % 2);
      meet_some<32 * kAddingWarps>();
      if (takes) shared_.items[own_unit % kItemsAhead] = item;
      arrive_at(shared_address(&shared_.added[number % 2]));
      next = shared_.next_piece(args_, piece, unit);
      if (!piece.ends_unit() || piece.is_whole_row()) continue;
      if (thread_ == 0)
        *shared_.verdict = arrives_last(&args_.arrivals[row_index(piece, 0)], shared_.units_of(piece));
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
      TileStats of_warps[Shape::kWarps];
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) {
        of_warps[w] = {-INFINITY, 0};
        if (w < shared_.warps) of_warps[w] = shared_.stats_of(buffer, w)[column];
        largest = fmaxf(largest, of_warps[w].max);
      }
      float total = 0;
      float4 x{0, 0, 0, 0};
#pragma unroll
      for (int w = 0; w < Shape::kWarps; ++w) {
        if (w >= shared_.warps) continue;
        const float factor = factor_of(of_warps[w].max, largest);
        total = fmaf(factor, of_warps[w].sum, total);
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

  // The units of a row.
  struct RowUnits {
    int32_t count;
    int32_t parts;    // of each
    int32_t of_span;  // 1, 2 or 4
    int32_t spans;
  };
  __device__ __forceinline__ RowUnits units_of_row(const ExactPiece& piece) const {
    const int32_t span_parts = exact_span_parts(piece.keys, args_.exact_most_parts);
    const int32_t parts = shared_.takes_spans ? span_parts : 1;
    return {shared_.units_of(piece), parts, span_parts / parts,
            exact_span_count(piece.keys, args_.exact_most_parts)};
  }

  // What a thread adds of a row: four elements of a column, of whole spans.
  struct UnitSlice {
    const float* sums = nullptr;  // of unit 0
    int32_t stride = 0;           // from a unit's sums to the next one's
    int column = 0;
    int element = 0;
    int32_t first = 0;  // unit
    int32_t last = 0;   // exclusive
  };
  // Slice number `number` of all; a slice of each column's elements comes before the next one of any.
  __device__ __forceinline__ UnitSlice slice_of(const ExactPiece& piece, const RowUnits& row, int number,
                                                int slices) const {
    const int quads = args_.group * kQuads;
    const int i = slices > 1 ? number / quads : 0;
    const int quad = number - i * quads;
    UnitSlice slice;
    if (quad >= quads || i >= slices) return slice;
    slice.column = quad / kQuads;
    slice.element = quad % kQuads * 4;
    slice.sums = partial_of(piece, slice.column) + slice.element;
    slice.stride = row.parts * kHeadDim;
    slice.first = row.spans * i / slices * row.of_span;
    slice.last = min(row.count, row.spans * (i + 1) / slices * row.of_span);
    return slice;
  }

  // Units whose sums are asked for at once: whole spans.
  static constexpr int kUnitsAhead = 16;
  static __device__ __forceinline__ void load_units(const UnitSlice& slice, int32_t first,
                                                    float4 (&sums)[kUnitsAhead]) {
#pragma unroll
    for (int i = 0; i < kUnitsAhead; ++i) {
      sums[i] = {0, 0, 0, 0};
      if (first + i < slice.last)
        sums[i] = __ldcg(reinterpret_cast<const float4*>(slice.sums + (first + i) * slice.stride));
    }
  }

  // Adds units `first` and further ones. Nothing of one span waits for another but the last addition, and
  // what a slice does not have is nothing, not a branch: a warp is alone with its latencies here.
  template <int kOfSpan>
  __device__ __forceinline__ void add_spans(const UnitSlice& slice, int32_t first,
                                            float4 (&sums)[kUnitsAhead], float4& x) const {
    const MergeFactors* const factors = shared_.factors + slice.column * kMostExactParts + first;
    const float* const span_factors = shared_.span_factors + slice.column * kMostExactSpans + first / kOfSpan;
#pragma unroll
    for (int i = 0; i < kUnitsAhead; i += kOfSpan) {
#pragma unroll
      for (int j = i + 1; j < i + kOfSpan; ++j)
        merge(sums[i], first + j < slice.last ? factors[j] : MergeFactors{1, 0}, sums[j]);
      add(x, first + i < slice.last ? span_factors[i / kOfSpan] : 0.0f, sums[i]);
    }
  }

  // Adds the units of a row group: those of a span, then the spans. Threads that are left over share the
  // spans of the others, in slices that are added at the end.
  __device__ __forceinline__ void add_units(const ExactPiece& piece) const {
    constexpr int kThreads = 32 * kAddingWarps;
    const RowUnits row = units_of_row(piece);
    const int quads = args_.group * kQuads;
    const int slices = quads < kThreads ? kThreads / quads : 1;
    // The first sums are on their way while their factors are found.
    UnitSlice slice = slice_of(piece, row, thread_, slices);
    float4 sums[kUnitsAhead];
    load_units(slice, slice.first, sums);
    leave_factors(piece, row);
    meet_some<kThreads>();
#pragma unroll 1
    for (int begin = 0; begin < quads; begin += kThreads) {
      if (begin > 0) slice = slice_of(piece, row, begin + thread_, slices);
      float4 x{0, 0, 0, 0};
#pragma unroll 1
      for (int32_t first = slice.first; first < slice.last; first += kUnitsAhead) {
        if (begin > 0 || first > slice.first) load_units(slice, first, sums);
        if (row.of_span == 1) add_spans<1>(slice, first, sums, x);
        if (row.of_span == 2) add_spans<2>(slice, first, sums, x);
        if (row.of_span == 4) add_spans<4>(slice, first, sums, x);
      }
      if (slices > 1) {
        shared_.slices[thread_] = x;
        meet_some<kThreads>();
        if (thread_ < quads) {
#pragma unroll 1
          for (int i = 1; i < slices; ++i) add(x, 1, shared_.slices[i * quads + thread_]);
        }
      }
      if (begin + thread_ < quads) store(out_of(piece, slice.column) + slice.element, x);
    }
    meet_some<kThreads>();
  }

  // Factors of the units within their spans, and of the spans.
  __device__ __forceinline__ void leave_factors(const ExactPiece& piece, const RowUnits& row) const {
#pragma unroll 1
    for (int column = thread_ / 32; column < args_.group; column += kAddingWarps) {
      static_assert(kMostExactSpans <= 32, "a lane each");
      const int lane = thread_ % 32;
      const int32_t first = lane * row.of_span;
      const TileStats* const stats = args_.stats + row_index(piece, column) * args_.row_tiles;
      MergeFactors* const factors = shared_.factors + column * kMostExactParts;
      float2 loaded[kMostSpanParts] = {};
#pragma unroll
      for (int i = 0; i < kMostSpanParts; ++i) {
        if (i < row.of_span && first + i < row.count)
          loaded[i] = __ldcg(reinterpret_cast<const float2*>(stats + (first + i) * row.parts));
      }
      TileStats own{-INFINITY, 0};
      if (first < row.count) own = {loaded[0].x, loaded[0].y};
#pragma unroll
      for (int i = 1; i < kMostSpanParts; ++i) {
        if (i < row.of_span && first + i < row.count)
          factors[first + i] = merge(own, {loaded[i].x, loaded[i].y});
      }
      float largest = own.max;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
      const float factor = factor_of(own.max, largest);
      float total = factor * own.sum;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(kFullWarp, total, d);
      if (lane < row.spans) shared_.span_factors[column * kMostExactSpans + lane] = factor / total;
    }
  }

  const Args& args_;
  const ExactShared<Shape>& shared_;
  const int thread_;  // of those that add
};

}  // namespace allot::kernels::cuda
