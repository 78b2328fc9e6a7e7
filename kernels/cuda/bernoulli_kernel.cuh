// Score kernel of the Bernoulli stages (S2ANTA paper, Appendix C): estimates the queries of a head group and
// multiplies only the key features that some head drew. It leaves the same data in the workspace as
// score_kernel.cuh, so that the same value kernels can follow.
//
// A block first forms the estimates of its queries in shared memory, then its warps share the score tiles.
// Estimates go into the product as the sum of two elements of the keys' type, which keeps 16 bits of them in
// bfloat16 and 22 in float16: one alone would round scores more than the sampled softmax allows.
//
// Keys lie row by row, and memory is read in sectors of 32 bytes. Therefore not a single feature can be left
// out but only a sector of 16 features that no head of the group drew, which pays only where few features are
// drawn. With a fraction f of the features drawn at random a sector is read with probability 1 - (1 - f)^16:
// 56 % at f = 5 %, 94 % at 16 %, 99 % at the 25.6 % that Table 7 has for a head and B = 1. The paper's
// savings need keys that are stored feature by feature.
#pragma once

#include <cstdint>

#include "kernels/bernoulli_query.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/batch_index.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/tile_norms.cuh"
#include "kernels/cuda/tile_weights.cuh"

namespace allot::kernels::cuda {

// Features of a key that memory reads at once.
inline constexpr int32_t kSectorFeatures = 16;
// A head group's estimate is at most 16 heads times the largest element, which must fit in float16.
inline constexpr float kEstimateScale = 1.0f / 16;

// A block's share of work: consecutive score tiles of one sequence, KV head and block of queries.
struct BernoulliSegment {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_query;  // of the pass
  int32_t queries;
  int32_t first_tile;
  int32_t last_tile;  // exclusive
};

// 8 bytes of a key. No other lane reads them, so they need not stay in L1.
__device__ __forceinline__ uint2 load_key_features(const char* global) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(global));
  return v;
}

// The estimated queries of a block's segment in shared memory, as the product needs them: for each sector and
// column tile the four features of every lane, as two pairs of high parts and two of low parts. Column c
// stands for head c % group of query c / group.
template <class T, int kColumnTiles>
class BernoulliQueries {
 public:
  static constexpr int kColumns = 8 * kColumnTiles;

  // Dynamic shared bytes, a multiple of 16.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t head_dim) {
    const int64_t fragments = int64_t{head_dim} / kSectorFeatures * kColumnTiles * 32 * sizeof(uint4);
    return fragments + int64_t{kColumns} * head_dim * sizeof(BernoulliElement) + 16;
  }

  __device__ __forceinline__ BernoulliQueries(const Args& args, char* shared)
      : args_(args),
        head_dim_(args.p.head_dim),
        query_heads_(args.p.method.mean_group_query ? args.group : 1),
        fragments_(reinterpret_cast<uint4*>(shared)),
        elements_(reinterpret_cast<BernoulliElement*>(fragments_ +
                                                      head_dim_ / kSectorFeatures * kColumnTiles * 32)),
        drawn_(reinterpret_cast<uint32_t*>(elements_ + kColumns * head_dim_)),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)) {}

  // All threads of the block must call it, after all have read what the last call left.
  __device__ __forceinline__ void estimate(const BernoulliSegment& segment, const PassSequence& sequence) {
    if (thread_ == 0) *drawn_ = 0;
    form_elements(segment, sequence);
    __syncthreads();
    if (args_.p.method.score_stage == ScoreStage::kBernoulli) {
      count_successes(segment, sequence);
      __syncthreads();
    }
    write_fragments(segment, sequence);
    __syncthreads();
  }

  // One bit a sector with a drawn feature.
  __device__ __forceinline__ uint32_t drawn() const { return *drawn_; }

  __device__ __forceinline__ uint4 fragment(int sector, int column_tile) const {
    return fragments_[(sector * kColumnTiles + column_tile) * 32 + thread_ % 32];
  }

 private:
  // Bernoulli queries of the segment: one a column, or one a query where heads share their mean.
  __device__ __forceinline__ int count(const BernoulliSegment& segment) const {
    return segment.queries * args_.group / query_heads_;
  }

  __device__ __forceinline__ const T* source(const BernoulliSegment& segment, const PassSequence& sequence,
                                             int column) const {
    const int query = column / args_.group;
    const int head = segment.kv_head * args_.group + column - query * args_.group;
    const int64_t token = int64_t{args_.first_query} + sequence.slot + segment.first_query + query;
    return static_cast<const T*>(args_.p.query) + token * args_.p.query_stride + int64_t{head} * head_dim_;
  }

  // Draws of Bernoulli query `r`, under the number of its first head.
  __device__ __forceinline__ BernoulliDraws draws(const BernoulliSegment& segment,
                                                  const PassSequence& sequence, int r) const {
    const int column = r * query_heads_;
    const int query = column / args_.group;
    const int head = segment.kv_head * args_.group + column - query * args_.group;
    const SequenceDraws& draws = args_.p.draws[segment.sequence];
    const int32_t position = sequence.visible(segment.first_query + query) - 1;
    return {.row = {draws.key, draws.question, args_.p.layer,
                    static_cast<uint32_t>(args_.p.first_head + head), static_cast<uint32_t>(position)},
            .head_dim = head_dim_,
            .budget = args_.p.method.score_budget};
  }

  // One warp a Bernoulli query: magnitudes (equation 10 for a head group), their maximum, probabilities.
  __device__ __forceinline__ void form_elements(const BernoulliSegment& segment,
                                                const PassSequence& sequence) {
    constexpr int kEach = 256 / 32;  // elements of a lane at the largest head_dim
    const int lane = thread_ % 32;
#pragma unroll 1
    for (int r = thread_ / 32; r < count(segment); r += threads_ / 32) {
      const T* const query = source(segment, sequence, r * query_heads_);
      double magnitude[kEach];
      double norm = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int i = 32 * k + lane;
        magnitude[k] = 0;
        if (i < head_dim_) {
#pragma unroll 1
          for (int h = 0; h < query_heads_; ++h) {
            const float q = static_cast<float>(query[h * head_dim_ + i]);
            magnitude[k] += static_cast<double>(fabsf(q)) / query_heads_;
          }
        }
        norm = fmax(norm, magnitude[k]);
      }
#pragma unroll
      for (int d = 1; d < 32; d *= 2) norm = fmax(norm, __shfl_xor_sync(kFullWarp, norm, d));
      const BernoulliDraws row_draws = draws(segment, sequence, r);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int i = 32 * k + lane;
        if (i < head_dim_) {
          BernoulliElement element = bernoulli_element(magnitude[k], norm, args_.p.method.score_budget);
          if (args_.p.method.score_stage == ScoreStage::kBernoulliStrat && element.threshold > 0) {
            element.successes = row_draws.stratified(i, magnitude[k] / norm);
          }
          elements_[r * head_dim_ + i] = element;
        }
      }
    }
  }

  // Independent samples, up to 262144 for every element: four elements and every `slices`-th sample a thread.
  __device__ __forceinline__ void count_successes(const BernoulliSegment& segment,
                                                  const PassSequence& sequence) {
    const int quads = head_dim_ / 4;
    const int runs = count(segment) * quads;
    const int32_t budget = args_.p.method.score_budget;
    const int slices = max(1, min(budget, threads_ / runs));
#pragma unroll 1
    for (int item = thread_; item < runs * slices; item += threads_) {
      const int slice = item / runs;
      const int run = item - slice * runs;
      const int r = run / quads;
      const int i = 4 * (run - r * quads);
      BernoulliElement* const element = elements_ + r * head_dim_ + i;
      const uint32_t threshold[4] = {element[0].threshold, element[1].threshold, element[2].threshold,
                                     element[3].threshold};
      const BernoulliDraws row_draws = draws(segment, sequence, r);
      int32_t successes[4] = {};
#pragma unroll 1
      for (int32_t b = slice; b < budget; b += slices) row_draws.count(b, i, threshold, successes);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (successes[k] > 0) atomicAdd(&element[k].successes, successes[k]);
      }
    }
  }

  // One warp a sector and column tile.
  __device__ __forceinline__ void write_fragments(const BernoulliSegment& segment,
                                                  const PassSequence& sequence) {
    const int lane = thread_ % 32;
    const int fragments = head_dim_ / kSectorFeatures * kColumnTiles;
#pragma unroll 1
    for (int f = thread_ / 32; f < fragments; f += threads_ / 32) {
      const int sector = f / kColumnTiles;
      const int column = 8 * (f % kColumnTiles) + lane / 4;
      const int i = kSectorFeatures * sector + lane % 4 * 4;
      float estimate[4] = {};
      if (column < segment.queries * args_.group) {
        const uint2 words = *reinterpret_cast<const uint2*>(source(segment, sequence, column) + i);
        const float2 low = unpack<T>(words.x);
        const float2 high = unpack<T>(words.y);
        const float query[4] = {low.x, low.y, high.x, high.y};
        const BernoulliElement* const element = elements_ + column / query_heads_ * head_dim_ + i;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          estimate[k] = kEstimateScale * bernoulli_estimate(query[k], element[k]);
        }
      }
      const uint2 high = {pack<T>(estimate[0], estimate[1]), pack<T>(estimate[2], estimate[3])};
      const float2 first = unpack<T>(high.x);
      const float2 second = unpack<T>(high.y);
      fragments_[f * 32 + lane] = {high.x, high.y, pack<T>(estimate[0] - first.x, estimate[1] - first.y),
                                   pack<T>(estimate[2] - second.x, estimate[3] - second.y)};
      const bool nonzero = estimate[0] != 0 || estimate[1] != 0 || estimate[2] != 0 || estimate[3] != 0;
      if (__any_sync(kFullWarp, nonzero) && lane == 0) atomicOr(drawn_, 1u << sector);
    }
  }

  const Args& args_;
  const int32_t head_dim_;
  const int query_heads_;  // that share a Bernoulli query
  uint4* const fragments_;
  BernoulliElement* const elements_;
  uint32_t* const drawn_;
  const int thread_;
  const int threads_;
};

template <class T, int kColumnTiles>
class BernoulliScorer {
 public:
  using Queries = BernoulliQueries<T, kColumnTiles>;

  __device__ __forceinline__ BernoulliScorer(const Args& args, char* shared)
      : args_(args),
        queries_(args, shared),
        key_bytes_(args.p.head_dim * 2),
        warp_(static_cast<int>(threadIdx.x) / 32),
        warps_(static_cast<int>(blockDim.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(lane_ / 4),
        quad_(lane_ % 4) {}

  // All threads of the block must call it.
  __device__ __forceinline__ void run(const BernoulliSegment& segment, const PassSequence& sequence) {
    const int32_t last_visible = sequence.visible(segment.first_query + segment.queries - 1);
    bool page_fault = false;
    // Lanes below 4 hold the first row of each stage of the tile, one tile ahead, because a page must be
    // looked up before its keys can be read.
    uint32_t next_rows = stage_row(segment, segment.first_tile + warp_, last_visible, &page_fault);
    queries_.estimate(segment, sequence);
#pragma unroll 1
    for (int32_t tile = segment.first_tile + warp_; tile < segment.last_tile; tile += warps_) {
      const uint32_t rows = next_rows;
      next_rows = stage_row(segment, tile + warps_, last_visible, &page_fault);
      const int32_t keys = last_visible - tile * kScoreTile;
      TileScores<kColumnTiles> scores;
      score_tile(rows, (keys + kStageKeys - 1) / kStageKeys, scores);
      finish(segment, sequence, tile, scores);
    }
    // A page outside the pool: its keys are unknown, so every row of the segment becomes NaN, once all
    // warps have written.
    if (__syncthreads_or(page_fault)) poison(segment, sequence);
  }

 private:
  static constexpr int kTileStages = kScoreTile / kStageKeys;

  // First row (of head_dim elements, counted from key_pages) of stage lane_ of a tile; 0 where the tile has
  // no such stage or no query sees it.
  __device__ __forceinline__ uint32_t stage_row(const BernoulliSegment& segment, int32_t tile,
                                                int32_t last_visible, bool* page_fault) {
    const int32_t key = tile * kScoreTile + lane_ * kStageKeys;
    if (lane_ >= kTileStages || tile >= segment.last_tile || key >= last_visible) return 0;
    return key_row(args_, segment.sequence, segment.kv_head, key, page_fault);
  }

  // Products of a tile's first `stages` stages with all columns, sectors that nobody drew left out. This lane
  // reads keys row_ and row_ + 8 of a stage, which are columns of two products.
  __device__ __forceinline__ void score_tile(uint32_t rows, int32_t stages,
                                             TileScores<kColumnTiles>& scores) {
    constexpr int kSectors = kColumnTiles == 1 ? 4 : 2;  // in flight together, as registers allow
    const char* keys[kTileStages];
#pragma unroll
    for (int i = 0; i < kTileStages; ++i) {
      const uint32_t row = __shfl_sync(kFullWarp, rows, i) + row_;
      keys[i] = static_cast<const char*>(args_.p.key_pages) + int64_t{row} * key_bytes_ + quad_ * 8;
    }
    float sums[kTileEights][4] = {};
    uint32_t drawn = queries_.drawn();
#pragma unroll 1
    while (drawn != 0) {
      int sector[kSectors];  // -1 where no more are drawn
      uint2 features[kSectors][kTileEights];
#pragma unroll
      for (int u = 0; u < kSectors; ++u) {
        sector[u] = __ffs(static_cast<int>(drawn)) - 1;
        drawn &= drawn - 1;
#pragma unroll
        for (int n = 0; n < kTileEights; ++n) {
          features[u][n] = {0, 0};
          if (sector[u] >= 0 && n / 2 < stages) {
            features[u][n] =
                load_key_features(keys[n / 2] + n % 2 * 8 * key_bytes_ + sector[u] * (kSectorFeatures * 2));
          }
        }
      }
#pragma unroll
      for (int u = 0; u < kSectors; ++u) {
        if (sector[u] < 0) break;
        if constexpr (kColumnTiles == 1) {
          // The lower rows of the product take the high parts of the estimates, the upper ones the low parts.
          const uint4 query = queries_.fragment(sector[u], 0);
          const uint4 parts = {query.x, query.z, query.y, query.w};
#pragma unroll
          for (int n = 0; n < kTileEights; ++n) {
            multiply_accumulate<T>(sums[n], parts, features[u][n].x, features[u][n].y);
          }
        } else {
          static_assert(kColumnTiles == 2);
          const uint4 lower = queries_.fragment(sector[u], 0);
          const uint4 upper = queries_.fragment(sector[u], 1);
          const uint4 high = {lower.x, upper.x, lower.y, upper.y};
          const uint4 low = {lower.z, upper.z, lower.w, upper.w};
#pragma unroll
          for (int n = 0; n < kTileEights; ++n) {
            multiply_accumulate<T>(sums[n], high, features[u][n].x, features[u][n].y);
            multiply_accumulate<T>(sums[n], low, features[u][n].x, features[u][n].y);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTileEights; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if constexpr (kColumnTiles == 1) {
          scores[0][n][e] = sums[n][e] + sums[n][2 + e];
        } else {
          scores[0][n][e] = sums[n][e];
          scores[1][n][e] = sums[n][2 + e];
        }
      }
    }
  }

  __device__ __forceinline__ int64_t row_tile(const BernoulliSegment& segment, const PassSequence& sequence,
                                              int column, int32_t tile) const {
    const int query = column / args_.group;
    const int head = segment.kv_head * args_.group + column - query * args_.group;
    const int32_t slot = sequence.slot + segment.first_query + query;
    return (int64_t{slot} * args_.p.num_q_heads + head) * args_.row_tiles + tile;
  }

  __device__ __forceinline__ void finish(const BernoulliSegment& segment, const PassSequence& sequence,
                                         int32_t tile, TileScores<kColumnTiles>& scores) {
    TileNorms norms;
    if (args_.norm_stats != nullptr) {
      const uint32_t places = norm_place(args_, segment.sequence, segment.kv_head,
                                         tile * kScoreTile + lane_ % kTileEights * 8, sequence.length);
      norms.load(args_.p.value_norms, places, 0, tile, sequence.length, lane_);
    }
    finish_tile<kColumnTiles>(
        scores, lane_, args_.p.scale * (kLog2E / kEstimateScale),
        [&](int column) {
          return sequence.visible(segment.first_query + column / args_.group) - tile * kScoreTile;
        },
        [&](int column, const uint4(&weights)[2], const TileStats& stats) {
          if (column / args_.group >= segment.queries) return;
          const int64_t index = row_tile(segment, sequence, column, tile);
          auto* const target = reinterpret_cast<uint4*>(args_.weights + index * kScoreTile);
          target[quad_] = weights[0];
          target[4 + quad_] = weights[1];
          if (quad_ == 0) args_.stats[index] = stats;
          if (args_.norm_stats == nullptr) return;
          const NormStats norm_stats = norms.stats_of(weights, lane_);
          if (quad_ == 0) args_.norm_stats[index] = norm_stats;
        });
  }

  __device__ __forceinline__ void poison(const BernoulliSegment& segment, const PassSequence& sequence) {
    for (auto column = static_cast<int>(threadIdx.x); column < segment.queries * args_.group;
         column += static_cast<int>(blockDim.x)) {
      args_.stats[row_tile(segment, sequence, column, segment.first_tile)] = {NAN, NAN};
    }
  }

  const Args& args_;
  Queries queries_;
  const int key_bytes_;
  const int warp_;
  const int warps_;
  const int lane_;
  const int row_;   // of the product's fragments, and column
  const int quad_;  // lane in the group of four that shares them
};

// Grid: two blocks a multiprocessor, each on its own. Decode (one query a sequence) gives every block an
// equal run of the batch's score tiles, across sequences and KV heads; prefill deals whole blocks of queries.
template <class T, int kColumnTiles>
__global__ void __launch_bounds__(256, 2) bernoulli_kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) char shared[];
  // In this order: the value kernel, which may start then, reads lengths, budgets and draws without waiting,
  // and the predecessor may have written them.
  wait_for_predecessor();
  let_dependents_start();
  const auto batch = static_cast<int32_t>(args.p.batch);
  const int64_t query_bytes = BernoulliQueries<T, kColumnTiles>::shared_bytes(args.p.head_dim);
  auto* const item_start = reinterpret_cast<int32_t*>(shared + query_bytes);
  int32_t* const scratch = item_start + batch + 1;

  // Items: score tiles in decode, blocks of queries in prefill, of one KV head.
  const bool decode = args.one_query_each;
  const int32_t block_queries = 8 * kColumnTiles / args.group;
  block_prefix_sum(batch, item_start, scratch, [&](int32_t b) {
    FaultCode fault;
    const PassSequence s = scored_sequence(args, b, &fault);
    if (blockIdx.x == 0) report_fault(args, fault, b, s);
    if (decode) return s.count * score_tiles(s.length);
    return (s.count + block_queries - 1) / block_queries;
  });

  BernoulliScorer<T, kColumnTiles> scorer(args, shared);
  const int32_t kv_heads = args.p.num_kv_heads;
  const int32_t items = item_start[batch] * kv_heads;
  const auto workers = static_cast<int32_t>(gridDim.x);
  const auto worker = static_cast<int32_t>(blockIdx.x);
  const int32_t each = items / workers;
  const int32_t more = items - each * workers;
  int32_t item = decode ? worker * each + min(worker, more) : worker;
  const int32_t end = decode ? item + each + (worker < more ? 1 : 0) : items;
#pragma unroll 1
  while (item < end) {
    const int32_t unit = item / kv_heads;
    const int32_t b = last_at_or_below(item_start, batch, unit);
    FaultCode ignored;
    const PassSequence sequence = pass_sequence(args, b, &ignored);
    BernoulliSegment segment;
    segment.sequence = b;
    if (decode) {
      const int32_t tiles = item_start[b + 1] - item_start[b];
      const int32_t offset = item - item_start[b] * kv_heads;
      segment.kv_head = offset / tiles;
      segment.first_query = 0;
      segment.queries = 1;
      segment.first_tile = offset - segment.kv_head * tiles;
      segment.last_tile = min(tiles, segment.first_tile + end - item);
      item += segment.last_tile - segment.first_tile;
    } else {
      segment.kv_head = item - unit * kv_heads;
      segment.first_query = (unit - item_start[b]) * block_queries;
      segment.queries = min(block_queries, sequence.count - segment.first_query);
      segment.first_tile = 0;
      segment.last_tile = score_tiles(sequence.visible(segment.first_query + segment.queries - 1));
      item += workers;
    }
    scorer.run(segment, sequence);
  }
}

template <class T, int kColumnTiles>
ScoreKernel make_bernoulli_kernel(int32_t head_dim) {
  const int64_t query_bytes = BernoulliQueries<T, kColumnTiles>::shared_bytes(head_dim);
  return {.function = bernoulli_kernel<T, kColumnTiles>,
          .warp_bytes = sizeof(int32_t),  // of the prefix sum
          .block_bytes = query_bytes + static_cast<int64_t>(sizeof(int32_t)),
          .sequence_bytes = sizeof(int32_t),
          .blocks = 2};
}

template <class T>
ScoreKernel bernoulli_kernel_of(int32_t head_dim, int32_t column_tiles) {
  return column_tiles == 1 ? make_bernoulli_kernel<T, 1>(head_dim) : make_bernoulli_kernel<T, 2>(head_dim);
}

}  // namespace allot::kernels::cuda
