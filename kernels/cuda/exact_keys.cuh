// The keys of the exact decode kernel and their products with the queries of a head group: 16-bit numbers, or
// both planes of split keys (kernels/split_keys.h). Either way a key is a column of the product and queries
// are its rows, so that a lane has the scores of the keys and of the query whose weights it brings to the
// product with the values.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/products.cuh"
#include "kernels/cuda/tile_weights.cuh"
#include "kernels/cuda/warp_ring.cuh"

namespace allot::kernels::cuda {

// kTiles is 1 or 2: 8 queries each.
template <class T, int kDim, int kTiles>
class ExactKeys {
 public:
  using Element = T;  // of queries, values and output
  static constexpr int kHeadDim = kDim;
  static constexpr int kColumnTiles = kTiles;
  static constexpr int kStageBytes = kStageKeys * kHeadDim * 2;
  using Source = OneSource<kStageBytes>;

  __device__ __forceinline__ ExactKeys(const Args&, int lane) : queries_(lane) {}

  // Stages of the 16 keys, and of the 16 values, from a row of the pool on.
  static __device__ __forceinline__ Source keys(const Args& args, uint32_t row) {
    return {static_cast<const char*>(args.p.key_pages) + int64_t{row} * (kHeadDim * 2)};
  }
  static __device__ __forceinline__ Source values(const Args& args, uint32_t row) {
    return {static_cast<const char*>(args.p.value_pages) + int64_t{row} * (kHeadDim * 2)};
  }

  // place(column) is a QueryPlace.
  template <class Place>
  __device__ __forceinline__ void load(const Args& args, Place place) {
    queries_.load([&](int column) -> const T* {
      const QueryPlace query = place(column);
      return query.exists ? static_cast<const T*>(args.p.query) + query.token * args.p.query_stride +
                                query.head * kHeadDim
                          : nullptr;
    });
  }

  // Scores of the keys of a stage, before scale(): those with n = 0 and 1 of TileScores.
  __device__ __forceinline__ void multiply(uint32_t stage, TileScores<kColumnTiles>& scores) const {
    queries_.multiply(stage, 0, scores);
    queries_.multiply(stage + 8 * kHeadDim * 2, 1, scores);
  }
  // What brings those of column 8 r + lane / 4 to units of log2; not negative.
  __device__ __forceinline__ float scale(const Args& args, int) const { return args.p.scale * kLog2E; }

 private:
  QueryFragments<T, kHeadDim, kColumnTiles> queries_;
};

// A stage has the block of high planes and units, and behind it the low planes, where there are any. A
// product has the high planes of eight queries in its upper rows and their low planes in the lower ones.
// Products and their sums are whole numbers, so a score has the roundings of two conversions to float32, of
// their sum and of two products.
template <class T, int kDim, int kTiles>
class ExactSplitKeys {
  static_assert(kStageKeys == kSplitBlockKeys);
  static constexpr int kBlockBytes = static_cast<int>(split_block_content(kDim));
  // Of the low planes in a stage: at a line, as in the cache.
  static constexpr int kLowOffset = static_cast<int>(split_block_bytes(kDim));
  static constexpr int kLowBytes = kStageKeys * kDim;
  static constexpr int kChunks = kDim / 64;  // of 64 bytes: two steps of the product

 public:
  using Element = T;
  static constexpr int kHeadDim = kDim;
  static constexpr int kColumnTiles = kTiles;
  static constexpr int kStageBytes = kLowOffset + kLowBytes;
  using Source = TwoSources<kLowOffset>;

  __device__ __forceinline__ ExactSplitKeys(const Args& args, int lane)
      : lane_(lane),
        high_offset_(static_cast<uint32_t>(split_high_offset(kDim, lane / 4, lane % 4 * kSplitChunk))),
        has_low_(args.p.split.low != nullptr) {}

  static __device__ __forceinline__ Source keys(const Args& args, uint32_t row) {
    const bool has_low = args.p.split.low != nullptr;
    return {static_cast<const char*>(args.p.split.high) + int64_t{row / kStageKeys} * split_block_bytes(kDim),
            reinterpret_cast<const char*>(args.p.split.low) + (has_low ? int64_t{row} * kDim : 0),
            kBlockBytes, has_low ? kLowBytes : 0};
  }
  static __device__ __forceinline__ Source values(const Args& args, uint32_t row) {
    return {static_cast<const char*>(args.p.value_pages) + int64_t{row} * (kDim * 2), nullptr,
            kStageKeys * kDim * 2, 0};
  }

  template <class Place>
  __device__ __forceinline__ void load(const Args& args, Place place) {
#pragma unroll
    for (int r = 0; r < kColumnTiles; ++r) {
      const QueryPlace query = place(8 * r + lane_ / 4);
      const int8_t* const from =
          args.p.split.query + (query.exists ? 2 * query.row(args) * kDim : 0) + lane_ % 4 * 16;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        high_[r][c] = low_[r][c] = {0, 0, 0, 0};
        if (!query.exists) continue;
        high_[r][c] = *reinterpret_cast<const uint4*>(from + c * 64);
        low_[r][c] = *reinterpret_cast<const uint4*>(from + kDim + c * 64);
      }
      scale_[r] =
          query.exists ? args.p.split.query_units[query.row(args)] / 256 * (args.p.scale * kLog2E) : 0.0f;
    }
  }

  __device__ __forceinline__ void multiply(uint32_t stage, TileScores<kColumnTiles>& scores) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      // Of the high planes of queries in the first two, of the low ones in the others.
      int32_t by_high[kColumnTiles][4] = {};
      int32_t by_low[kColumnTiles][4] = {};
      // Chunks of a key's high plane lie where split_high_offset() says: what it swaps are bits.
      const uint32_t high = high_offset_ + 8 * n * kDim;
      add_products([&](int c) { return stage + (high ^ c * 64); }, by_high);
      if (has_low_) {
        const uint32_t low = stage + kLowOffset + (8 * n + lane_ / 4) * kDim + lane_ % 4 * kSplitChunk;
        add_products([&](int c) { return low + c * 64; }, by_low);
      }
      const uint2 units =
          load_shared_pair(stage + static_cast<uint32_t>(split_unit_offset(kDim, 8 * n + lane_ % 4 * 2)));
#pragma unroll
      for (int r = 0; r < kColumnTiles; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const auto high = static_cast<float>(256 * by_high[r][e] + by_high[r][2 + e]);
          const auto low = static_cast<float>(256 * by_low[r][e] + by_low[r][2 + e]);
          scores[r][n][e] = fmaf(low, 1.0f / 256, high) * __uint_as_float(e == 0 ? units.x : units.y);
        }
      }
    }
  }
  __device__ __forceinline__ float scale(const Args&, int r) const {
    return scale_[r];
  }

 private:
  // Of a plane of eight keys, of which chunk(c) is chunk lane % 4 + 4 c of key lane / 4. The order of the
  // head dimension inside a product is free, so lanes read 16 contiguous bytes.
  template <class Chunk>
  __device__ __forceinline__ void add_products(const Chunk& chunk, int32_t (&sums)[kColumnTiles][4]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 k = load_shared_vector(chunk(c));
#pragma unroll
      for (int r = 0; r < kColumnTiles; ++r) {
        multiply_accumulate_bytes(sums[r], {high_[r][c].x, low_[r][c].x, high_[r][c].y, low_[r][c].y}, k.x,
                                  k.y);
        multiply_accumulate_bytes(sums[r], {high_[r][c].z, low_[r][c].z, high_[r][c].w, low_[r][c].w}, k.z,
                                  k.w);
      }
    }
  }

  const int lane_;
  const uint32_t high_offset_;  // of chunk lane % 4 of key lane / 4 in a block
  const bool has_low_;
  uint4 high_[kColumnTiles][kChunks];  // planes of query 8 r + lane / 4
  uint4 low_[kColumnTiles][kChunks];
  float scale_[kColumnTiles];
};

}  // namespace allot::kernels::cuda
