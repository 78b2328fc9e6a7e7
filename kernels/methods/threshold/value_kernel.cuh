// Threshold samples: keys with p >= tau keep their own weight, the others are drawn systematically with
// weight tau, S entries in all (docs/design.md, section 5). tau solves sum of min(1, p / tau) = S; it falls
// from 1 / S in a few steps, each of which looks only at score tiles whose maximum reaches it.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/cuda/value_table.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

template <int kWarps>
class ThresholdSelection {
  struct Counters {
    unsigned long long
        kept_mass;  // in units of 2^-40 of the row's largest weight: sums are exact in any order
    int32_t kept;
    int32_t hot;
  };

 public:
  static constexpr bool kDense = false;
  static constexpr bool kDraws = true;
  using Known = NothingKnown;
  // The CDF of what is not kept, the kept keys below each tile, and the list of hot tiles.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return (sizeof(Counters) + int64_t{tiles} * (sizeof(double) + sizeof(int32_t) + sizeof(uint16_t)) + 15) /
           16 * 16;
  }

  __device__ __forceinline__ ThresholdSelection(const Args& args, const ValueRow& row,
                                                RowGroup<kWarps>& group, char* shared, const Known&)
      : args_(args),
        row_(row),
        group_(group),
        masses_(group, row),
        counters_(*reinterpret_cast<Counters*>(shared)),
        cdf_(reinterpret_cast<double*>(shared + sizeof(Counters))),
        kept_before_(reinterpret_cast<int32_t*>(cdf_ + row.tiles)),
        hot_(reinterpret_cast<uint16_t*>(kept_before_ + row.tiles)) {
    find_threshold();
    if (kept_ == 0) {
      masses_.write_cdf(row, cdf_);
      rest_ = masses_.total;
    } else {
      split_off_kept();
    }
    drawn_ = rest_ > 0 ? row.budget - kept_ : 0;
    group.sync();
  }

  __device__ __forceinline__ double total() const { return masses_.total; }

  // Slots: the kept keys in order, then the samples.
  __device__ __forceinline__ void fill(const Batch& batch) {
    if (batch.low < kept_) put_kept(batch);
    const float u = draw_uniform(row_.draws, kRowDraw);
    const auto weight = static_cast<float>(rest_ / drawn_ / masses_.total);
#pragma unroll 1
    for (int32_t slot = max(batch.low, kept_) + group_.thread(); slot < batch.high; slot += group_.kThreads) {
      if (slot - kept_ >= drawn_) {  // every key with any weight is kept
        batch.put(slot, {0, 0});
        continue;
      }
      const double target = stratum_target<double>(slot - kept_, drawn_, u) * rest_;
      const int32_t tile = find_tile(cdf_, 0, row_.tiles - 1, target);
      const TileWeights<1> weights(row_, tile, 0);
      const TilePages<1> pages(args_, row_, tile, 0);
      const double below = tile == 0 ? 0.0 : cdf_[tile - 1];
      const float scale = tile_scale(row_.stats[tile], masses_.largest);
      const float local = static_cast<float>(target - below) / scale;
      const int32_t key = find_key<1>(weights, 0, local, [&](float w) { return keeps(w, scale) ? 0.0f : w; });
      batch.put(slot, {pages.value_row(args_, row_, tile * kScoreTile + key), weight});
    }
  }

 private:
  __device__ __forceinline__ bool keeps(float weight, float scale) const {
    return weight * scale > 0 && weight * scale >= threshold_;
  }

  // Calls use(tile, part, valid, weights, scale) for every tile on the hot list, eight lanes a tile; all
  // lanes of a warp call together.
  template <class Use>
  __device__ __forceinline__ void for_each_hot_tile(Use use) {
    const int part = group_.lane() % kTileLanes;
    const int32_t hot = counters_.hot;
    constexpr int kGroups = RowGroup<kWarps>::kThreads / kTileLanes;
#pragma unroll 1
    for (int32_t base = group_.warp() * (32 / kTileLanes); base < hot; base += kGroups) {
      const int32_t i = base + group_.lane() / kTileLanes;
      const bool valid = i < hot;
      const int32_t tile = valid ? hot_[i] : 0;
      float weights[8] = {};
      if (valid) load_eight(row_, tile, part, weights);
      use(tile, part, valid, weights, valid ? tile_scale(row_.stats[tile], masses_.largest) : 0.0f);
    }
  }

  __device__ __forceinline__ void find_threshold() {
    // With a sample for every key, all are kept.
    threshold_ = row_.budget >= row_.keys ? 0.0f : static_cast<float>(masses_.total / row_.budget);
    // The largest weight is 1, so nothing is kept above that: the common case of a flat row, and of NaN.
    if (!(threshold_ <= 1.0f)) return;
#pragma unroll 1
    for (;;) {
      if (group_.thread() == 0) counters_ = {0, 0, 0};
      group_.sync();
#pragma unroll 1
      for (int32_t t = masses_.begin; t < masses_.end; ++t) {
        const float scale = tile_scale(row_.stats[t], masses_.largest);
        if (scale > 0 && scale >= threshold_) {
          hot_[atomicAdd(&counters_.hot, 1)] = static_cast<uint16_t>(t);
        }
      }
      group_.sync();
      for_each_hot_tile([&](int32_t, int, bool, const float(&weights)[8], float scale) {
        int32_t kept = 0;
        unsigned long long mass = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (!keeps(weights[k], scale)) continue;
          ++kept;
          mass += static_cast<unsigned long long>(weights[k] * scale * 0x1p40f);
        }
        if (kept > 0) {
          atomicAdd(&counters_.kept, kept);
          atomicAdd(&counters_.kept_mass, mass);
        }
      });
      group_.sync();
      const int32_t kept = counters_.kept;
      const double rest = masses_.total - static_cast<double>(counters_.kept_mass) * 0x1p-40;
      group_.sync();
      const bool settled = kept == kept_;
      kept_ = kept;
      if (settled || kept >= row_.budget) return;
      // A difference as small as the rounding of the tiles' sums says nothing of tau: what is left is drawn.
      if (rest < masses_.total * kLeastRest) return;
      const auto next = static_cast<float>(fmax(rest, 0.0) / (row_.budget - kept));
      if (!(next < threshold_)) return;
      threshold_ = next;
    }
  }

  // Of a row's mass, above the rounding of float32 sums of 64 weights.
  static constexpr double kLeastRest = 0x1p-20;

  // The CDF of the keys that are not kept, and how many kept keys lie below each tile.
  __device__ __forceinline__ void split_off_kept() {
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      cdf_[t] = static_cast<double>(masses_.mass(row_, t));
      kept_before_[t] = 0;
    }
    group_.sync();
    for_each_hot_tile([&](int32_t tile, int, bool valid, const float(&weights)[8], float scale) {
      float rest = 0;
      int32_t kept = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const bool keep = keeps(weights[k], scale);
        kept += keep;
        rest += keep ? 0.0f : weights[k];
      }
#pragma unroll
      for (int d = 1; d < kTileLanes; d *= 2) {
        rest += __shfl_xor_sync(kFullWarp, rest, d);
        kept += __shfl_xor_sync(kFullWarp, kept, d);
      }
      if (valid) {  // the lanes agree
        cdf_[tile] = static_cast<double>(rest * scale);
        kept_before_[tile] = kept;
      }
    });
    group_.sync();
    double rest = 0;
    int32_t kept = 0;
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      rest += cdf_[t];
      kept += kept_before_[t];
    }
    const auto prefix = group_.prefix(rest);
    rest_ = prefix.total;
    double sum = prefix.before;
    int32_t below = group_.prefix(kept);
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      sum += cdf_[t];
      cdf_[t] = sum;
      const int32_t own = kept_before_[t];
      kept_before_[t] = below;
      below += own;
    }
  }

  __device__ __forceinline__ void put_kept(const Batch& batch) {
    const float total = static_cast<float>(masses_.total);
    for_each_hot_tile([&](int32_t tile, int part, bool valid, const float(&weights)[8], float scale) {
      int32_t kept = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) kept += keeps(weights[k], scale);
      int32_t inclusive = kept;
#pragma unroll
      for (int d = 1; d < kTileLanes; d *= 2) {
        const int32_t below = __shfl_up_sync(kFullWarp, inclusive, d, kTileLanes);
        if (part >= d) inclusive += below;
      }
      if (!valid || kept == 0) return;
      int32_t slot = kept_before_[tile] + inclusive - kept;
      const uint32_t first =
          value_row_of(args_, row_, tile * kScoreTile + 8 * part);  // eight keys lie in one page
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (!keeps(weights[k], scale)) continue;
        if (slot >= batch.low && slot < batch.high) batch.put(slot, {first + k, weights[k] * scale / total});
        ++slot;
      }
    });
  }

  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  const TileMasses<kWarps> masses_;
  Counters& counters_;
  double* const cdf_;
  int32_t* const kept_before_;
  uint16_t* const hot_;
  float threshold_ = 0;  // tau relative to the row's largest weight
  int32_t kept_ = 0;
  int32_t drawn_ = 0;
  double rest_ = 0;  // mass that is not kept
};

template <class T, int kHeadDim>
ValueKernel threshold_kernel(Workers workers) {
  return value_kernel_of<ThresholdSelection, T, kHeadDim>(workers);
}

}  // namespace allot::kernels::cuda
