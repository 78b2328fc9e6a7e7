// The sizes of a query's value rows in a group whose heads read them together
// (kernels/methods/shared/method.h): the sum of a row's probabilities in the heads, of single rows and of
// whole score tiles. Where the method says so, times the norms of its values.
#pragma once

#include "kernels/cuda/value_row.cuh"

namespace allot::kernels::cuda {

// What the heads of a group see of a query. `head`, `stats` and `weights` are those of its first head; the
// others follow.
struct GroupRow : ValueRow {
  int32_t query;  // of the pass
  int32_t heads;
  int32_t row_tiles;            // from a head to the next
  int64_t wanted;               // rows that the budget asks for
  const NormStats* norm_stats;  // as `stats`, where norms count

  __device__ __forceinline__ TileStats stats_of(int32_t head, int32_t tile) const {
    return stats[int64_t{head} * row_tiles + tile];
  }
  __device__ __forceinline__ NormStats norm_stats_of(int32_t head, int32_t tile) const {
    return norm_stats[int64_t{head} * row_tiles + tile];
  }
  __device__ __forceinline__ const uint16_t* weights_of(int32_t head, int32_t tile) const {
    return weights + (int64_t{head} * row_tiles + tile) * kScoreTile;
  }
};

// What KV head `kv_head` sees of query `q` of the pass, whose sequence may have a fault.
__device__ __forceinline__ GroupRow group_row(const Args& args, int32_t q, int32_t kv_head,
                                              FaultCode* fault) {
  GroupRow row;
  row.query = q;
  row.kv_head = kv_head;
  row.heads = args.group;
  row.head = row.kv_head * args.group;
  row.row_tiles = args.row_tiles;
  row.sequence = sequence_of(args, args.first_query + q);
  const PassSequence sequence = pass_sequence(args, row.sequence, fault);
  row.budget = budget_of(args, row.sequence);
  row.keys = sequence.visible(q - sequence.slot);
  row.tiles = score_tiles(row.keys);
  row.wanted = rows_of_group(args.p.method.unit, row.budget, row.heads);
  const int64_t index = int64_t{q} * args.p.num_q_heads + row.head;
  row.stats = args.stats + index * args.row_tiles;
  row.weights = args.weights + index * args.row_tiles * kScoreTile;
  row.norm_stats = args.norm_stats == nullptr ? nullptr : args.norm_stats + index * args.row_tiles;
  const SequenceDraws& draws = args.p.draws[row.sequence];
  const int32_t first_head = args.pools == nullptr ? row.head : 0;  // of those that choose together
  row.draws = {draws.key, draws.question, args.p.layer, static_cast<uint32_t>(args.p.first_head + first_head),
               static_cast<uint32_t>(row.keys - 1)};
  return row;
}

// Gives up the weights of all heads in `tiles` score tiles from `first` on.
template <int kWarps>
__device__ __forceinline__ void discard_weights(const Args& args, const GroupRow& row, int32_t first,
                                                int32_t tiles, const RowGroup<kWarps>& group) {
#pragma unroll 1
  for (int32_t head = 0; head < row.heads; ++head)
    discard_weights(args, row.weights_of(head, first), tiles, group);
}

// Whether the sizes of rows take in the norms of their values.
__device__ __forceinline__ bool norms_count(const Args& args) {
  return args.p.value_norms != nullptr;
}

// The probability of a weight w in tile t of a head is w * exp2(max of t - largest) * inverse_total.
struct HeadScale {
  float largest;  // score, in units of log2
  float inverse_total;
};

// Whether a row of that size is read surely; the kernel that finds tau and the one that reads must agree.
__device__ __forceinline__ bool keeps_row(float size, float tau) {
  return size > 0 && size >= tau;
}

// What is held besides kept rows, and how many those are.
struct Split {
  double rest;
  int32_t kept;
};
// The same of a lane's keys.
struct SplitOfEight {
  float rest = 0;
  int32_t kept = 0;
};
__device__ __forceinline__ SplitOfEight split_of(const float (&sizes)[8], float tau) {
  SplitOfEight split;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const bool keep = keeps_row(sizes[k], tau);
    split.kept += keep;
    split.rest += keep ? 0.0f : sizes[k];
  }
  return split;
}

class GroupSizes {
  static constexpr int kHeadsAtOnce = 4;
  // The norms of a lane's keys of a tile.
  struct EightNorms {
    float4 low = {};
    float4 high = {};
  };

 public:
  // Tiles that a warp looks into at once.
  static constexpr int kQuad = 32 / kTileLanes;

  // `scales` are those of the group's heads.
  __device__ __forceinline__ GroupSizes(const Args& args, const GroupRow& row, const HeadScale* scales,
                                        int lane)
      : args_(args), row_(row), scales_(scales), part_(lane % kTileLanes) {}

  // Largest score of a head and the sum of its weights relative to that, in every lane of the warp; all of
  // them call together. Not finite where a score is not.
  struct HeadSum {
    float largest;
    double sum;
  };
  __device__ __forceinline__ static HeadSum sum_of_head(const GroupRow& row, int32_t head, int lane) {
    constexpr int kHeld = 4;
    float largest = kLow;
    double sum = 0;
#pragma unroll 1
    for (int32_t first = lane; first < row.tiles; first += 32 * kHeld) {
      TileStats held[kHeld];
      float next = largest;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int32_t t = first + 32 * i;
        held[i] = t < row.tiles ? row.stats_of(head, t) : TileStats{-INFINITY, 0};
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
    return {all, sum};
  }
  __device__ __forceinline__ static HeadScale scale_of_head(const GroupRow& row, int32_t head, int lane) {
    const HeadSum of_head = sum_of_head(row, head, lane);
    return {of_head.largest, static_cast<float>(1 / of_head.sum)};
  }

  // By what a head's weights in a tile become probabilities.
  __device__ __forceinline__ float scale_of(int32_t head, const TileStats& stats) const {
    return tile_scale(stats, scales_[head].largest) * scales_[head].inverse_total;
  }

  struct Tile {
    float mass;   // sum of the sizes
    float bound;  // no size is larger
  };
  __device__ __forceinline__ Tile tile_of(int32_t tile) const {
    Tile sums = {0, 0};
    for_each_head([&](int32_t head, bool used) {
      const TileStats stats = row_.stats_of(head, tile);
      const float scale = used ? scale_of(head, stats) : 0.0f;
      // Weights are at most 1.
      const NormStats norms = norms_count(args_) ? row_.norm_stats_of(head, tile) : NormStats{stats.sum, 1};
      sums.mass = fmaf(norms.sum, scale, sums.mass);
      sums.bound = fmaf(norms.max, scale, sums.bound);
    });
    sums.bound *= 1.0001f;  // the sizes are rounded
    return sums;
  }

  // What four heads have of this lane's keys of some tiles, and the norms of these.
  template <int kTiles>
  struct Loaded {
    TileStats stats[kTiles][kHeadsAtOnce];
    uint32_t pairs[kTiles][kHeadsAtOnce][4];
    EightNorms norms[kTiles];
  };
  // Asks for it, of the heads from 0 on; nothing is asked for of tiles that are not wanted. The value rows of
  // the keys follow value_rows, which count where norms do.
  template <int kTiles, bool kNorms = true>
  __device__ __forceinline__ void load(const int32_t (&tiles)[kTiles], const bool (&wanted)[kTiles],
                                       const uint32_t (&value_rows)[kTiles], Loaded<kTiles>& loaded) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const bool norms = kNorms && wanted[i] && norms_count(args_) && first_key(tiles[i]) < row_.keys;
      loaded.norms[i] = norms ? norms_at(value_rows[i]) : EightNorms{};
    }
    load_heads(tiles, wanted, 0, loaded);
  }
  // Their sizes; 0 in tiles that were not wanted.
  template <int kTiles, bool kNorms = true>
  __device__ __forceinline__ void finish(const int32_t (&tiles)[kTiles], const bool (&wanted)[kTiles],
                                         Loaded<kTiles>& loaded, float (&sizes)[kTiles][8]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int k = 0; k < 8; ++k) sizes[i][k] = 0;
#pragma unroll 1
    for (int32_t first = 0;;) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h)
          add_head(loaded.pairs[i][h], scale_of(min(first + h, row_.heads - 1), loaded.stats[i][h]),
                   sizes[i]);
      }
      first += kHeadsAtOnce;
      if (first >= row_.heads) break;
      load_heads(tiles, wanted, first, loaded);
    }
    if (kNorms && norms_count(args_)) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply(sizes[i], loaded.norms[i]);
    }
  }

  // The sizes of this lane's keys of some tiles; 0 in those that are not wanted. All is asked for at once.
  // kNorms: whether norms may count.
  template <int kTiles, bool kNorms = true>
  __device__ __forceinline__ void of(const int32_t (&tiles)[kTiles], const bool (&wanted)[kTiles],
                                     float (&sizes)[kTiles][8]) const {
    uint32_t value_rows[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const bool asked = kNorms && wanted[i] && norms_count(args_) && first_key(tiles[i]) < row_.keys;
      value_rows[i] = asked ? value_row_of(args_, row_, first_key(tiles[i])) : 0;
    }
    Loaded<kTiles> loaded;
    load<kTiles, kNorms>(tiles, wanted, value_rows, loaded);
    finish<kTiles, kNorms>(tiles, wanted, loaded, sizes);
  }

  // The sizes of this lane's keys in tile `tile`, of a row of no more tiles than a warp looks into at once,
  // and the scales of the heads, to shared memory. All lanes of the warp call together.
  __device__ __forceinline__ void of_short_row(int32_t tile, HeadScale* scales, float (&sizes)[8]) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) sizes[k] = 0;
    const bool wanted = tile < row_.tiles;
    const int32_t place = wanted ? tile : 0;
#pragma unroll 1
    for (int32_t first = 0; first < row_.heads; first += kHeadsAtOnce) {
      TileStats stats[kHeadsAtOnce];
      uint32_t pairs[kHeadsAtOnce][4];
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const int32_t head = min(first + h, row_.heads - 1);
        stats[h] = row_.stats_of(head, place);
        if (!wanted) stats[h] = {-INFINITY, 0};
        load_head(head, place, pairs[h]);
      }
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        if (first + h >= row_.heads) break;
        float largest = fmaxf(kLow, stats[h].max);
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2 * kTileLanes));
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, kTileLanes));
        const float own = tile_scale(stats[h], largest);
        float sum = stats[h].sum * own;
        sum += __shfl_xor_sync(kFullWarp, sum, 2 * kTileLanes);
        sum += __shfl_xor_sync(kFullWarp, sum, kTileLanes);
        const HeadScale scale = {largest, 1 / sum};
        if (tile == 0 && part_ == 0) scales[first + h] = scale;
        add_head(pairs[h], wanted ? own * scale.inverse_total : 0.0f, sizes);
      }
    }
    // Not before: they would take registers that hold other groups of the multiprocessor.
    if (norms_count(args_) && wanted && first_key(tile) < row_.keys)
      multiply(sizes, norms_at(value_row_of(args_, row_, first_key(tile))));
  }

 private:
  static constexpr float kLow = -1e30f;  // a finite number below all scores

  // The first of this lane's keys of a tile. Eight keys lie in one page.
  __device__ __forceinline__ int32_t first_key(int32_t tile) const {
    return tile * kScoreTile + 8 * part_;
  }

  template <int kTiles>
  __device__ __forceinline__ void load_heads(const int32_t (&tiles)[kTiles], const bool (&wanted)[kTiles],
                                             int32_t first, Loaded<kTiles>& loaded) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        loaded.stats[i][h] = {-INFINITY, 0};
#pragma unroll
        for (int k = 0; k < 4; ++k) loaded.pairs[i][h][k] = 0;
        if (!wanted[i] || first + h >= row_.heads) continue;
        loaded.stats[i][h] = row_.stats_of(first + h, tiles[i]);
        load_head(first + h, tiles[i], loaded.pairs[i][h]);
      }
    }
  }
  // The weights of this lane's keys of a tile, in pairs, and what they add to the sizes.
  __device__ __forceinline__ void load_head(int32_t head, int32_t tile, uint32_t (&pairs)[4]) const {
    const auto* all = reinterpret_cast<const uint32_t*>(row_.weights_of(head, tile));
#pragma unroll
    for (int k = 0; k < 4; ++k) pairs[k] = all[stage_position(8 * part_ + 2 * k) / 2];
  }
  __device__ __forceinline__ static void add_head(const uint32_t (&pairs)[4], float scale,
                                                  float (&sizes)[8]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 pair = unpack<__half>(pairs[k]);
      sizes[2 * k] = fmaf(pair.x, scale, sizes[2 * k]);
      sizes[2 * k + 1] = fmaf(pair.y, scale, sizes[2 * k + 1]);
    }
  }

  __device__ __forceinline__ EightNorms norms_at(uint32_t value_row) const {
    const auto* both = reinterpret_cast<const float4*>(args_.p.value_norms + value_row);
    return {both[0], both[1]};
  }
  __device__ __forceinline__ static void multiply(float (&sizes)[8], const EightNorms& norms) {
    const float eight[8] = {norms.low.x,  norms.low.y,  norms.low.z,  norms.low.w,
                            norms.high.x, norms.high.y, norms.high.z, norms.high.w};
    // Behind the last key lies anything.
#pragma unroll
    for (int k = 0; k < 8; ++k) sizes[k] = sizes[k] > 0 ? sizes[k] * eight[k] : 0;
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

  const Args& args_;
  const GroupRow& row_;
  const HeadScale* scales_;
  const int part_;  // which of a tile's lanes this is
};

}  // namespace allot::kernels::cuda
