// Samples with a target each: iid draws them independently, strat one in each stratum of the CDF (S2ANTA
// paper, equation 4 and Appendix A.3). Every sample searches the prefix of the score tiles, then the weights
// of one tile.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

template <int kWarps>
class TargetSelection {
 public:
  static constexpr bool kDense = false;  // serves the rows with a budget
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return int64_t{tiles} * sizeof(double);
  }

  // `shared` keeps the CDF of the tiles.
  __device__ __forceinline__ TargetSelection(const Args& args, const ValueRow& row, RowGroup<kWarps>& group,
                                             char* shared)
      : args_(args), row_(row), group_(group), masses_(group, row), cdf_(reinterpret_cast<double*>(shared)) {
    double mass = masses_.prefix.before;
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      mass = t + 1 == masses_.end ? masses_.prefix.with_own : mass + masses_.mass(row, t);
      cdf_[t] = mass;
    }
    group.sync();
  }

  __device__ __forceinline__ double total() const {
    return masses_.total();
  }

  __device__ __forceinline__ void fill(const Batch& batch) {
#pragma unroll 1
    for (int32_t s = batch.low + group_.thread(); s < batch.high; s += group_.kThreads) {
      const float u = draw_uniform(row_.draws, static_cast<uint32_t>(s));
      const double fraction = args_.p.estimator == Estimator::kIid
                                  ? independent_target<double>(u)
                                  : stratum_target<double>(s, row_.budget, u);
      const double target = fraction * total();
      // First tile whose CDF reaches the target, the last one where rounding leaves the CDF short.
      int32_t low = 0;
      int32_t high = row_.tiles - 1;
#pragma unroll 1
      while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (cdf_[middle] >= target) {
          high = middle;
        } else {
          low = middle + 1;
        }
      }
      const double below = low == 0 ? 0.0 : cdf_[low - 1];
      const double local = (target - below) / static_cast<double>(masses_.tile_scale(row_, low));
      batch.draws[s - batch.low] = {
          low, s, 1, static_cast<float>(local), 0.0f, 1.0f / static_cast<float>(row_.budget)};
    }
    group_.sync();
    const int part = group_.lane() % kTileLanes;
    const int32_t draws_listed = batch.high - batch.low;
    constexpr int kGroups = RowGroup<kWarps>::kThreads / kTileLanes;
#pragma unroll 1
    for (int32_t base = group_.warp() * (32 / kTileLanes); base < draws_listed; base += kGroups) {
      const int32_t i = base + group_.lane() / kTileLanes;
      put_target(batch, batch.draws[min(i, draws_listed - 1)], i < draws_listed, part);
    }
  }

 private:
  __device__ __forceinline__ void put_target(const Batch& batch, const TileDraw& draw, bool valid, int part) {
    int32_t units[8] = {};
    uint32_t first_row = 0;
    if (valid) {
      load_weights(row_, draw.tile, part, units);
      first_row = first_value_row(args_, row_, draw.tile, part);
    }
    int32_t sum = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += units[k];
    const TilePrefix prefix = tile_prefix(sum, part);
    if (!valid) return;
    const float target = fminf(draw.phase / kWeightUnit, static_cast<float>(prefix.total));
    // The key whose weight crosses the target; the comparison of the last one always holds.
    int32_t cumulative = prefix.before;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int32_t below = cumulative;
      cumulative += units[k];
      const bool reached = static_cast<float>(cumulative) >= target;
      const bool before = below > 0 && static_cast<float>(below) >= target;
      if (units[k] > 0 && reached && !before) batch.put(draw.first, 1, first_row + k, draw.weight);
    }
  }

  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  TileMasses<kWarps> masses_;
  double* cdf_;
};

}  // namespace allot::kernels::cuda
