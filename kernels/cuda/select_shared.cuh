// Chooses the value rows that the heads of a group read together (kernels/methods/shared.h): `joint` and
// `level`. The size of a row is the sum of its probabilities in the heads, so the CDF of the sizes over score
// tiles follows from the tiles' statistics; only tiles that may hold a row of at least tau, and those in
// which a sample falls, are looked into.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

// Most query heads of a KV head.
inline constexpr int kMaxGroupHeads = 16;

// What the heads of a group see of a query. `head`, `stats` and `weights` are those of its first head; the
// others follow.
struct GroupRow : ValueRow {
  int32_t heads;
  int32_t row_tiles;  // from a head to the next

  __device__ __forceinline__ TileStats stats_of(int32_t head, int32_t tile) const {
    return stats[int64_t{head} * row_tiles + tile];
  }
  __device__ __forceinline__ const uint16_t* weights_of(int32_t head, int32_t tile) const {
    return weights + (int64_t{head} * row_tiles + tile) * kScoreTile;
  }
};

// A batch of the rows that are read, in shared memory: slots [low, high) of the query's.
template <int kBatch>
struct SharedBatch {
  uint32_t* rows;  // [kBatch] of value_pages
  float* weights;  // [heads, kBatch]
  int32_t low;
  int32_t high;
};

template <int kWarps, int kBatch>
class SharedSelection {
  struct Counters {
    unsigned long long kept_mass;  // in units of 2^-40: sums are exact in any order
    int32_t kept;
    int32_t hot;
  };
  // The probability of a weight w in tile t is w * exp2(max of t - largest) * inverse_total.
  struct Head {
    float largest;  // score, in units of log2
    float inverse_total;
  };
  static constexpr int kHeld = 4;

 public:
  // Of a query: counters, a batch, heads, the CDF of what is not kept, kept rows below each tile, hot tiles,
  // a batch.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles, int32_t heads) {
    return (fixed_bytes(heads) + int64_t{tiles} * (sizeof(double) + sizeof(int32_t) + sizeof(uint16_t)) +
            15) /
           16 * 16;
  }

  __device__ __forceinline__ SharedSelection(const Args& args, const GroupRow& row, RowGroup<kWarps>& group,
                                             char* shared)
      : args_(args), row_(row), group_(group) {
    counters_ = reinterpret_cast<Counters*>(shared);
    batch_.weights = reinterpret_cast<float*>(counters_ + 1);
    batch_.rows = reinterpret_cast<uint32_t*>(batch_.weights + kBatch * row.heads);
    heads_ = reinterpret_cast<Head*>(batch_.rows + kBatch);
    cdf_ = reinterpret_cast<double*>(heads_ + row.heads);
    kept_before_ = reinterpret_cast<int32_t*>(cdf_ + row.tiles);
    hot_ = reinterpret_cast<uint16_t*>(kept_before_ + row.tiles);

    const int32_t each = (row.tiles + group.kThreads - 1) / group.kThreads;
    begin_ = min(row.tiles, group.thread() * each);
    end_ = min(row.tiles, begin_ + each);
    const bool level = args.p.method.estimator == Estimator::kLevel;
    const int64_t wanted = int64_t{row.budget} * row.heads;
    const int32_t rows = wanted < row.keys ? static_cast<int32_t>(wanted) : row.keys;
    // The probabilities of every head add up to 1. With a row for every key, all are kept.
    threshold_ = level              ? 1.0f / static_cast<float>(row.budget)
                 : rows == row.keys ? 0.0f
                                    : static_cast<float>(row.heads) / static_cast<float>(rows);
    if (group.thread() == 0) *counters_ = {0, 0, 0};
    normalise_heads();
    double mass = 0;
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) {
      const Tile tile = tile_of(t);
      mass += static_cast<double>(tile.mass);
      cdf_[t] = static_cast<double>(tile.mass);
      list_if_hot(t, tile);
    }
    const auto prefix = group.prefix(mass);
    total_ = prefix.total;
    if (!isfinite(total_)) return;
    group.sync();
    if (counters_->hot == 0) {
      rest_ = total_;
      double sum = prefix.before;
#pragma unroll 1
      for (int32_t t = begin_; t < end_; ++t) {
        sum += cdf_[t];
        cdf_[t] = sum;
      }
    } else {
      count_kept();
      if (!level) lower_threshold(rows);
      split_off_kept();
    }
    const float u = draw_uniform(row.draws, kRowDraw);
    if (level) {
      drawn_ = rest_ > 0 ? min(level_draws(rest_ * row.budget, u), row.keys) : 0;
      step_ = 1.0 / row.budget;
    } else {
      drawn_ = rest_ > 0 ? rows - kept_ : 0;
      step_ = rest_ / max(drawn_, 1);
    }
    group.sync();
  }

  // Sum of the sizes; not finite where a score is not.
  __device__ __forceinline__ double total() const {
    return total_;
  }
  // Rows that are read.
  __device__ __forceinline__ int32_t count() const {
    return kept_ + drawn_;
  }

  // What fill() wrote last.
  __device__ __forceinline__ const SharedBatch<kBatch>& batch() const {
    return batch_;
  }
  // Slots: the kept rows in order, then the samples. Needs a barrier before others read the batch.
  __device__ __forceinline__ const SharedBatch<kBatch>& fill(int32_t low, int32_t high) {
    batch_.low = low;
    batch_.high = high;
    if (low < kept_) put_kept();
    const float u = draw_uniform(row_.draws, kRowDraw);
#pragma unroll 1
    for (int32_t slot = max(low, kept_) + group_.thread(); slot < high; slot += group_.kThreads) {
      const double target = level_target<double>(slot - kept_, u) * step_;
      const int32_t tile = find_tile(cdf_, 0, row_.tiles - 1, target);
      const TilePages pages(args_, row_, tile);
      const double below = tile == 0 ? 0.0 : cdf_[tile - 1];
      float size;
      const int32_t key = find_row(tile, static_cast<float>(target - below), &size);
      put(slot, pages.value_row(args_, row_, tile * kScoreTile + key), tile, key,
          static_cast<float>(step_) / size);
    }
    return batch_;
  }

 private:
  // Lanes that share a hot tile, eight keys each.
  static constexpr int kTileLanes = 8;

  __host__ __device__ static constexpr int64_t fixed_bytes(int32_t heads) {
    return int64_t{heads} * (sizeof(Head) + kBatch * sizeof(float)) + sizeof(Counters) +
           kBatch * sizeof(uint32_t);
  }

  // By what a head's weights in a tile become probabilities.
  __device__ __forceinline__ float scale_of(int32_t head, const TileStats& stats) const {
    return tile_scale(stats, heads_[head].largest) * heads_[head].inverse_total;
  }

  struct Tile {
    float mass;   // sum of the sizes
    float bound;  // no size is larger: weights are at most 1
  };
  __device__ __forceinline__ Tile tile_of(int32_t tile) const {
    Tile sums = {0, 0};
#pragma unroll 4
    for (int32_t head = 0; head < row_.heads; ++head) {
      const TileStats stats = row_.stats_of(head, tile);
      const float scale = scale_of(head, stats);
      sums.mass = fmaf(stats.sum, scale, sums.mass);
      sums.bound += scale;
    }
    return sums;
  }

  // The largest score of every head and the sum of its weights relative to it; a warp works on a head.
  __device__ __forceinline__ void normalise_heads() {
#pragma unroll 1
    for (int32_t head = group_.warp(); head < row_.heads; head += kWarps) {
      const TileStats* const stats = row_.stats + int64_t{head} * row_.row_tiles;
      // The statistics of up to 8,192 keys are asked for at once; the others, of longer rows, are read again.
      TileStats held[kHeld];
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int32_t t = group_.lane() + 32 * i;
        held[i] = t < row_.tiles ? stats[t] : TileStats{-INFINITY, 0};
        largest = fmaxf(largest, held[i].max);
      }
#pragma unroll 4
      for (int32_t t = group_.lane() + 32 * kHeld; t < row_.tiles; t += 32)
        largest = fmaxf(largest, stats[t].max);
#pragma unroll
      for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
      double sum = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) sum += static_cast<double>(held[i].sum * tile_scale(held[i], largest));
#pragma unroll 4
      for (int32_t t = group_.lane() + 32 * kHeld; t < row_.tiles; t += 32)
        sum += static_cast<double>(stats[t].sum * tile_scale(stats[t], largest));
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
      if (group_.lane() == 0) heads_[head] = {largest, static_cast<float>(1 / sum)};
    }
    group_.sync();
  }

  // The sizes of keys 8 part .. 8 part + 8 of a tile.
  __device__ __forceinline__ void sizes_of(int32_t tile, int part, float (&sizes)[8]) const {
#pragma unroll 2
    for (int32_t head = 0; head < row_.heads; ++head) {
      const float scale = scale_of(head, row_.stats_of(head, tile));
      const auto* pairs = reinterpret_cast<const uint32_t*>(row_.weights_of(head, tile));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 pair = unpack<__half>(pairs[stage_position(8 * part + 2 * k) / 2]);
        sizes[2 * k] = fmaf(pair.x, scale, sizes[2 * k]);
        sizes[2 * k + 1] = fmaf(pair.y, scale, sizes[2 * k + 1]);
      }
    }
  }

  __device__ __forceinline__ bool keeps(float size) const {
    return size > 0 && size >= threshold_;
  }

  // Calls use(tile, part, valid, sizes) for every hot tile, eight lanes a tile; all lanes of a warp call
  // together.
  template <class Use>
  __device__ __forceinline__ void for_each_hot_tile(Use use) {
    const int part = group_.lane() % kTileLanes;
    const int32_t hot = counters_->hot;
    constexpr int kGroups = RowGroup<kWarps>::kThreads / kTileLanes;
#pragma unroll 1
    for (int32_t base = group_.warp() * (32 / kTileLanes); base < hot; base += kGroups) {
      const int32_t i = base + group_.lane() / kTileLanes;
      const bool valid = i < hot;
      const int32_t tile = valid ? hot_[i] : 0;
      float sizes[8] = {};
      if (valid) sizes_of(tile, part, sizes);
      use(tile, part, valid, sizes);
    }
  }

  // Lists a tile that may hold a row of at least the threshold.
  __device__ __forceinline__ void list_if_hot(int32_t t, const Tile& tile) {
    const float bound = tile.bound * 1.0001f;  // the sizes are rounded
    if (bound > 0 && bound >= threshold_) hot_[atomicAdd(&counters_->hot, 1)] = static_cast<uint16_t>(t);
  }

  // Counts the rows of the hot tiles that are kept.
  __device__ __forceinline__ void count_kept() {
    for_each_hot_tile([&](int32_t, int, bool, const float(&sizes)[8]) {
      int32_t kept = 0;
      unsigned long long mass = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        if (!keeps(sizes[k])) continue;
        ++kept;
        mass += static_cast<unsigned long long>(sizes[k] * 0x1p40f);
      }
      if (kept > 0) {
        atomicAdd(&counters_->kept, kept);
        atomicAdd(&counters_->kept_mass, mass);
      }
    });
    group_.sync();
    kept_ = counters_->kept;
  }

  // tau falls in steps that keep more rows each, until as many are kept as the rows left to draw ask for.
  __device__ __forceinline__ void lower_threshold(int32_t rows) {
    int32_t before = 0;
#pragma unroll 1
    while (kept_ != before && kept_ < rows) {
      before = kept_;
      const double rest = total_ - static_cast<double>(counters_->kept_mass) * 0x1p-40;
      const auto next = static_cast<float>(fmax(rest, 0.0) / (rows - kept_));
      if (!(next < threshold_)) break;
      threshold_ = next;
      group_.sync();
      if (group_.thread() == 0) *counters_ = {0, 0, 0};
      group_.sync();
#pragma unroll 1
      for (int32_t t = begin_; t < end_; ++t) list_if_hot(t, tile_of(t));
      group_.sync();
      count_kept();
    }
  }

  // The CDF of the rows that are not kept, from the masses of the tiles, and how many kept rows lie below
  // each tile.
  __device__ __forceinline__ void split_off_kept() {
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) kept_before_[t] = 0;
    group_.sync();
    for_each_hot_tile([&](int32_t tile, int, bool valid, const float(&sizes)[8]) {
      float rest = 0;
      int32_t kept = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const bool keep = keeps(sizes[k]);
        kept += keep;
        rest += keep ? 0.0f : sizes[k];
      }
#pragma unroll
      for (int d = 1; d < kTileLanes; d *= 2) {
        rest += __shfl_xor_sync(kFullWarp, rest, d);
        kept += __shfl_xor_sync(kFullWarp, kept, d);
      }
      if (valid) {  // the lanes agree
        cdf_[tile] = static_cast<double>(rest);
        kept_before_[tile] = kept;
      }
    });
    group_.sync();
    double rest = 0;
    int32_t kept = 0;
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) {
      rest += cdf_[t];
      kept += kept_before_[t];
    }
    const auto prefix = group_.prefix(rest);
    rest_ = prefix.total;
    double sum = prefix.before;
    int32_t below = group_.prefix(kept);
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) {
      sum += cdf_[t];
      cdf_[t] = sum;
      const int32_t own = kept_before_[t];
      kept_before_[t] = below;
      below += own;
    }
  }

  // The sizes of keys 32 half .. 32 half + 32 of a tile, for one thread.
  __device__ __forceinline__ void half_sizes(int32_t tile, int half, float (&sizes)[32]) const {
#pragma unroll
    for (int k = 0; k < 32; ++k) sizes[k] = 0;
#pragma unroll 4
    for (int32_t head = 0; head < row_.heads; ++head) {
      const float scale = scale_of(head, row_.stats_of(head, tile));
      const auto* vectors = reinterpret_cast<const uint4*>(row_.weights_of(head, tile)) + 4 * half;
#pragma unroll
      for (int t = 0; t < 4; ++t) {  // see stage_order.h
        const uint4 vector = vectors[t];
        const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<__half>(words[i]);
          sizes[8 * i + 2 * t] = fmaf(pair.x, scale, sizes[8 * i + 2 * t]);
          sizes[8 * i + 2 * t + 1] = fmaf(pair.y, scale, sizes[8 * i + 2 * t + 1]);
        }
      }
    }
  }

  // Row (0-based in the tile) in which the target falls among those that are not kept, and its size; the last
  // one of positive size where rounding leaves their sum short.
  __device__ __forceinline__ int32_t find_row(int32_t tile, float target, float* size) const {
    int32_t found = 0;
    *size = 1;
    float sum = 0;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      float sizes[32];
      half_sizes(tile, half, sizes);
#pragma unroll
      for (int k = 0; k < 32; ++k) {
        if (sum >= target || !(sizes[k] > 0) || keeps(sizes[k])) continue;
        sum += sizes[k];
        found = 32 * half + k;
        *size = sizes[k];
      }
      if (sum >= target) break;
    }
    return found;
  }

  // Writes a row to its slot: the weight of a head is its probability times `factor`.
  __device__ __forceinline__ void put(int32_t slot, uint32_t value_row, int32_t tile, int32_t key,
                                      float factor) {
    const int32_t i = slot - batch_.low;
    batch_.rows[i] = value_row;
    const int position = stage_position(key);
#pragma unroll 4
    for (int32_t head = 0; head < row_.heads; ++head) {
      const float w = __half2float(reinterpret_cast<const __half*>(row_.weights_of(head, tile))[position]);
      batch_.weights[head * kBatch + i] = w * scale_of(head, row_.stats_of(head, tile)) * factor;
    }
  }

  __device__ __forceinline__ void put_kept() {
    for_each_hot_tile([&](int32_t tile, int part, bool valid, const float(&sizes)[8]) {
      int32_t kept = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) kept += keeps(sizes[k]);
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
        if (!keeps(sizes[k])) continue;
        if (slot >= batch_.low && slot < batch_.high) put(slot, first + k, tile, 8 * part + k, 1);
        ++slot;
      }
    });
  }

  const Args& args_;
  const GroupRow& row_;
  RowGroup<kWarps>& group_;
  Counters* counters_;
  SharedBatch<kBatch> batch_;
  Head* heads_;           // [heads]
  double* cdf_;           // [tiles]
  int32_t* kept_before_;  // [tiles]
  uint16_t* hot_;         // [tiles]
  int32_t begin_;         // this thread's tiles
  int32_t end_;
  double total_ = 0;
  float threshold_ = 0;  // tau
  int32_t kept_ = 0;
  int32_t drawn_ = 0;
  double rest_ = 0;  // mass that is not kept
  double step_ = 0;  // of the targets
};

}  // namespace allot::kernels::cuda
