// Samples over the whole row, each with a target in the CDF: sys spaces them evenly from one offset, strat
// draws one in each stratum, iid draws them independently (S2ANTA paper, equation 4 and Appendix A.3). One
// thread a sample searches the CDF of the score tiles, then the weights of one tile.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/cuda/value_table.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

template <int kWarps>
class TargetSelection {
 public:
  static constexpr bool kDense = false;  // serves the rows with a budget
  static constexpr bool kDraws = true;
  // Dynamic shared bytes a row of `tiles` score tiles needs: the CDF.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return int64_t{tiles} * sizeof(double);
  }

  __device__ __forceinline__ TargetSelection(const Args& args, const ValueRow& row, RowGroup<kWarps>& group,
                                             char* shared)
      : args_(args), row_(row), group_(group), masses_(group, row), cdf_(reinterpret_cast<double*>(shared)) {
    masses_.write_cdf(row, cdf_);
    group.sync();
  }

  __device__ __forceinline__ double total() const { return masses_.total; }

  __device__ __forceinline__ void fill(const Batch& batch) {
    const bool one_offset = args_.p.method.estimator == Estimator::kSys;
    const bool independent = args_.p.method.estimator == Estimator::kIid;
    const float weight = 1.0f / static_cast<float>(row_.budget);
#pragma unroll 1
    for (int32_t s = batch.low + group_.thread(); s < batch.high; s += group_.kThreads) {
      const float u = draw_uniform(row_.draws, one_offset ? kRowDraw : static_cast<uint32_t>(s));
      const double fraction =
          independent ? independent_target<double>(u) : stratum_target<double>(s, row_.budget, u);
      const double target = fraction * masses_.total;
      const int32_t tile = find_tile(cdf_, 0, row_.tiles - 1, target);
      const TileWeights weights(row_, tile);
      const TilePages pages(args_, row_, tile);
      const double below = tile == 0 ? 0.0 : cdf_[tile - 1];
      const float local = static_cast<float>(target - below) / tile_scale(row_.stats[tile], masses_.largest);
      const int32_t key = tile * kScoreTile + find_key(weights, local, [](float w) { return w; });
      batch.put(s, {pages.value_row(args_, row_, key), weight});
    }
  }

 private:
  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const TileMasses<kWarps> masses_;
  double* const cdf_;
};

template <class T, int kHeadDim>
ValueKernel targets_kernel(Workers workers) {
  return value_kernel_of<TargetSelection, T, kHeadDim>(workers);
}

}  // namespace allot::kernels::cuda
