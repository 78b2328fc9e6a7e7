// How the warps of the score kernel tell the value kernel which tiles they have finished (Args::ready).
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// Tiles of a sequence and KV head that are done and not announced yet.
struct FinishedTiles {
  int32_t pair;
  int32_t tiles = 0;
};

// An announcement holds its warp up until all that it has seen written is visible to the device. Where that
// is a tenth of a warp's time, warps leave their tiles in the block's shared memory, and every kTogether-th
// one announces what all of them have left. 1: each its own.
template <int kTogether>
class Announcer {
 public:
  // Words of a block of `warps` warps that begin() makes.
  __host__ __device__ static constexpr int words(int warps) { return kTogether == 1 ? 0 : warps + 1; }

  // All threads of the block call it, before any of them announces.
  __device__ __forceinline__ static void begin(uint32_t* words_of_block, int warps) {
    if constexpr (kTogether > 1) {
      if (static_cast<int>(threadIdx.x) < words(warps)) words_of_block[threadIdx.x] = 0;
      __syncthreads();
    }
  }

  __device__ __forceinline__ Announcer(int32_t* ready, uint32_t* words_of_block, int warps, int warp,
                                       int lane)
      : ready_(ready), left_(words_of_block), warps_(warps), warp_(warp), lane_(lane) {}

  // All lanes call it; without tiles, too, once the warp has tiles that are not announced.
  __device__ __forceinline__ void announce(const FinishedTiles& finished) {
    if (finished.tiles == 0 && !has_left_) return;
    // Every lane's weights must be visible before the new count is.
    __syncwarp();
    if constexpr (kTogether == 1) {
      if (lane_ == 0) add_released(&ready_[finished.pair], finished.tiles);
    } else {
      bool all = true;
      if (lane_ == 0 && finished.tiles > 0) {
        __threadfence_block();
        announce_word(atomicExch(&left_[warp_], word_of(finished)));
        all = atomicAdd(&left_[warps_], 1u) % kTogether == kTogether - 1;
      }
      has_left_ = finished.tiles > 0;
      if (__shfl_sync(kFullWarp, all, 0)) announce_left();
    }
  }
  // What the warp has left, at its end.
  __device__ __forceinline__ void announce_rest() {
    if (has_left_) announce_left();
  }

 private:
  static_assert(kMaxPieceTiles < 8 && int64_t{kMaxPairs} * 8 < int64_t{1} << 32);
  __device__ __forceinline__ static uint32_t word_of(const FinishedTiles& finished) {
    return static_cast<uint32_t>(finished.pair) * 8 + static_cast<uint32_t>(finished.tiles);
  }
  __device__ __forceinline__ void announce_word(uint32_t word) const {
    if (word != 0) add_released(&ready_[word / 8], static_cast<int32_t>(word % 8));
  }
  // A lane for each warp.
  __device__ __forceinline__ void announce_left() {
    const uint32_t word = lane_ < warps_ ? atomicExch(&left_[lane_], 0u) : 0;
    __threadfence_block();
    announce_word(word);
    __syncwarp();
  }

  int32_t* const ready_;
  uint32_t* const
      left_;  // [warps] a word of each, 0 where it has left nothing, and how often any of them has
  const int warps_;
  const int warp_;
  const int lane_;
  bool has_left_ = false;
};

}  // namespace allot::kernels::cuda
