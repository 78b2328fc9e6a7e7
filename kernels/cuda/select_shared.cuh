// Chooses the value rows that the heads of a group read together (kernels/methods/shared.h): `joint` and
// `level`. The size of a row is the sum of its probabilities in the heads, so the CDF of the sizes over score
// tiles follows from the tiles' statistics. Only tiles that may hold a row of at least tau are looked into
// for it, and only those that hold a row that is read are looked into again. Eight lanes share a tile.
#pragma once

#include "kernels/cuda/value_row.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

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

// Rows that a warp reads next, in shared memory, for up to kHeads heads of the group.
struct RowList {
  static constexpr int kRows = 32;  // a row for each lane
  static constexpr int kHeads = 8;

  alignas(16) float weights[kRows][kHeads];  // of the heads, 0 behind the last row
  uint32_t rows[kRows];                      // of value_pages; before that keys
  float sizes[kRows];
};

template <int kWarps>
class SharedSelection {
  // The probability of a weight w in tile t is w * exp2(max of t - largest) * inverse_total.
  struct Head {
    float largest;  // score, in units of log2
    float inverse_total;
  };
  static constexpr int kHeld = 4;
  // Lanes that share a tile, eight keys each, and tiles that a warp looks into at once.
  static constexpr int kTileLanes = 8;
  static constexpr int kQuad = 32 / kTileLanes;

 public:
  // Of a query: the CDF of what is not kept, heads, bounds of the tiles' sizes, which tiles hold kept rows.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles, int32_t heads) {
    return (int64_t{tiles} * (sizeof(double) + sizeof(float) + 1) + heads * int64_t{sizeof(Head)} + 15) / 16 *
           16;
  }

  __device__ __forceinline__ SharedSelection(const Args& args, const GroupRow& row, RowGroup<kWarps>& group,
                                             char* shared)
      : args_(args),
        row_(row),
        group_(group),
        part_(group.lane() % kTileLanes),
        cdf_(reinterpret_cast<double*>(shared)),
        heads_(reinterpret_cast<Head*>(cdf_ + row.tiles)),
        bounds_(reinterpret_cast<float*>(heads_ + row.heads)),
        holds_kept_(reinterpret_cast<uint8_t*>(bounds_ + row.tiles)) {
    const bool level = args.p.method.estimator == Estimator::kLevel;
    const int64_t wanted = int64_t{row.budget} * row.heads;
    const int32_t rows = wanted < row.keys ? static_cast<int32_t>(wanted) : row.keys;
    // The probabilities of every head add up to 1. With a row for every key, all are kept.
    tau_ = level              ? INFINITY
           : rows == row.keys ? 0.0f
                              : static_cast<float>(row.heads) / static_cast<float>(rows);
    normalise_heads();
    const int32_t each = (row.tiles + group.kThreads - 1) / group.kThreads;
    begin_ = min(row.tiles, group.thread() * each);
    end_ = min(row.tiles, begin_ + each);
    double mass = 0;
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) {
      const Tile tile = tile_of(t);
      mass += static_cast<double>(tile.mass);
      cdf_[t] = static_cast<double>(tile.mass);
      bounds_[t] = tile.bound;
      holds_kept_[t] = 0;
    }
    auto prefix = group.prefix(mass);
    total_ = rest_ = prefix.total;
    if (!isfinite(total_)) return;
    int32_t kept = 0;
    if (!level) {
      group.sync();
      kept = split_off_kept(rows);
      group.sync();
      double rest = 0;
#pragma unroll 1
      for (int32_t t = begin_; t < end_; ++t) rest += cdf_[t];
      prefix = group.prefix(rest);
      rest_ = prefix.total;
    }
    double sum = prefix.before;
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) {
      sum += cdf_[t];
      cdf_[t] = sum;
    }
    u_ = draw_uniform(row.draws, kRowDraw);
    if (level) {
      step_ = 1.0 / row.budget;
      drawn_ = level_draws(rest_ * row.budget, u_);
    } else {
      drawn_ = rest_ > 0 ? rows - kept : 0;
      step_ = rest_ / max(drawn_, 1);
    }
    steps_ = 1 / step_;
    group.sync();
  }

  // Sum of the sizes; not finite where a score is not.
  __device__ __forceinline__ double total() const {
    return total_;
  }

  // Calls use(rows) for lists of the rows that are read in this warp's tiles of the part, with the weights of
  // heads first_head .. first_head + RowList::kHeads. Returns how many rows there were.
  template <class Use>
  __device__ __forceinline__ int32_t for_each_list(int32_t part, int32_t parts, int32_t first_head,
                                                   RowList& list, Use use) const {
    int32_t all = 0;
#pragma unroll 1
    for (int32_t quad = kQuad * (part * kWarps + group_.warp()); quad < row_.tiles;
         quad += kQuad * kWarps * parts) {
      const int32_t tile = quad + group_.lane() / kTileLanes;
      const bool valid = tile < row_.tiles;
      const double below = valid && tile > 0 ? cdf_[tile - 1] : 0;
      const int32_t from = valid ? targets_up_to(below) : 0;
      const int32_t targets = valid ? targets_up_to(cdf_[tile]) - from : 0;
      const bool wanted = valid && (targets > 0 || holds_kept_[tile] != 0);
      if (!__any_sync(kFullWarp, wanted)) continue;
      float sizes_of_tile[1][8];
      sizes_of<1>({tile}, {wanted}, sizes_of_tile);
      const float(&sizes)[8] = sizes_of_tile[0];
      const uint32_t read =
          rows_read(sizes, static_cast<float>(below * steps_ + static_cast<double>(u_) - from), targets);

      int32_t inclusive = __popc(read);
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int32_t before = __shfl_up_sync(kFullWarp, inclusive, d);
        if (group_.lane() >= d) inclusive += before;
      }
      const int32_t count = __shfl_sync(kFullWarp, inclusive, 31);
      const int32_t first = inclusive - __popc(read);
#pragma unroll 1
      for (int32_t low = 0; low < count; low += RowList::kRows) {
        int32_t place = first - low;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          if ((read >> k & 1) == 0) continue;
          if (place >= 0 && place < RowList::kRows) {
            list.rows[place] = static_cast<uint32_t>(tile * kScoreTile + 8 * part_ + k);
            list.sizes[place] = sizes[k];
          }
          ++place;
        }
        __syncwarp();
        weigh(list, min(count - low, RowList::kRows), first_head);
        __syncwarp();
        use(min(count - low, RowList::kRows));
        __syncwarp();
      }
      all += count;
    }
    return all;
  }

 private:
  // By what a head's weights in a tile become probabilities.
  __device__ __forceinline__ float scale_of(int32_t head, const TileStats& stats) const {
    return tile_scale(stats, heads_[head].largest) * heads_[head].inverse_total;
  }

  // Calls use(head, used) for every head, four at a time: where `used` is false it is one too many.
  template <class Use>
  __device__ __forceinline__ void for_each_head(Use use) const {
#pragma unroll 1
    for (int32_t first = 0; first < row_.heads; first += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) use(min(first + i, row_.heads - 1), first + i < row_.heads);
    }
  }

  struct Tile {
    float mass;   // sum of the sizes
    float bound;  // no size is larger: weights are at most 1
  };
  __device__ __forceinline__ Tile tile_of(int32_t tile) const {
    Tile sums = {0, 0};
    for_each_head([&](int32_t head, bool used) {
      const TileStats stats = row_.stats_of(head, tile);
      const float scale = used ? scale_of(head, stats) : 0.0f;
      sums.mass = fmaf(stats.sum, scale, sums.mass);
      sums.bound += scale;
    });
    sums.bound *= 1.0001f;  // the sizes are rounded
    return sums;
  }

  // The largest score of every head and the sum of its weights relative to it; a warp works on a head.
  __device__ __forceinline__ void normalise_heads() {
    constexpr float kLow = -1e30f;  // a finite number below all scores
#pragma unroll 1
    for (int32_t head = group_.warp(); head < row_.heads; head += kWarps) {
      float largest = kLow;
      double sum = 0;
#pragma unroll 1
      for (int32_t first = group_.lane(); first < row_.tiles; first += 32 * kHeld) {
        TileStats held[kHeld];
        float next = largest;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) {
          const int32_t t = first + 32 * i;
          held[i] = t < row_.tiles ? row_.stats_of(head, t) : TileStats{-INFINITY, 0};
          next = fmaxf(next, held[i].max);
        }
        float more = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i) more = fmaf(held[i].sum, tile_scale(held[i], next), more);
        sum = sum * static_cast<double>(fast_exp2(largest - next)) + static_cast<double>(more);
        largest = next;
      }
      float all = largest;
#pragma unroll
      for (int d = 16; d > 0; d /= 2) all = fmaxf(all, __shfl_xor_sync(kFullWarp, all, d));
      sum *= static_cast<double>(fast_exp2(largest - all));
#pragma unroll
      for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
      if (group_.lane() == 0) heads_[head] = {all, static_cast<float>(1 / sum)};
    }
    group_.sync();
  }

  // The sizes of this lane's keys of some tiles; 0 in those that are not wanted. All is asked for at once.
  template <int kTiles>
  __device__ __forceinline__ void sizes_of(const int32_t (&tiles)[kTiles], const bool (&wanted)[kTiles],
                                           float (&sizes)[kTiles][8]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int k = 0; k < 8; ++k) sizes[i][k] = 0;
    constexpr int kHeads = 4;
#pragma unroll 1
    for (int32_t first = 0; first < row_.heads; first += kHeads) {
      TileStats stats[kTiles][kHeads];
      uint32_t pairs[kTiles][kHeads][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          stats[i][h] = {-INFINITY, 0};
#pragma unroll
          for (int k = 0; k < 4; ++k) pairs[i][h][k] = 0;
          if (!wanted[i] || first + h >= row_.heads) continue;
          stats[i][h] = row_.stats_of(first + h, tiles[i]);
          const auto* all = reinterpret_cast<const uint32_t*>(row_.weights_of(first + h, tiles[i]));
#pragma unroll
          for (int k = 0; k < 4; ++k) pairs[i][h][k] = all[stage_position(8 * part_ + 2 * k) / 2];
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float scale = scale_of(min(first + h, row_.heads - 1), stats[i][h]);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float2 pair = unpack<__half>(pairs[i][h][k]);
            sizes[i][2 * k] = fmaf(pair.x, scale, sizes[i][2 * k]);
            sizes[i][2 * k + 1] = fmaf(pair.y, scale, sizes[i][2 * k + 1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ bool keeps(float size) const {
    return size > 0 && size >= tau_;
  }

  // Leaves in cdf_ what tiles hold besides kept rows, and returns the number of kept rows. tau falls in
  // steps that keep more rows each, until as many are kept as the rows left to draw ask for.
  __device__ __forceinline__ int32_t split_off_kept(int32_t rows) {
    int32_t before = 0;
#pragma unroll 1
    for (;;) {
      double mass = 0;
      int32_t kept = 0;
#pragma unroll 1
      for (int32_t quad = kQuad * group_.warp(); quad < row_.tiles; quad += 2 * kQuad * kWarps) {
        const int32_t first = quad + group_.lane() / kTileLanes;
        const int32_t tiles[2] = {first, first + kQuad * kWarps};
        const bool hot[2] = {tiles[0] < row_.tiles && bounds_[tiles[0]] >= tau_,
                             tiles[1] < row_.tiles && bounds_[tiles[1]] >= tau_};
        if (!__any_sync(kFullWarp, hot[0] || hot[1])) continue;
        float sizes[2][8];
        sizes_of<2>(tiles, hot, sizes);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float kept_mass = 0;
          float rest = 0;
          int32_t count = 0;
#pragma unroll
          for (int k = 0; k < 8; ++k) {
            const bool keep = keeps(sizes[i][k]);
            count += keep;
            kept_mass += keep ? sizes[i][k] : 0.0f;
            rest += keep ? 0.0f : sizes[i][k];
          }
#pragma unroll
          for (int d = 1; d < kTileLanes; d *= 2) {
            rest += __shfl_xor_sync(kFullWarp, rest, d);
            count += __shfl_xor_sync(kFullWarp, count, d);
          }
          mass += static_cast<double>(kept_mass);
          if (part_ == 0 && count > 0) {  // else its mass stays what the statistics say
            kept += count;
            cdf_[tiles[i]] = static_cast<double>(rest);
            holds_kept_[tiles[i]] = 1;
          }
        }
      }
      kept = group_.sum(kept);
      if (kept == before || kept >= rows) return kept;
      before = kept;
      const double rest = total_ - group_.prefix(mass).total;
      const auto next = static_cast<float>(fmax(rest, 0.0) / (rows - kept));
      if (!(next < tau_)) return kept;
      tau_ = next;
    }
  }

  // Targets of at most a mass; those of level_target are (s + 1 - u) steps.
  __device__ __forceinline__ int32_t targets_up_to(double mass) const {
    return min(drawn_, static_cast<int32_t>(mass * steps_ + static_cast<double>(u_)));
  }

  // Which of this lane's keys are read, a bit each: kept ones, and those in whose size a target falls.
  // `start` is where the tile begins, in steps behind the last target below it, and `targets` fall into the
  // tile. A target as near to the end of a lane's keys as sums are rounded may be lost.
  __device__ __forceinline__ uint32_t rows_read(const float (&sizes)[8], float start, int32_t targets) const {
    float own = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) own += keeps(sizes[k]) ? 0.0f : sizes[k];
    float inclusive = own;
#pragma unroll
    for (int d = 1; d < kTileLanes; d *= 2) {
      const float before = __shfl_up_sync(kFullWarp, inclusive, d, kTileLanes);
      if (part_ >= d) inclusive += before;
    }
    float sum = __shfl_up_sync(kFullWarp, inclusive, 1, kTileLanes);
    if (part_ == 0) sum = 0;
    const auto steps = static_cast<float>(steps_);
    const auto reached = [&](float mass) {
      return min(targets, static_cast<int32_t>(fmaf(mass, steps, start)));
    };
    int32_t passed = reached(sum);
    uint32_t read = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (keeps(sizes[k])) {
        read |= 1u << k;
        continue;
      }
      sum = k == 7 ? inclusive : fminf(sum + sizes[k], inclusive);
      const int32_t next = reached(sum);
      if (next > passed && sizes[k] > 0) read |= 1u << k;
      passed = next;
    }
    return read;
  }

  // Turns the list's keys into rows of value_pages and finds their weights: a lane a row.
  __device__ __forceinline__ void weigh(RowList& list, int32_t count, int32_t first_head) const {
    const int lane = group_.lane();
    const bool used = lane < count;
    const auto key = static_cast<int32_t>(used ? list.rows[lane] : 0);
    // 1 / the probability that the row is read.
    const float size = used ? list.sizes[lane] : 1.0f;
    const float factor = !used ? 0.0f : keeps(size) ? 1.0f : fmaxf(1.0f, static_cast<float>(step_) / size);
    const int32_t tile = key / kScoreTile;
    const int position = stage_position(key % kScoreTile);
    if (used) list.rows[lane] = value_row_of(args_, row_, key);
#pragma unroll 1
    for (int32_t h = 0; h < min(row_.heads - first_head, RowList::kHeads); h += 4) {
      float weights[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t head = min(first_head + h + i, row_.heads - 1);
        const float w = __half2float(reinterpret_cast<const __half*>(row_.weights_of(head, tile))[position]);
        weights[i] = w * scale_of(head, row_.stats_of(head, tile)) * factor;
      }
      *reinterpret_cast<float4*>(&list.weights[lane][h]) = {weights[0], weights[1], weights[2], weights[3]};
    }
  }

  const Args& args_;
  const GroupRow& row_;
  RowGroup<kWarps>& group_;
  const int part_;       // which of a tile's lanes this is
  double* cdf_;          // [tiles]
  Head* heads_;          // [heads]
  float* bounds_;        // [tiles]
  uint8_t* holds_kept_;  // [tiles]
  int32_t begin_;        // this thread's tiles
  int32_t end_;
  double total_ = 0;
  float tau_ = 0;
  float u_ = 0;
  int32_t drawn_ = 0;
  double rest_ = 0;   // mass that is not kept
  double step_ = 0;   // of the targets
  double steps_ = 0;  // 1 / step_
};

}  // namespace allot::kernels::cuda
