// Systematic samples within every tile of the estimator, here called a segment: prop gives a segment its
// share of the budget by the largest remainder, flash the same number to each (S2ANTA paper, Algorithms 4-5
// and 6-8). Segments are whole score tiles.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/cuda/value_table.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

template <int kWarps>
class TiledSelection {
 public:
  static constexpr bool kDense = false;
  static constexpr bool kDraws = true;
  using Known = NothingKnown;
  // The CDF of the score tiles and the first slot of each segment.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return (int64_t{tiles} * (sizeof(double) + sizeof(int32_t)) + 15) / 16 * 16;
  }

  __device__ __forceinline__ TiledSelection(const Args& args, const ValueRow& row, RowGroup<kWarps>& group,
                                            char* shared, const Known&)
      : args_(args),
        row_(row),
        group_(group),
        proportional_(args.p.method.estimator == Estimator::kProp),
        segment_tiles_(args.p.method.tile / kScoreTile),
        segments_(tile_count(row.keys, args.p.method.tile)),
        masses_(group, row),
        cdf_(reinterpret_cast<double*>(shared)),
        first_slot_(reinterpret_cast<int32_t*>(shared + row.tiles * sizeof(double))) {
    masses_.write_cdf(row, cdf_);
    group.sync();
    if (proportional_) spread_budget();
    group.sync();
  }

  __device__ __forceinline__ double total() const { return masses_.total; }

  __device__ __forceinline__ void fill(const Batch& batch) {
#pragma unroll 1
    for (int32_t slot = batch.low + group_.thread(); slot < batch.high; slot += group_.kThreads) {
      const int32_t segment = proportional_ ? proportional_segment(slot) : flash_segment(slot);
      const int32_t first = first_slot(segment);
      const int32_t budget = first_slot(segment + 1) - first;
      const float u = draw_uniform(row_.draws, static_cast<uint32_t>(segment));
      const double mass = segment_mass(segment);
      const double target = cdf_below(segment) + stratum_target<double>(slot - first, budget, u) * mass;
      const int32_t first_tile = segment * segment_tiles_;
      const int32_t tile =
          find_tile(cdf_, first_tile, min(row_.tiles, first_tile + segment_tiles_) - 1, target);
      const TileWeights<1> weights(row_, tile, 0);
      const TilePages<1> pages(args_, row_, tile, 0);
      const double below = tile == 0 ? 0.0 : cdf_[tile - 1];
      const float local = static_cast<float>(target - below) / tile_scale(row_.stats[tile], masses_.largest);
      const int32_t key = tile * kScoreTile + find_key<1>(weights, 0, local, [](float w) { return w; });
      const float weight = proportional_ ? 1.0f / static_cast<float>(row_.budget)
                                         : static_cast<float>(mass / masses_.total / budget);
      batch.put(slot, {pages.value_row(args_, row_, key), weight});
    }
  }

 private:
  __device__ __forceinline__ double cdf_below(int32_t segment) const {
    return segment == 0 ? 0.0 : cdf_[segment * segment_tiles_ - 1];
  }
  __device__ __forceinline__ double segment_mass(int32_t segment) const {
    return cdf_[min(row_.tiles, (segment + 1) * segment_tiles_) - 1] - cdf_below(segment);
  }

  // Slot of a segment's first sample; segment segments_ stands for the end.
  __device__ __forceinline__ int32_t first_slot(int32_t segment) const {
    if (segment == segments_) return row_.budget;
    if (proportional_) return first_slot_[segment];
    return segment * (row_.budget / segments_) + min(segment, row_.budget % segments_);
  }
  __device__ __forceinline__ int32_t flash_segment(int32_t slot) const {
    const int32_t each = row_.budget / segments_;
    const int32_t more = row_.budget % segments_;  // the first ones have one more
    return slot < more * (each + 1) ? slot / (each + 1) : more + (slot - more * (each + 1)) / each;
  }
  // Last segment that starts at or below the slot; those without samples share their start with the next.
  __device__ __forceinline__ int32_t proportional_segment(int32_t slot) const {
    int32_t low = 0;
    int32_t high = segments_;
#pragma unroll 1
    while (high - low > 1) {
      const int32_t middle = (low + high) / 2;
      if (first_slot_[middle] <= slot) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Algorithm 4: the whole part of S W_t to every segment, one more to those with the largest
  // fractions, the lower segment first among equals. The fraction that splits them is found by
  // bisection of its 32 leading bits.
  __device__ __forceinline__ void spread_budget() {
    const int32_t each = (segments_ + group_.kThreads - 1) / group_.kThreads;
    const int32_t begin = min(segments_, group_.thread() * each);
    const int32_t end = min(segments_, begin + each);
    int32_t whole = 0;
#pragma unroll 1
    for (int32_t s = begin; s < end; ++s) whole += static_cast<int32_t>(quota(s));
    const int32_t left = row_.budget - group_.sum(whole);
    // Smallest split with at most `left` fractions above it.
    uint32_t low = 0;
    uint32_t split = 0xFFFFFFFFu;
#pragma unroll 1
    while (low < split) {
      const uint32_t middle = low + (split - low) / 2;
      int32_t above = 0;
#pragma unroll 1
      for (int32_t s = begin; s < end; ++s) above += fraction(quota(s)) > middle;
      if (group_.sum(above) <= left) {
        split = middle;
      } else {
        low = middle + 1;
      }
    }
    int32_t above = 0;
    int32_t equal = 0;
#pragma unroll 1
    for (int32_t s = begin; s < end; ++s) {
      const uint32_t f = fraction(quota(s));
      above += f > split;
      equal += f == split;
    }
    const int32_t equal_wanted = left - group_.sum(above);
    int32_t rank = group_.prefix(equal);  // equal fractions below this thread's segments
    int32_t own = 0;
#pragma unroll 1
    for (int32_t s = begin; s < end; ++s) {
      const double q = quota(s);
      const uint32_t f = fraction(q);
      const bool one_more = f > split || (f == split && rank++ < equal_wanted);
      first_slot_[s] = own;
      own += static_cast<int32_t>(q) + (one_more ? 1 : 0);
    }
    const int32_t before = group_.prefix(own);
#pragma unroll 1
    for (int32_t s = begin; s < end; ++s) first_slot_[s] += before;
  }

  __device__ __forceinline__ double quota(int32_t segment) const {
    return row_.budget * (segment_mass(segment) / masses_.total);
  }
  __device__ __forceinline__ static uint32_t fraction(double quota) {
    return static_cast<uint32_t>((quota - floor(quota)) * 4294967295.0);
  }

  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const bool proportional_;
  const int32_t segment_tiles_;
  const int32_t segments_;
  const TileMasses<kWarps> masses_;
  double* const cdf_;
  int32_t* const first_slot_;
};

template <class T, int kHeadDim>
ValueKernel tiled_kernel(Workers workers) {
  return value_kernel_of<TiledSelection, T, kHeadDim>(workers);
}

}  // namespace allot::kernels::cuda
