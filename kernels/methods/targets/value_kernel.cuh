// Samples over the whole row, each with a target in the CDF: sys spaces them evenly from one offset, strat
// draws one in each stratum, iid draws them independently (S2ANTA paper, equation 4 and Appendix A.3). One
// thread a sample searches the CDF of the score tiles, then the weights of one tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/value_row.cuh"
#include "kernels/cuda/value_table.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

// Target of sample `s` of a row, as a part of the row's mass.
__device__ __forceinline__ double target_of(const Args& args, const ValueRow& row, int32_t s) {
  const bool one_offset = args.p.method.estimator == Estimator::kSys;
  const bool independent = args.p.method.estimator == Estimator::kIid;
  const float u = draw_uniform(row.draws, one_offset ? kRowDraw : static_cast<uint32_t>(s));
  return independent ? independent_target<double>(u) : stratum_target<double>(s, row.budget, u);
}

// The sample of a row with a target in the CDF `cdf` of its score tiles, relative to the score `largest`.
// Where kLanes neighbours search for it together, which all call this, one gets it; the others' row is
// kNoRow.
template <int kLanes>
__device__ __forceinline__ Entry drawn_entry(const Args& args, const ValueRow& row, const double* cdf,
                                             float largest, double target, int lane) {
  const int32_t tile = find_tile(cdf, 0, row.tiles - 1, target);
  const TileWeights<kLanes> weights(row, tile, lane);
  const TilePages<kLanes> pages(args, row, tile, lane);
  const double below = tile == 0 ? 0.0 : cdf[tile - 1];
  const float local = static_cast<float>(target - below) / tile_scale(row.stats[tile], largest);
  const int32_t key = tile * kScoreTile + find_key<kLanes>(weights, lane, local, [](float w) { return w; });
  if constexpr (kLanes > 1) {
    if (key == tile * kScoreTile + kNotHere) return {kNoRow, 0};
  }
  return {pages.value_row(args, row, key), 1.0f / static_cast<float>(row.budget)};
}

// Lanes that search for a sample together where a row's group has as many for each of `count`.
template <int kWarps>
inline constexpr int kSearchLanes = kWarps == 1 ? 4 : 2;
template <int kWarps>
__device__ __forceinline__ bool search_together(int32_t count) {
  return count <= 32 * kWarps / kSearchLanes<kWarps>;
}

// The target of the first sample of a thread.
template <int kWarps>
struct FirstTarget {
  int32_t sample;
  double target;
  __device__ __forceinline__ static int place(int32_t count, int thread) {
    return search_together<kWarps>(count) ? thread / kSearchLanes<kWarps> : thread;
  }
  __device__ __forceinline__ FirstTarget(const Args& args, const ValueRow& row, int32_t s)
      : sample(s), target(target_of(args, row, s)) {}
};

template <int kWarps>
class TargetSelection {
 public:
  static constexpr bool kDense = false;  // serves the rows with a budget
  static constexpr bool kDraws = true;
  // Warps with a row each are many, and wait for each other's instructions rather than for their scores.
  using Known = std::conditional_t<kWarps == 1, NothingKnown, FirstTarget<kWarps>>;
  // Dynamic shared bytes a row of `tiles` score tiles needs: the CDF.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return int64_t{tiles} * sizeof(double);
  }

  __device__ __forceinline__ TargetSelection(const Args& args, const ValueRow& row, RowGroup<kWarps>& group,
                                             char* shared, const Known& known)
      : args_(args),
        row_(row),
        group_(group),
        known_(known),
        masses_(group, row),
        cdf_(reinterpret_cast<double*>(shared)) {
    masses_.write_cdf(row, cdf_);
    group.sync();
  }

  __device__ __forceinline__ double total() const { return masses_.total; }

  __device__ __forceinline__ void fill(const Batch& batch) {
    if (!batch.one_by_one && search_together<kWarps>(batch.high - batch.low)) return fill_together(batch);
#pragma unroll 1
    for (int32_t s = batch.low + group_.thread(); s < batch.high; s += group_.kThreads)
      batch.put(s, drawn_entry<1>(args_, row_, cdf_, masses_.largest, target(s) * masses_.total, 0));
  }

 private:
  __device__ __forceinline__ void fill_together(const Batch& batch) {
    constexpr int kLanes = kSearchLanes<kWarps>;
    // All lanes search, for the sake of shuffles, whether there is a sample for them or not.
    const int32_t s = batch.low + group_.thread() / kLanes;
    const bool wanted = s < batch.high;
    const Entry entry =
        drawn_entry<kLanes>(args_, row_, cdf_, masses_.largest,
                            target(wanted ? s : batch.low) * masses_.total, group_.thread() % kLanes);
    if (wanted && entry.row != kNoRow) batch.put(s, entry);
  }
  __device__ __forceinline__ double target(int32_t s) const {
    if constexpr (std::is_same_v<Known, FirstTarget<kWarps>>) {
      if (s == known_.sample) return known_.target;
    }
    return target_of(args_, row_, s);
  }

  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const Known& known_;
  const TileMasses<kWarps> masses_;
  double* const cdf_;
};

template <class T, int kHeadDim>
ValueKernel targets_kernel(Workers workers) {
  return value_kernel_of<TargetSelection, T, kHeadDim>(workers);
}

}  // namespace allot::kernels::cuda
