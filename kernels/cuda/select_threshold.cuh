// Threshold samples: keys with p >= tau keep their own weight, the others are drawn systematically with
// weight tau, S entries in all (docs/design.md, section 5). tau solves sum of min(1, p / tau) = S; it falls
// from 1 / S in a few steps, each of which looks only at score tiles whose maximum reaches it.
#pragma once

#include "kernels/cuda/select_systematic.cuh"
#include "kernels/cuda/value_row.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

template <int kWarps>
class ThresholdSelection {
 public:
  struct Tile {
    float residual;  // mass of the keys that are not kept
    int32_t kept;
  };
  static constexpr bool kDense = false;  // serves the rows with a budget
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return int64_t{tiles} * (sizeof(Tile) + sizeof(uint16_t)) + sizeof(Counters) + 16;
  }

  __device__ __forceinline__ ThresholdSelection(const Args& args, const ValueRow& row,
                                                RowGroup<kWarps>& group, char* shared)
      : args_(args),
        row_(row),
        group_(group),
        masses_(group, row),
        counters_(*reinterpret_cast<Counters*>(shared)),
        tiles_(reinterpret_cast<Tile*>(shared + sizeof(Counters))),
        hot_(reinterpret_cast<uint16_t*>(shared + sizeof(Counters) + row.tiles * sizeof(Tile))),
        u_(draw_uniform(row.draws, kRowDraw)) {
    find_threshold();
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) tiles_[t] = {masses_.mass(row, t), 0};
    group.sync();
    if (kept_ > 0) {
      for_each_hot_tile([&](int32_t tile, int part, bool valid, const int32_t(&units)[8], float scale) {
        int32_t residual = 0;
        int32_t kept = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const bool keep = keeps(units[k], scale);
          kept += keep;
          residual += keep ? 0 : units[k];
        }
        const int32_t all_kept = tile_prefix(kept, part).total;
        const int32_t all_residual = tile_prefix(residual, part).total;
        if (valid && part == 0) {
          tiles_[tile] = {static_cast<float>(all_residual) * kWeightUnit * scale, all_kept};
        }
      });
      group.sync();
    }
    double residual = 0;
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) residual += static_cast<double>(tiles_[t].residual);
    residuals_ = group.prefix(residual);
    drawn_ = residuals_.total > 0 ? row.budget - kept_ : 0;
    // Slots: a tile's kept keys and samples follow those of the tiles below.
    int32_t own = 0;
    for_each_own_tile(
        [&](int32_t, int32_t, int32_t samples, double, int32_t kept) { own += samples + kept; });
    slot_before_ = group.prefix(own);
  }

  __device__ __forceinline__ double total() const {
    return masses_.total();
  }

  __device__ __forceinline__ void fill(const Batch& batch) {
    int32_t slot = slot_before_;
    const double rate = drawn_ / residuals_.total;
    const auto weight = static_cast<float>(residuals_.total / drawn_ / total());
    for_each_own_tile([&](int32_t tile, int32_t, int32_t samples, double x, int32_t kept) {
      batch.list({tile, slot, samples, static_cast<float>(x - floor(x)),
                  samples > 0 ? static_cast<float>(rate) * masses_.tile_scale(row_, tile) : 0.0f, weight},
                 samples + kept);
      slot += samples + kept;
    });
    group_.sync();
    for_each_listed(group_, batch,
                    [&](const TileDraw& draw, bool valid, int part) { put_tile(batch, draw, valid, part); });
  }

 private:
  struct Counters {
    unsigned long long
        kept_mass;  // in units of 2^-40 of the row's largest weight: sums are exact in any order
    int32_t kept;
    int32_t hot;
  };

  __device__ __forceinline__ bool keeps(int32_t units, float scale) const {
    return units > 0 && static_cast<float>(units) * kWeightUnit * scale >= threshold_;
  }

  // Calls `use` for every tile on the hot list, eight lanes a tile; all lanes of a warp call together.
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
      int32_t units[8] = {};
      if (valid) load_weights(row_, tile, part, units);
      use(tile, part, valid, units, valid ? masses_.tile_scale(row_, tile) : 0.0f);
    }
  }

  __device__ __forceinline__ void find_threshold() {
    threshold_ = static_cast<float>(masses_.total() / row_.budget);
    // The largest weight is 1, so nothing is kept above that: the common case of a flat row, and of NaN.
    if (!(threshold_ <= 1.0f)) return;
    for (;;) {
      if (group_.thread() == 0) counters_ = {0, 0, 0};
      group_.sync();
#pragma unroll 1
      for (int32_t t = masses_.begin; t < masses_.end; ++t) {
        if (masses_.tile_scale(row_, t) >= threshold_) {
          hot_[atomicAdd(&counters_.hot, 1)] = static_cast<uint16_t>(t);
        }
      }
      group_.sync();
      for_each_hot_tile([&](int32_t, int part, bool, const int32_t(&units)[8], float scale) {
        int32_t kept = 0;
        unsigned long long mass = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if (!keeps(units[k], scale)) continue;
          ++kept;
          mass +=
              static_cast<unsigned long long>(static_cast<float>(units[k]) * kWeightUnit * scale * 0x1p40f);
        }
        if (kept > 0) {
          atomicAdd(&counters_.kept, kept);
          atomicAdd(&counters_.kept_mass, mass);
        }
      });
      group_.sync();
      const int32_t kept = counters_.kept;
      const double rest = masses_.total() - static_cast<double>(counters_.kept_mass) * 0x1p-40;
      group_.sync();
      const bool settled = kept == kept_;
      kept_ = kept;
      if (settled) return;
      // With no sample left for the rest, or no rest, every key with any weight is kept.
      const float next =
          kept >= row_.budget ? threshold_ : static_cast<float>(fmax(rest, 0.0) / (row_.budget - kept));
      if (!(next < threshold_)) return;
      threshold_ = next;
    }
  }

  // Calls use(tile, first sample, samples, x where the tile begins, kept keys) for this thread's tiles.
  template <class Use>
  __device__ __forceinline__ void for_each_own_tile(Use use) {
    const double rate = drawn_ > 0 ? drawn_ / residuals_.total : 0.0;
    double mass = residuals_.before;
    double x = fma(mass, rate, double{u_});
#pragma unroll 1
    for (int32_t t = masses_.begin; t < masses_.end; ++t) {
      mass = t + 1 == masses_.end ? residuals_.with_own : mass + static_cast<double>(tiles_[t].residual);
      const double next =
          t + 1 == row_.tiles ? drawn_ + static_cast<double>(u_) : fma(mass, rate, double{u_});
      const auto first = min(drawn_, static_cast<int32_t>(x));
      const auto until = min(drawn_, static_cast<int32_t>(next));
      const int32_t samples = tiles_[t].residual > 0 ? until - first : 0;
      use(t, first, samples, x, tiles_[t].kept);
      x = next;
    }
  }

  __device__ __forceinline__ void put_tile(const Batch& batch, const TileDraw& draw, bool valid, int part) {
    int32_t units[8] = {};
    uint32_t first_row = 0;
    float scale = 0;
    if (valid) {
      load_weights(row_, draw.tile, part, units);
      first_row = first_value_row(args_, row_, draw.tile, part);
      scale = masses_.tile_scale(row_, draw.tile);
    }
    int32_t kept = 0;
    int32_t residual = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const bool keep = kept_ > 0 && keeps(units[k], scale);
      kept += keep;
      residual += keep ? 0 : units[k];
    }
    const TilePrefix kept_prefix = tile_prefix(kept, part);
    const TilePrefix prefix = tile_prefix(residual, part);
    if (!valid) return;
    const float rate = draw.rate * kWeightUnit;
    const auto samples_until = [&](int32_t x) {
      return x == prefix.total
                 ? draw.count
                 : min(draw.count, static_cast<int32_t>(fmaf(rate, static_cast<float>(x), draw.phase)));
    };
    int32_t slot = draw.first + kept_prefix.before;
    int32_t cumulative = prefix.before;
    int32_t done = cumulative == 0 ? 0 : samples_until(cumulative);
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (kept_ > 0 && keeps(units[k], scale)) {
        batch.put(slot + done, 1, first_row + k,
                  static_cast<float>(units[k]) * kWeightUnit * scale / static_cast<float>(total()));
        ++slot;
        continue;
      }
      cumulative += units[k];
      const int32_t until = cumulative == 0 ? 0 : samples_until(cumulative);
      if (until > done) batch.put(slot + done, until - done, first_row + k, draw.weight);
      done = until;
    }
  }

  const Args& args_;
  const ValueRow& row_;
  RowGroup<kWarps>& group_;
  TileMasses<kWarps> masses_;
  Counters& counters_;
  Tile* tiles_;
  uint16_t* hot_;
  const float u_;
  float threshold_ = 0;  // tau relative to the row's largest weight
  int32_t kept_ = 0;
  int32_t drawn_ = 0;
  typename RowGroup<kWarps>::Prefix residuals_ = {};
  int32_t slot_before_ = 0;
};

}  // namespace allot::kernels::cuda
