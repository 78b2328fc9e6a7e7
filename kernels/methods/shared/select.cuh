// Chooses the value rows that the heads of a group read together (kernels/methods/shared/method.h). The size
// of a row is the sum of its probabilities in the heads, so the CDF of the sizes over score tiles follows
// from the tiles' statistics. Only tiles that may hold a row of at least tau are looked into for it, and only
// those that hold a row that is read are looked into again. Eight lanes share a tile. For `pooled` another
// kernel has found tau and what the groups before hold (pool_kernel.cuh).
#pragma once

#include "kernels/cuda/group_sizes.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

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
  static constexpr int kQuad = GroupSizes::kQuad;

 public:
  // Of a query: the CDF of what is not kept, with what groups before hold of it in front, heads, bounds of
  // the tiles' sizes, which tiles hold kept rows.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles, int32_t heads) {
    return (int64_t{sizeof(double)} + int64_t{tiles} * (sizeof(double) + sizeof(float) + 1) +
            heads * int64_t{sizeof(HeadScale)} + 15) /
           16 * 16;
  }

  __device__ __forceinline__ SharedSelection(const Args& args, const GroupRow& row, RowGroup<kWarps>& group,
                                             char* shared)
      : args_(args),
        row_(row),
        group_(group),
        part_(group.lane() % kTileLanes),
        cdf_(reinterpret_cast<double*>(shared) + 1),
        scales_(reinterpret_cast<HeadScale*>(cdf_ + row.tiles)),
        bounds_(reinterpret_cast<float*>(scales_ + row.heads)),
        holds_kept_(reinterpret_cast<uint8_t*>(bounds_ + row.tiles)) {
    const bool level = args.p.method.estimator == Estimator::kLevel;
    const Pool* const pool = args.pools == nullptr ? nullptr : args.pools + row.query;
    const int32_t rows = row.wanted < row.keys ? static_cast<int32_t>(row.wanted) : row.keys;
    // The probabilities of every head add up to 1. With a row for every key, all are kept.
    tau_ = level              ? INFINITY
           : pool != nullptr  ? pool->tau
           : rows == row.keys ? 0.0f
                              : static_cast<float>(row.heads) / static_cast<float>(rows);
#pragma unroll 1
    for (int32_t head = group.warp(); head < row.heads; head += kWarps) {
      const HeadScale scale = GroupSizes::scale_of_head(row, head, group.lane());
      if (group.lane() == 0) scales_[head] = scale;
    }
    group.sync();
    const int32_t each = (row.tiles + group.kThreads - 1) / group.kThreads;
    begin_ = min(row.tiles, group.thread() * each);
    end_ = min(row.tiles, begin_ + each);
    double mass = 0;
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) {
      const GroupSizes::Tile tile = group_sizes().tile_of(t);
      mass += static_cast<double>(tile.mass);
      cdf_[t] = static_cast<double>(tile.mass);
      bounds_[t] = tile.bound;
      holds_kept_[t] = 0;
    }
    auto prefix = group.prefix(mass);
    rest_ = prefix.total;
    total_ = pool != nullptr ? pool->total : rest_;
    if (!isfinite(total_)) return;
    int32_t kept = 0;
    if (!level) {
      group.sync();
      kept = split_off_kept(rows, pool == nullptr);
      group.sync();
      double rest = 0;
#pragma unroll 1
      for (int32_t t = begin_; t < end_; ++t) rest += cdf_[t];
      prefix = group.prefix(rest);
      rest_ = prefix.total;
    }
    const double* const below =
        pool == nullptr ? nullptr
                        : args.rest_below + int64_t{row.query} * (args.p.num_kv_heads + 1) + row.kv_head;
    double sum = below == nullptr ? 0 : *below;
    if (group.thread() == 0) cdf_[-1] = sum;
    sum += prefix.before;
#pragma unroll 1
    for (int32_t t = begin_; t < end_; ++t) {
      sum += cdf_[t];
      cdf_[t] = sum;
    }
    u_ = draw_uniform(row.draws, kRowDraw);
    if (level) {
      const double per_mass = static_cast<double>(row.wanted) / row.heads;
      step_ = 1.0 / per_mass;
      drawn_ = level_draws(rest_ * per_mass, u_);
    } else if (pool != nullptr) {
      step_ = pool->step;
      drawn_ = pool->drawn;
    } else {
      drawn_ = rest_ > 0 ? rows - kept : 0;
      step_ = rest_ / max(drawn_, 1);
    }
    steps_ = 1 / step_;
    // As the next group sees it, so that each target falls into one group however sums are rounded.
    if (pool != nullptr && row.kv_head + 1 < args.p.num_kv_heads) drawn_ = targets_up_to(below[1]);
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
      const double below = valid ? cdf_[tile - 1] : 0;
      const int32_t from = valid ? targets_up_to(below) : 0;
      const int32_t targets = valid ? targets_up_to(cdf_[tile]) - from : 0;
      const bool wanted = valid && (targets > 0 || holds_kept_[tile] != 0);
      if (!__any_sync(kFullWarp, wanted)) continue;
      float sizes_of_tile[1][8];
      const GroupSizes group = group_sizes();
      group.of<1>({tile}, {wanted}, sizes_of_tile);
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
  __device__ __forceinline__ GroupSizes group_sizes() const {
    return {row_, scales_, group_.lane()};
  }
  __device__ __forceinline__ bool keeps(float size) const {
    return keeps_row(size, tau_);
  }

  // Leaves in cdf_ what tiles hold besides kept rows, and returns the number of kept rows. With `search` tau
  // falls in steps that keep more rows each, until as many are kept as the rows left to draw ask for.
  __device__ __forceinline__ int32_t split_off_kept(int32_t rows, bool search) {
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
        const GroupSizes group = group_sizes();
        group.of<2>(tiles, hot, sizes);
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
      if (!search || kept == before || kept >= rows) return kept;
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
        weights[i] = w * group_sizes().scale_of(head, row_.stats_of(head, tile)) * factor;
      }
      *reinterpret_cast<float4*>(&list.weights[lane][h]) = {weights[0], weights[1], weights[2], weights[3]};
    }
  }

  const Args& args_;
  const GroupRow& row_;
  RowGroup<kWarps>& group_;
  const int part_;       // which of a tile's lanes this is
  double* cdf_;          // [tiles]
  HeadScale* scales_;    // [heads]
  float* bounds_;        // [tiles]
  uint8_t* holds_kept_;  // [tiles]
  int32_t begin_;        // this thread's tiles
  int32_t end_;
  double total_ = 0;
  float tau_ = 0;
  float u_ = 0;
  int32_t drawn_ = 0;  // targets up to the end of the row
  double rest_ = 0;    // mass that is not kept
  double step_ = 0;    // of the targets
  double steps_ = 0;   // 1 / step_
};

}  // namespace allot::kernels::cuda
