// Chooses the value rows that the heads of a group read together where the sizes of all rows are held in
// shared memory. Every weight is read once for its size, however many steps tau takes to find, and tiles need
// no statistics of norms. A long row has parts, each with its own tiles, sums and warps; the blocks of a team
// deal them out, so that results do not depend on how many blocks there are. They tell each other sums alone:
// the heads' scales, then, for each step towards tau, what is not kept and how many rows are. Otherwise the
// steps are those of select.cuh. Not for `pooled`, whose tau comes from sizes to the same bit.
#pragma once

#include "kernels/cuda/team.cuh"
#include "kernels/methods/shared/chosen_rows.cuh"

namespace allot::kernels::cuda {

// A row's parts, as one block has them: parts rank, rank + blocks, ... in its slots 0, 1, ...
struct RowParts {
  int32_t tiles;   // of the row
  int32_t parts;   // of the row
  int32_t rank;    // this block
  int32_t blocks;  // of the team

  // Of every part; the last may have fewer.
  __device__ __forceinline__ int32_t part_tiles() const { return (tiles + parts - 1) / parts; }
  __device__ __forceinline__ int32_t slots() const { return (parts - rank + blocks - 1) / blocks; }
  // Of the block that has most: by which all lay out their shared memory, since they write to each other's.
  __device__ __forceinline__ int32_t most_slots() const { return (parts + blocks - 1) / blocks; }
  __device__ __forceinline__ int32_t part_of(int32_t slot) const { return rank + slot * blocks; }
  __device__ __forceinline__ int32_t first_tile(int32_t slot) const { return part_of(slot) * part_tiles(); }
  __device__ __forceinline__ int32_t tiles_of(int32_t slot) const {
    return max(0, min(part_tiles(), tiles - first_tile(slot)));
  }
};

template <int kWarps>
class HeldSelection : public ChosenRows {
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kQuad = GroupSizes::kQuad;
  static constexpr int kRunsOfTile = kTileLanes;  // of eight keys, whose value rows lie in a page
  static constexpr int64_t kTileBytes =
      kScoreTile * int64_t{sizeof(float)} + kRunsOfTile * int64_t{sizeof(uint32_t)};
  static constexpr int kMostParts = kWarps == 8 ? kMostRowParts : 1;
  // Of a head in a part: its largest score, and the sum of its weights relative to that.
  struct HeadSum {
    float largest;
    float sum;
  };

 public:
  struct Scratch {
    typename RowGroup<kWarps>::Scratch group;
    Split of_warps[kMostParts][kWarps];  // of the parts of this block, by their slots
    Split of_parts[2][kMostParts];       // in turn: a block can be one step ahead of another, but not two
  };
  // Of a block whose parts have up to `tiles` tiles: sizes of the rows, and where every eighth lies; sums up
  // to the end of each tile and before the first of each part; what all parts have of the heads, and the
  // scales of these.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles, int32_t heads) {
    return (tiles * kTileBytes + (int64_t{tiles} + kMostParts) * int64_t{sizeof(double)} +
            heads * (kMostParts * int64_t{sizeof(HeadSum)} + int64_t{sizeof(HeadScale)}) + 15) /
           16 * 16;
  }

  __device__ __forceinline__ HeldSelection(const Args& args, const GroupRow& row, RowGroup<kWarps>& group,
                                           const Team<kWarps>& team, const RowParts& parts, Scratch& scratch,
                                           char* shared)
      : ChosenRows(args, row, scales_in(shared, parts), group.lane()),
        group_(group),
        team_(team),
        parts_(parts),
        scratch_(scratch),
        sizes_(reinterpret_cast<float*>(shared)),
        value_rows_(
            reinterpret_cast<uint32_t*>(sizes_ + parts.most_slots() * parts.part_tiles() * kScoreTile)),
        sums_(sums_in(shared, parts)) {
    // The weights of the first tiles arrive while the scales are found.
    TwoTiles first(*this, 0, kQuad * group_.warp());
    find_scales(reinterpret_cast<HeadSum*>(scales_ + row.heads));
    hold_sizes(first);
    const Split* of_parts = nullptr;
    const Split all = find_tau(&of_parts);
    finite_ = isfinite(all.rest);
    if (!finite_) return;
#pragma unroll 1
    for (int32_t slot = 0; slot < parts_.slots(); ++slot) sum_up(slot, of_parts);
    set_targets(all.rest, all.kept);
    group_.sync();
  }

  // Adds the rows that are read in this warp's tiles of the part in `slot` to `gather` (GatherHeads), with
  // the weights of `heads` heads from first_head on. Returns how many there are.
  template <class Gather>
  __device__ __forceinline__ int32_t for_each_list(int32_t slot, int32_t /*slots*/, int32_t first_head,
                                                   int32_t heads, RowList& list, Gather& gather) const {
    int32_t all = 0;
    int32_t held = 0;
    const int32_t tiles = parts_.tiles_of(slot);
    const double* const up_to = up_to_of(slot);
#pragma unroll 1
    for (int32_t quad = kQuad * group_.warp(); quad < tiles; quad += kQuad * kWarps) {
      const int32_t tile = quad + lane_ / kTileLanes;
      const bool valid = tile < tiles;
      const double below = valid ? up_to[tile - 1] : 0;
      const int32_t from = valid ? targets_up_to(below) : 0;
      const int32_t targets = valid ? targets_up_to(up_to[tile]) - from : 0;
      float sizes[8];
      sizes_of(slot, tile, sizes);
      const uint32_t read = rows_read<kTileLanes>(
          sizes, static_cast<float>(below * steps_of_mass_ + static_cast<double>(u_) - from), targets);
      all += append_rows(list, held, parts_.first_tile(slot) + tile,
                         valid ? value_rows_[run_of(slot, tile)] : 0, sizes, read, first_head, heads, gather);
    }
    finish_list(list, held, first_head, heads, gather);
    return all;
  }

 private:
  // Where the block's parts have their sums, and behind them the scales.
  __device__ __forceinline__ static double* sums_in(char* shared, const RowParts& parts) {
    return reinterpret_cast<double*>(shared + parts.most_slots() * parts.part_tiles() * kTileBytes);
  }
  __device__ __forceinline__ static HeadScale* scales_in(char* shared, const RowParts& parts) {
    return reinterpret_cast<HeadScale*>(sums_in(shared, parts) +
                                        parts.most_slots() * (parts.part_tiles() + 1));
  }

  // Leaves the scales of the heads.
  __device__ __forceinline__ void find_scales(HeadSum* sums) {
    const int32_t heads = row_.heads;
    const int32_t slots = parts_.slots();
#pragma unroll 1
    for (int32_t unit = group_.warp(); unit < heads * slots; unit += kWarps) {
      const int32_t slot = unit / heads;
      const int32_t head = unit - slot * heads;
      GroupRow part = row_;
      part.tiles = parts_.tiles_of(slot);
      part.stats += parts_.first_tile(slot);
      const auto of_part = GroupSizes::sum_of_head(part, head, lane_);
      const HeadSum sum = {of_part.largest, static_cast<float>(of_part.sum)};
      if (lane_ < team_.size()) *team_.there(sums + parts_.part_of(slot) * heads + head, lane_) = sum;
    }
    team_.sync();
#pragma unroll 1
    for (int32_t head = group_.thread(); head < heads; head += kThreads) {
      HeadSum of_parts[kMostParts];
      float largest = -INFINITY;
#pragma unroll
      for (int p = 0; p < kMostParts; ++p) {
        of_parts[p] = p < parts_.parts ? sums[p * heads + head] : HeadSum{-INFINITY, 0};
        largest = fmaxf(largest, of_parts[p].largest);
      }
      float sum = 0;
#pragma unroll
      for (int p = 0; p < kMostParts; ++p)
        sum = fmaf(of_parts[p].sum, fast_exp2(of_parts[p].largest - largest), sum);
      scales_[head] = {largest, 1 / sum};
    }
    group_.sync();
  }

  // What a lane needs for its sizes of two tiles of a part, asked for at once.
  struct TwoTiles {
    __device__ __forceinline__ TwoTiles(const HeldSelection& of, int32_t slot, int32_t quad) {
      const int32_t count = of.parts_.tiles_of(slot);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        in_part[i] = quad + i * kQuad * kWarps + of.lane_ / kTileLanes;
        valid[i] = in_part[i] < count;
        in_row[i] = of.parts_.first_tile(slot) + in_part[i];
        value_rows[i] = valid[i] ? of.first_value_row(in_row[i]) : 0;
      }
      of.group_sizes().template load<2>(in_row, valid, value_rows, loaded);
    }

    int32_t in_part[2];
    int32_t in_row[2];
    bool valid[2];
    uint32_t value_rows[2];
    typename GroupSizes::template Loaded<2> loaded;
  };

  __device__ __forceinline__ void hold_sizes(TwoTiles& first) {
    hold(0, first);
    constexpr int kStep = 2 * kQuad * kWarps;
#pragma unroll 1
    for (int32_t slot = 0; slot < parts_.slots(); ++slot) {
      const int32_t count = parts_.tiles_of(slot);
#pragma unroll 1
      for (int32_t quad = kQuad * group_.warp() + (slot == 0 ? kStep : 0); quad < count; quad += kStep) {
        TwoTiles tiles(*this, slot, quad);
        hold(slot, tiles);
      }
    }
    // No sync: the lanes that read them are those that wrote them.
  }
  __device__ __forceinline__ void hold(int32_t slot, TwoTiles& tiles) {
    float sizes[2][8];
    group_sizes().template finish<2>(tiles.in_row, tiles.valid, tiles.loaded, sizes);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (!tiles.valid[i]) continue;
      auto* const both = reinterpret_cast<float4*>(sizes_ + 8 * run_of(slot, tiles.in_part[i]));
      both[0] = {sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3]};
      both[1] = {sizes[i][4], sizes[i][5], sizes[i][6], sizes[i][7]};
      value_rows_[run_of(slot, tiles.in_part[i])] = tiles.value_rows[i];
    }
  }

  // This lane's keys of a tile of a part; 0 behind its last tile.
  __device__ __forceinline__ void sizes_of(int32_t slot, int32_t tile, float (&sizes)[8]) const {
    float4 both[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (tile < parts_.tiles_of(slot)) {
      const auto* const held = reinterpret_cast<const float4*>(sizes_ + 8 * run_of(slot, tile));
      both[0] = held[0];
      both[1] = held[1];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sizes[4 * i] = both[i].x;
      sizes[4 * i + 1] = both[i].y;
      sizes[4 * i + 2] = both[i].z;
      sizes[4 * i + 3] = both[i].w;
    }
  }
  // Which eight keys of the block this lane has of a tile.
  __device__ __forceinline__ int32_t run_of(int32_t slot, int32_t tile) const {
    return (slot * parts_.part_tiles() + tile) * kRunsOfTile + part_;
  }
  // Sums up to the end of a part's tiles; the one before is where it begins.
  __device__ __forceinline__ double* up_to_of(int32_t slot) const {
    return sums_ + slot * (parts_.part_tiles() + 1) + 1;
  }

  // Finds tau, and returns what all parts hold besides kept rows with the number of these; `of_parts` is then
  // what each does. tau falls in steps that keep more rows each, until as many are kept as the rows left to
  // draw ask for.
  __device__ __forceinline__ Split find_tau(const Split** of_parts) {
    // The first step of sizes whose sum is not known is to add them up.
    const bool sum_known = level_ || rows_ == row_.keys || !norms_count(args_);
    tau_ = sum_known ? first_tau(0) : INFINITY;
    int32_t before = sum_known ? 0 : -1;
    int turn = 0;
#pragma unroll 1
    for (;;) {
      const Split all = split_at_tau(scratch_.of_parts[turn]);
      *of_parts = scratch_.of_parts[turn];
      turn ^= 1;
      if (level_ || all.kept == before || all.kept >= rows_) return all;
      before = all.kept;
      const auto next = static_cast<float>(all.rest / (rows_ - all.kept));
      if (!(next < tau_)) return all;
      tau_ = next;
    }
  }

  // Leaves what the tiles of this block hold besides rows that tau keeps, and what all parts do.
  __device__ __forceinline__ Split split_at_tau(Split* of_parts) {
#pragma unroll 1
    for (int32_t slot = 0; slot < parts_.slots(); ++slot) {
      const int32_t tiles = parts_.tiles_of(slot);
      Split own = {0, 0};
#pragma unroll 1
      for (int32_t quad = kQuad * group_.warp(); quad < tiles; quad += kQuad * kWarps) {
        const int32_t tile = quad + lane_ / kTileLanes;
        float sizes[8];
        sizes_of(slot, tile, sizes);
        SplitOfEight of_tile = split_of(sizes, tau_);
#pragma unroll
        for (int d = 1; d < kTileLanes; d *= 2) {
          of_tile.rest += __shfl_xor_sync(kFullWarp, of_tile.rest, d);
          of_tile.kept += __shfl_xor_sync(kFullWarp, of_tile.kept, d);
        }
        if (part_ == 0 && tile < tiles) up_to_of(slot)[tile] = static_cast<double>(of_tile.rest);
        own.rest += static_cast<double>(of_tile.rest);
        own.kept += of_tile.kept;
      }
#pragma unroll
      for (int d = kTileLanes; d < 32; d *= 2) {
        own.rest += __shfl_xor_sync(kFullWarp, own.rest, d);
        own.kept += __shfl_xor_sync(kFullWarp, own.kept, d);
      }
      if (lane_ == 0) scratch_.of_warps[slot][group_.warp()] = own;
    }
    group_.sync();
    team_.tell_all(parts_.slots(), [&](int32_t slot, int32_t block) {
      Split of_part = {0, 0};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        of_part.rest += scratch_.of_warps[slot][w].rest;
        of_part.kept += scratch_.of_warps[slot][w].kept;
      }
      *team_.there(of_parts + parts_.part_of(slot), block) = of_part;
    });
    team_.sync();
    Split all = {0, 0};
#pragma unroll
    for (int p = 0; p < kMostParts; ++p) {
      if (p >= parts_.parts) continue;
      all.rest += of_parts[p].rest;
      all.kept += of_parts[p].kept;
    }
    return all;
  }

  // Turns what each tile of a part holds besides kept rows into what lies up to its end. The last ends where
  // the next part begins, so that each target falls into one part however sums are rounded.
  __device__ __forceinline__ void sum_up(int32_t slot, const Split* of_parts) {
    const int32_t part = parts_.part_of(slot);
    const int32_t tiles = parts_.tiles_of(slot);
    double* const up_to = up_to_of(slot);
    double below = 0;
#pragma unroll 1
    for (int32_t p = 0; p < part; ++p) below += of_parts[p].rest;
    const double last = below + of_parts[part].rest;
    const int32_t each = (tiles + kThreads - 1) / kThreads;
    const int32_t begin = min(tiles, group_.thread() * each);
    const int32_t end = min(tiles, begin + each);
    double mass = 0;
#pragma unroll 1
    for (int32_t t = begin; t < end; ++t) mass += up_to[t];
    double sum = below + group_.prefix(mass).before;
    if (group_.thread() == 0) up_to[-1] = below;
#pragma unroll 1
    for (int32_t t = begin; t < end; ++t) {
      sum += up_to[t];
      up_to[t] = t == tiles - 1 ? last : fmin(sum, last);
    }
  }

  RowGroup<kWarps>& group_;
  const Team<kWarps>& team_;
  const RowParts parts_;
  Scratch& scratch_;
  float* const sizes_;          // [slots, part_tiles, kScoreTile]
  uint32_t* const value_rows_;  // [slots, part_tiles, kRunsOfTile]
  double* const sums_;          // [slots, 1 + part_tiles]
};

}  // namespace allot::kernels::cuda
