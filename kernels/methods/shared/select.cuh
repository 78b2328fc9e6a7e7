// Chooses the value rows that the heads of a group read together (kernels/methods/shared/method.h), from rows
// of any length. The size of a row is the sum of its probabilities in the heads, so the CDF of the sizes over
// score tiles follows from the tiles' statistics; where the norms of the values count, the score kernel
// leaves statistics of these, too (tile_norms.cuh). Only tiles that may hold a row of at least tau are looked
// into for it, and only those that hold a row that is read are looked into again. Eight lanes share a tile.
// For `pooled` another kernel has found tau and what the groups before hold (pool_kernel.cuh).
#pragma once

#include "kernels/methods/shared/chosen_rows.cuh"

namespace allot::kernels::cuda {

template <int kWarps>
class SharedSelection : public ChosenRows {
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
      : ChosenRows(args, row, reinterpret_cast<HeadScale*>(reinterpret_cast<double*>(shared) + 1 + row.tiles),
                   group.lane()),
        group_(group),
        pool_(args.pools == nullptr ? nullptr : args.pools + row.query),
        cdf_(reinterpret_cast<double*>(shared) + 1),
        bounds_(reinterpret_cast<float*>(scales_ + row.heads)),
        holds_kept_(reinterpret_cast<uint8_t*>(bounds_ + row.tiles)) {
#pragma unroll 1
    for (int32_t head = group.warp(); head < row.heads; head += kWarps) {
      const HeadScale scale = GroupSizes::scale_of_head(row, head, lane_);
      if (lane_ == 0) scales_[head] = scale;
    }
    group.sync();
    const int32_t each = (row.tiles + group.kThreads - 1) / group.kThreads;
    const int32_t begin = min(row.tiles, group.thread() * each);  // this thread's tiles
    const int32_t end = min(row.tiles, begin + each);
    double mass = 0;
#pragma unroll 1
    for (int32_t t = begin; t < end; ++t) {
      const GroupSizes::Tile tile = group_sizes().tile_of(t);
      mass += static_cast<double>(tile.mass);
      cdf_[t] = static_cast<double>(tile.mass);
      bounds_[t] = tile.bound;
      holds_kept_[t] = 0;
    }
    auto prefix = group.prefix(mass);
    total_ = pool_ != nullptr ? pool_->total : prefix.total;
    finite_ = isfinite(total_);
    if (!finite_) return;
    tau_ = pool_ != nullptr ? pool_->tau : first_tau(static_cast<float>(total_));
    int32_t kept = 0;
    if (!level_) {
      group.sync();
      kept = split_off_kept();
      group.sync();
      double rest = 0;
#pragma unroll 1
      for (int32_t t = begin; t < end; ++t) rest += cdf_[t];
      prefix = group.prefix(rest);
    }
    double sum = pool_ == nullptr ? 0 : rest_below()[0];
    if (group.thread() == 0) cdf_[-1] = sum;
    sum += prefix.before;
#pragma unroll 1
    for (int32_t t = begin; t < end; ++t) {
      sum += cdf_[t];
      cdf_[t] = sum;
    }
    place_targets(prefix.total, kept);
    group.sync();
  }

  // Adds the rows that are read in this warp's tiles of the part to `gather` (GatherHeads), with the weights
  // of `heads` heads from first_head on. Returns how many there are.
  template <class Gather>
  __device__ __forceinline__ int32_t for_each_list(int32_t part, int32_t parts, int32_t first_head,
                                                   int32_t heads, RowList& list, Gather& gather) const {
    int32_t all = 0;
    int32_t held = 0;
#pragma unroll 1
    for (int32_t quad = kQuad * (part * kWarps + group_.warp()); quad < row_.tiles;
         quad += kQuad * kWarps * parts) {
      const int32_t tile = quad + lane_ / kTileLanes;
      const bool valid = tile < row_.tiles;
      const double below = valid ? cdf_[tile - 1] : 0;
      const int32_t from = valid ? targets_up_to(below) : 0;
      const int32_t targets = valid ? targets_up_to(cdf_[tile]) - from : 0;
      const bool wanted = valid && (targets > 0 || holds_kept_[tile] != 0);
      if (!__any_sync(kFullWarp, wanted)) continue;
      const uint32_t value_row = wanted ? first_value_row(tile) : 0;
      float sizes_of_tile[1][8];
      const GroupSizes group = group_sizes();
      GroupSizes::Loaded<1> loaded;
      group.load<1>({tile}, {wanted}, {value_row}, loaded);
      group.finish<1>({tile}, {wanted}, loaded, sizes_of_tile);
      const float(&sizes)[8] = sizes_of_tile[0];
      const uint32_t read = rows_read<kTileLanes>(
          sizes, static_cast<float>(below * steps_of_mass_ + static_cast<double>(u_) - from), targets);
      all += append_rows(list, held, tile, value_row, sizes, read, first_head, heads, gather);
    }
    finish_list(list, held, first_head, heads, gather);
    return all;
  }

 private:
  // What groups before hold besides kept rows, and what they hold with this one.
  __device__ __forceinline__ const double* rest_below() const {
    return args_.rest_below + int64_t{row_.query} * (args_.p.num_kv_heads + 1) + row_.kv_head;
  }

  // As set_targets; `pooled` has found them for all groups.
  __device__ __forceinline__ void place_targets(double rest, int32_t kept) {
    if (pool_ == nullptr) return set_targets(rest, kept);
    drawn_ = pool_->drawn;
    set_step(pool_->step);
    // As the next group sees it, so that each target falls into one group however sums are rounded.
    if (row_.kv_head + 1 < args_.p.num_kv_heads) drawn_ = targets_up_to(rest_below()[1]);
  }

  // Leaves in cdf_ what tiles hold besides kept rows, and returns the number of kept rows. Where tau is
  // searched it falls in steps that keep more rows each, until as many are kept as the rows left to draw ask
  // for.
  __device__ __forceinline__ int32_t split_off_kept() {
    int32_t before = 0;
#pragma unroll 1
    for (;;) {
      double mass = 0;
      int32_t kept = 0;
#pragma unroll 1
      for (int32_t quad = kQuad * group_.warp(); quad < row_.tiles; quad += 2 * kQuad * kWarps) {
        const int32_t first = quad + lane_ / kTileLanes;
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
      if (level_ || pool_ != nullptr || kept == before || kept >= rows_) return kept;
      before = kept;
      const double rest = total_ - group_.prefix(mass).total;
      const auto next = static_cast<float>(fmax(rest, 0.0) / (rows_ - kept));
      if (!(next < tau_)) return kept;
      tau_ = next;
    }
  }

  RowGroup<kWarps>& group_;
  const Pool* const pool_;     // null where groups do not share out their rows
  double* const cdf_;          // [tiles]
  float* const bounds_;        // [tiles]
  uint8_t* const holds_kept_;  // [tiles]
  double total_ = 0;           // of the sizes
};

}  // namespace allot::kernels::cuda
