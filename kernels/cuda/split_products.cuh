// Products of the queries of a head group with the high planes of split keys (kernels/split_keys.h) on the
// tensor cores. Keys are the rows of the product, 16 at a time. Its eight columns are the two planes of four
// queries, so every lane ends up with the scores of two keys for one query and none is idle. Sums are whole
// numbers, the same in any order.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tile_weights.cuh"

namespace allot::kernels::cuda {

// kHeadTiles times four queries.
template <int kHeadDim, int kHeadTiles>
class SplitProducts {
  static_assert(kStageKeys == kSplitBlockKeys);

 public:
  static constexpr int kStageBytes = static_cast<int>(split_block_content(kHeadDim));
  // As many stages as make up what a warp has in flight of 16-bit keys, a little more than 16 KiB.
  static constexpr int kRingBytes = 17 * 1024;
  static constexpr int kColumns = 4 * kHeadTiles;
  // Stages that a warp takes at a time in decode. Products of many heads are slower with two.
  static constexpr int kDecodeStep = kHeadTiles == 1 ? 2 : 1;
  static constexpr int kAnnouncedTogether = 4;
  static constexpr bool kHasNorms = false;
  static constexpr int kVectors = 1;  // of weights that a lane stores
  // scores[r][m] is that of key 8 m + lane / 4 and query 4 r + lane % 4, without the unit of the query.
  using Scores = float[kHeadTiles][kTileEights];

  __device__ __forceinline__ explicit SplitProducts(int lane)
      : lane_(lane),
        chunk_(static_cast<uint32_t>(
            split_high_offset(kHeadDim, lane / 8 % 2 * 8 + lane % 8, lane / 16 * kSplitChunk))) {}

  static __device__ __forceinline__ const char* stage(const Args& args, uint32_t row) {
    return static_cast<const char*>(args.p.split.high) +
           int64_t{row / kStageKeys} * split_block_bytes(kHeadDim);
  }

  // place(column) is a QueryPlace.
  template <class Place>
  __device__ __forceinline__ void load(const Args& args, Place place) {
#pragma unroll
    for (int r = 0; r < kHeadTiles; ++r) {
      const QueryPlace of_planes = place(4 * r + lane_ / 8);
      const int8_t* const from =
          args.p.split.query + (2 * of_planes.row(args) + lane_ / 4 % 2) * kHeadDim + lane_ % 4 * 4;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const auto word = [&](int chunk) {
          return of_planes.exists ? *reinterpret_cast<const uint32_t*>(from + chunk * kSplitChunk) : 0;
        };
        planes_[r][s] = {word(2 * s), word(2 * s + 1)};
      }
      const QueryPlace of_unit = place(4 * r + lane_ % 4);
      unit_[r] = of_unit.exists ? args.p.split.query_units[of_unit.row(args)] / 256 : 0.0f;
    }
  }

  // Products with the 16 keys of the tile's stage `i`, which lies `offset` behind an address in shared
  // memory, both whole lines.
  __device__ __forceinline__ void multiply(uint32_t step, int offset, int i, Scores& scores) const {
    int32_t sums[kHeadTiles][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      // What split_high_offset() swaps are bits.
      const uint4 keys = load_shared_matrices(((step + chunk_) ^ s * 2 * kSplitChunk) + offset);
#pragma unroll
      for (int r = 0; r < kHeadTiles; ++r)
        multiply_accumulate_bytes(sums[r], keys, planes_[r][s].x, planes_[r][s].y);
    }
    const uint32_t units = step + offset + static_cast<uint32_t>(split_unit_offset(kHeadDim, lane_ / 4));
    const float lower = load_shared_float(units), upper = load_shared_float(units + 8 * sizeof(float));
#pragma unroll
    for (int r = 0; r < kHeadTiles; ++r) {
      scores[r][2 * i] = static_cast<float>(256 * sums[r][0] + sums[r][1]) * lower;
      scores[r][2 * i + 1] = static_cast<float>(256 * sums[r][2] + sums[r][3]) * upper;
    }
  }

  static __device__ __forceinline__ void clear(int i, Scores& scores) {
#pragma unroll
    for (int r = 0; r < kHeadTiles; ++r) scores[r][2 * i] = scores[r][2 * i + 1] = 0;
  }

  // As finish_tile() of tile_weights.h; a lane has one vector, number lane / 4 % 2 of lane / 8's.
  template <class Visible, class Store>
  __device__ __forceinline__ void finish(Scores& scores, float scale, Visible visible, Store store) const {
    const int key = lane_ / 4;
#pragma unroll
    for (int r = 0; r < kHeadTiles; ++r) {
      const int column = 4 * r + lane_ % 4;
      const int32_t keys = visible(column);
      if (keys < kScoreTile) {
#pragma unroll
        for (int m = 0; m < kTileEights; ++m) {
          if (8 * m + key >= keys) scores[r][m] = -INFINITY;
        }
      }
      float largest = scores[r][0];
#pragma unroll
      for (int m = 1; m < kTileEights; ++m) largest = fmaxf(largest, scores[r][m]);
#pragma unroll
      for (int d = 4; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
      const float factor = scale * unit_[r];
      // A tile this column does not see keeps weights of zero.
      const float shift = largest == -INFINITY ? 0.0f : largest * factor;
      uint32_t own[4];
      float sum = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const __half2 pair = __floats2half2_rn(fast_exp2(fmaf(scores[r][2 * w], factor, -shift)),
                                               fast_exp2(fmaf(scores[r][2 * w + 1], factor, -shift)));
        const float2 rounded = __half22float2(pair);
        sum += rounded.x + rounded.y;
        own[w] = *reinterpret_cast<const uint32_t*>(&pair);
      }
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
      // Stage order pairs neighbouring keys: those of an even lane / 4 with those of the next. The even one
      // takes the first vector, the odd one the second.
      const bool odd = key % 2 != 0;
      const uint32_t first = __shfl_xor_sync(kFullWarp, odd ? own[0] : own[2], 4);
      const uint32_t second = __shfl_xor_sync(kFullWarp, odd ? own[1] : own[3], 4);
      const uint32_t even_words[2] = {odd ? first : own[0], odd ? second : own[1]};
      const uint32_t odd_words[2] = {odd ? own[2] : first, odd ? own[3] : second};
      const uint4 vectors[1] = {{__byte_perm(even_words[0], odd_words[0], 0x5410),
                                 __byte_perm(even_words[0], odd_words[0], 0x7632),
                                 __byte_perm(even_words[1], odd_words[1], 0x5410),
                                 __byte_perm(even_words[1], odd_words[1], 0x7632)}};
      store(column, vectors, TileStats{largest * factor, sum});
    }
  }

  // Where in a tile's weights vector `v` of this lane belongs, and whether it writes the tile's statistics.
  __device__ __forceinline__ int position(int) const {
    return lane_ / 4 % 2 * (kScoreTile / 2) + lane_ / 8 * 8;
  }
  __device__ __forceinline__ bool leads() const {
    return lane_ < 4;
  }

 private:
  static constexpr int kSteps = kHeadDim / 32;  // of the product, two chunks each

  const int lane_;
  // In a block, of the row whose address the lane gives for the matrices of the first step: keys 0 to 7 of
  // the first chunk, keys 8 to 15, both of the second chunk.
  const uint32_t chunk_;
  uint2 planes_[kHeadTiles][kSteps];
  float unit_[kHeadTiles];
};

}  // namespace allot::kernels::cuda
