// Systematic samples within every tile of the estimator: prop gives a tile its share of the budget by the
// largest remainder, flash the same number to each (S2ANTA paper, Algorithms 4-5 and 6-8).
#pragma once

#include "kernels/cuda/select_systematic.cuh"
#include "kernels/cuda/value_row.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

template <int kWarps>
class TiledSelection {
 public:
  // Dynamic shared bytes a row needs.
  static constexpr bool kDense = false;  // serves the rows with a budget
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t) { return 0; }

  __device__ __forceinline__ TiledSelection(const Args& args, const ValueRow& row, RowGroup<kWarps>& group,
                                            char*)
      : args_(args),
        row_(row),
        group_(group),
        masses_(group, row),
        proportional_(args.p.estimator == Estimator::kProp) {
    segment_tiles_ = args.p.tile / kScoreTile;
    segments_ = tile_count(row.keys, args.p.tile);
    const int32_t each = (segments_ + group.kThreads - 1) / group.kThreads;
    begin_ = min(segments_, group.thread() * each);
    end_ = min(segments_, begin_ + each);
    if (proportional_) spread_budget();
  }

  __device__ __forceinline__ double total() const { return masses_.total(); }

  __device__ __forceinline__ void fill(const Batch& batch) {
    list_segments(batch);
    group_.sync();
    for_each_listed(group_, batch, [&](const TileDraw& draw, bool valid, int part) {
      put_systematic(args_, row_, batch, draw, valid, part);
    });
  }

 private:
  __device__ __forceinline__ double segment_mass(int32_t segment) const {
    double mass = 0;
    const int32_t end = min(row_.tiles, (segment + 1) * segment_tiles_);
#pragma unroll 1
    for (int32_t t = segment * segment_tiles_; t < end; ++t)
      mass += static_cast<double>(masses_.mass(row_, t));
    return mass;
  }

  // Algorithm 4: the whole part of S W_t to every tile, one more to those with the largest fractions, the
  // lower tile first among equals. The fraction that splits them is found by bisection of its 32 leading
  // bits.
  __device__ __forceinline__ void spread_budget() {
    int32_t whole = 0;
#pragma unroll 1
    for (int32_t s = begin_; s < end_; ++s) whole += whole_part(quota(s));
    const int32_t left = row_.budget - group_sum(whole);
    uint32_t low = 0;
    split_ = 0xFFFFFFFFu;
    // Smallest split with count(fraction > split) <= left.
#pragma unroll 1
    while (low < split_) {
      const uint32_t middle = low + (split_ - low) / 2;
      int32_t above = 0;
#pragma unroll 1
      for (int32_t s = begin_; s < end_; ++s) above += fraction(quota(s)) > middle;
      if (group_sum(above) <= left) {
        split_ = middle;
      } else {
        low = middle + 1;
      }
    }
    int32_t above = 0;
    int32_t equal = 0;
#pragma unroll 1
    for (int32_t s = begin_; s < end_; ++s) {
      above += fraction(quota(s)) > split_;
      equal += fraction(quota(s)) == split_;
    }
    equal_wanted_ = left - group_sum(above);
    equal_before_ = group_.prefix(equal);
    int32_t own = 0;
    int32_t rank = equal_before_;
#pragma unroll 1
    for (int32_t s = begin_; s < end_; ++s) own += proportional_budget(s, rank);
    slot_before_ = group_.prefix(own);
  }

  __device__ __forceinline__ double quota(int32_t segment) const {
    return row_.budget * (segment_mass(segment) / total());
  }
  __device__ __forceinline__ static int32_t whole_part(double quota) {
    return static_cast<int32_t>(quota);
  }
  __device__ __forceinline__ static uint32_t fraction(double quota) {
    return static_cast<uint32_t>((quota - floor(quota)) * 4294967295.0);
  }
  // `rank` counts the equal fractions below this segment and moves on.
  __device__ __forceinline__ int32_t proportional_budget(int32_t segment, int32_t& rank) const {
    const double q = quota(segment);
    const uint32_t f = fraction(q);
    return whole_part(q) + (f > split_ || (f == split_ && rank++ < equal_wanted_) ? 1 : 0);
  }
  __device__ __forceinline__ int32_t group_sum(int32_t x) {
    return static_cast<int32_t>(group_.prefix(static_cast<double>(x)).total);
  }

  __device__ __forceinline__ void list_segments(const Batch& batch) {
    int32_t rank = equal_before_;
    int32_t slot = slot_before_;
#pragma unroll 1
    for (int32_t s = begin_; s < end_; ++s) {
      int32_t budget;
      float weight;
      const double mass = segment_mass(s);
      if (proportional_) {
        budget = proportional_budget(s, rank);
        weight = 1.0f / static_cast<float>(row_.budget);
      } else {
        budget = flash_tile_budget(row_.budget, segments_, s);
        slot = s * (row_.budget / segments_) + min(s, row_.budget % segments_);
        weight = static_cast<float>(mass / total() / budget);
      }
      if (budget > 0 && slot < batch.high && slot + budget > batch.low) {
        const int32_t first_tile = s * segment_tiles_;
        const int32_t end = min(row_.tiles, first_tile + segment_tiles_);
        list_systematic(
            row_, batch, masses_,
            {mass, budget, draw_uniform(row_.draws, static_cast<uint32_t>(s)), slot, end - 1, weight},
            first_tile, end, 0.0, mass);
      }
      slot += budget;
    }
  }

  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const TileMasses<kWarps> masses_;
  const bool proportional_;
  // Tiles of the estimator, here segments, dealt to the threads in contiguous runs.
  int32_t segment_tiles_ = 0;
  int32_t segments_ = 0;
  int32_t begin_ = 0;
  int32_t end_ = 0;
  uint32_t split_ = 0;
  int32_t equal_wanted_ = 0;
  int32_t equal_before_ = 0;
  int32_t slot_before_ = 0;
};

}  // namespace allot::kernels::cuda
