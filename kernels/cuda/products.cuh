// The queries of a head group in the registers of a warp, and their products with keys in shared memory on
// the tensor cores. Keys are the columns of the product, eight at a time, queries its rows. The order of the
// head dimension inside a product is free, so lanes read 16 contiguous bytes of a key where the plain
// fragment layout needs four reads of 4 bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tile_weights.cuh"

namespace allot::kernels::cuda {

// kColumnTiles is 1 or even: 8 queries of a head each.
template <class T, int kHeadDim, int kColumnTiles>
class QueryFragments {
 public:
  static constexpr int kChunks = kHeadDim / 32;  // of 64 bytes: two steps of the product
  static constexpr int kKeyBytes = kHeadDim * 2;

  __device__ __forceinline__ explicit QueryFragments(int lane) : lane_(lane) {}

  // source(column) is where the query of a column begins, aligned to 16 bytes, or null where it has none.
  template <class Source>
  __device__ __forceinline__ void load(Source source) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const T* const low = source(16 * r + lane_ / 4);
      const T* const high = kColumnTiles == 1 ? low : source(16 * r + 8 + lane_ / 4);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        if constexpr (kColumnTiles == 1) {
          fragment_[r][c] = {word(low, c, 0), word(low, c, 2), word(low, c, 1), word(low, c, 3)};
        } else {
          fragment_[r][2 * c] = {word(low, c, 0), word(high, c, 0), word(low, c, 1), word(high, c, 1)};
          fragment_[r][2 * c + 1] = {word(low, c, 2), word(high, c, 2), word(low, c, 3), word(high, c, 3)};
        }
      }
    }
  }

  // Products with the eight keys at an address in shared memory; `n` is their place in the tile.
  __device__ __forceinline__ void multiply(uint32_t keys, int n, TileScores<kColumnTiles>& scores) const {
    const uint32_t key = keys + lane_ / 4 * kKeyBytes + lane_ % 4 * 16;
    if constexpr (kColumnTiles == 1) {
      // A product has 16 rows and there are only 8 queries: the lower rows take half of the head dimension,
      // the upper ones the other half. What a half has with the other's elements of the key is not used.
      float lower[4] = {};
      float upper[4] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 k = load_shared_vector(key + c * 64);
        multiply_accumulate<T>(lower, fragment_[0][c], k.x, k.y);
        multiply_accumulate<T>(upper, fragment_[0][c], k.z, k.w);
      }
      scores[0][n][0] = lower[0] + upper[2];
      scores[0][n][1] = lower[1] + upper[3];
    } else {
      // In two sums, as above: a query's scores have the same bits whichever way it is multiplied.
      float first[kRowTiles][4] = {};
      float second[kRowTiles][4] = {};
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 k = load_shared_vector(key + c * 64);
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          multiply_accumulate<T>(first[r], fragment_[r][2 * c], k.x, k.y);
          multiply_accumulate<T>(second[r], fragment_[r][2 * c + 1], k.z, k.w);
        }
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          scores[2 * r][n][e] = first[r][e] + second[r][e];
          scores[2 * r + 1][n][e] = first[r][2 + e] + second[r][2 + e];
        }
      }
    }
  }

 private:
  static constexpr int kRowTiles = kColumnTiles == 1 ? 1 : kColumnTiles / 2;
  static constexpr int kSteps = kColumnTiles == 1 ? kChunks : 2 * kChunks;

  // Two elements of a query. If they were loaded as vectors, whose words the products need in another order,
  // the compiler would reorder them before every product.
  __device__ __forceinline__ uint32_t word(const T* query, int chunk, int i) const {
    if (query == nullptr) return 0;
    return *reinterpret_cast<const uint32_t*>(query + chunk * 32 + lane_ % 4 * 8 + 2 * i);
  }

  const int lane_;
  uint4 fragment_[kRowTiles][kSteps];
};

// Products with 16-bit keys, for the score kernel.
template <class T, int kHeadDim, int kColumnTiles>
class KeyProducts {
 public:
  static constexpr int kStageBytes = kStageKeys * kHeadDim * 2;
  // With eight warps enough in flight for an H200 to read at full rate, and room for the value kernel's
  // blocks beside them.
  static constexpr int kRingBytes = 16 * 1024;
  static constexpr int kColumns = 8 * kColumnTiles;
  // Stages that a warp takes at a time in decode. Of the largest heads the ring has no more than two.
  static constexpr int kDecodeStep = kHeadDim <= 128 ? 2 : 1;
  // Pieces of 16-bit keys last so long that announcing each costs nothing.
  static constexpr int kAnnouncedTogether = 1;
  static constexpr bool kHasNorms = true;
  static constexpr int kVectors = 2;  // of weights that a lane stores
  using Scores = TileScores<kColumnTiles>;

  __device__ __forceinline__ explicit KeyProducts(int lane) : lane_(lane), queries_(lane) {}

  static __device__ __forceinline__ const char* stage(const Args& args, uint32_t row) {
    return static_cast<const char*>(args.p.key_pages) + int64_t{row} * (kHeadDim * 2);
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

  // Products with the 16 keys of the tile's stage `i`, which lies `offset` behind an address in shared
  // memory.
  __device__ __forceinline__ void multiply(uint32_t step, int offset, int i, Scores& scores) const {
    queries_.multiply(step + offset, 2 * i, scores);
    queries_.multiply(step + offset + 8 * kHeadDim * 2, 2 * i + 1, scores);
  }

  static __device__ __forceinline__ void clear(int i, Scores& scores) {
#pragma unroll
    for (int r = 0; r < kColumnTiles; ++r) {
      scores[r][2 * i][0] = scores[r][2 * i][1] = 0;
      scores[r][2 * i + 1][0] = scores[r][2 * i + 1][1] = 0;
    }
  }

  template <class Visible, class Store>
  __device__ __forceinline__ void finish(Scores& scores, float scale, Visible visible, Store store) const {
    finish_tile<kColumnTiles>(scores, lane_, scale, visible, store);
  }

  // Where in a tile's weights vector `v` of this lane belongs, and whether it writes the tile's statistics.
  __device__ __forceinline__ int position(int v) const {
    return v * (kScoreTile / 2) + lane_ % 4 * 8;
  }
  __device__ __forceinline__ bool leads() const {
    return lane_ % 4 == 0;
  }

 private:
  const int lane_;
  QueryFragments<T, kHeadDim, kColumnTiles> queries_;
};

}  // namespace allot::kernels::cuda
