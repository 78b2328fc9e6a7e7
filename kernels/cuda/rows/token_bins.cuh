// Histograms of token weights: in which bin, counted from the heaviest, a mass is reached.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/rows/cluster.cuh"
#include "kernels/token_weights.h"

namespace allot::kernels::cuda {

inline constexpr uint32_t kThreads = 512;
inline constexpr uint32_t kWarps = kThreads / 32;

template <class X>
__device__ __forceinline__ X warp_sum(X x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}

// Sum over the lanes up to and including this one.
template <class X>
__device__ __forceinline__ X warp_prefix(X x) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t offset = 1; offset < 32; offset *= 2) {
    const X below = __shfl_up_sync(kFullWarp, x, offset);
    if (lane >= offset) x += below;
  }
  return x;
}

// Element `lane` of the first `count` of an array, at most 32, for each lane of a warp; `other` beyond. A
// loop over them would wait for each.
template <class X>
__device__ __forceinline__ X of_lane(const X* values, uint32_t count, X other) {
  const uint32_t lane = threadIdx.x % 32;
  return lane < count ? values[lane] : other;
}

struct Found {
  uint32_t bin;
  uint64_t above;  // mass of heavier bins
  uint64_t least;  // mass the nucleus must reach
};

// The bins of each block of a cluster of at most kBlocks, in shared memory.
template <uint32_t kBits, uint32_t kBlocks>
struct Bins {
  static constexpr uint32_t kCount = 1u << kBits;
  static_assert(kCount % (kBlocks * 32) == 0);

  uint32_t low[kCount];  // half of the mass of each bin
  uint32_t high[kCount];
  uint64_t warp_mass[kWarps];
  uint64_t block_mass[kBlocks];
  Found found;  // by find_bin()

  __device__ __forceinline__ void clear() {
    for (uint32_t i = threadIdx.x; i < kCount; i += kThreads) low[i] = high[i] = 0;
  }

  // Bins of the whole range of weights from 1 on: the octave and the bits that follow it.
  __device__ static __forceinline__ uint32_t first_bin(uint32_t weight) {
    constexpr uint32_t kFraction = kBits - 5;
    const auto zeros = static_cast<uint32_t>(__clz(static_cast<int>(weight)));
    return (31 - zeros) << kFraction | ((weight << zeros) >> (31 - kFraction) & ((1u << kFraction) - 1));
  }
};

// The weights from `low` on that agree with it above their lowest `bits`; `above` is the mass
// of heavier ones.
struct Bracket {
  uint32_t low;
  uint32_t bits;
  uint64_t above;
  __device__ uint32_t high() const { return low + (1u << bits) - 1; }
};

template <uint32_t kBits>
__device__ __forceinline__ Bracket first_bracket(const Found& found) {
  constexpr uint32_t kFraction = kBits - 5, kOctave = 1u << kFraction;
  const uint32_t octave = found.bin >> kFraction, leading = kOctave + (found.bin & (kOctave - 1));
  return {.low = octave >= kFraction ? leading << (octave - kFraction) : leading >> (kFraction - octave),
          .bits = octave >= kFraction ? octave - kFraction : 0,
          .above = found.above};
}

// Bins of a bracket: its highest kBits bits.
template <uint32_t kBits>
__device__ __forceinline__ uint32_t bin_shift(const Bracket& bracket) {
  return bracket.bits > kBits ? bracket.bits - kBits : 0;
}
template <uint32_t kBits>
__device__ __forceinline__ Bracket narrower(const Bracket& bracket, const Found& found) {
  const uint32_t shift = bin_shift<kBits>(bracket);
  return {.low = bracket.low + (found.bin << shift), .bits = shift, .above = found.above};
}

// Rounds of 32 bins that a warp of a cluster of `blocks` has.
ALLOT_HOST_DEVICE constexpr uint32_t bin_rounds(uint32_t bins, uint32_t blocks) {
  return blocks * kThreads < bins ? bins / (blocks * kThreads) : 1;
}

// The masses of bins first - 32 i of all blocks, all asked for at once.
template <uint32_t kOfBlocks, uint32_t kRounds, uint32_t kBits, uint32_t kBlocks>
__device__ __forceinline__ void load_bins(Bins<kBits, kBlocks>& bins, uint32_t first,
                                          uint64_t (&masses)[kRounds]) {
#pragma unroll
  for (uint32_t i = 0; i < bin_rounds(bins.kCount, kOfBlocks); ++i) {
#pragma unroll
    for (uint32_t other = 0; other < kOfBlocks; ++other) {
      const auto* const theirs = kOfBlocks == 1 ? &bins : of_block(&bins, other);
      masses[i] += uint64_t{theirs->high[first - 32 * i]} << 32 | theirs->low[first - 32 * i];
    }
  }
}

// Waits for the whole cluster, or for the block where bins are of one block.
template <uint32_t kBlocks>
__device__ __forceinline__ void sync_blocks() {
  if constexpr (kBlocks == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
}

// Finds the bin, counted from the heaviest, at which the mass reaches `least` or, where that is 0, what top_p
// makes of the mass of all bins, and leaves it in bins.found. `above` is the mass of what is heavier than
// all bins. Waits for everybody's bins first; afterwards they may be cleared.
template <uint32_t kBits, uint32_t kBlocks>
__device__ __noinline__ void find_bin(Bins<kBits, kBlocks>& bins, uint64_t above, uint64_t least,
                                      float top_p) {
  constexpr uint32_t kCount = Bins<kBits, kBlocks>::kCount;
  sync_blocks<kBlocks>();
  const uint32_t blocks = kBlocks == 1 ? 1 : cluster_blocks(), rank = kBlocks == 1 ? 0 : cluster_rank();
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Each block has a part of the bins, in falling order of weight, and each of its warps a part of that,
  // from `first` on.
  const uint32_t of_this_block = kCount / blocks;
  const uint32_t of_warp = 32 * bin_rounds(kCount, blocks);
  const uint32_t first = kCount - 1 - (rank * of_this_block + warp * of_warp);
  constexpr uint32_t kRounds = bin_rounds(kCount, 1);
  uint64_t masses[kRounds] = {};
  if constexpr (kBlocks == 1) {
    load_bins<1>(bins, first - lane, masses);
  } else if (warp * of_warp < of_this_block) {
    switch (blocks) {
      case 1:
        load_bins<1>(bins, first - lane, masses);
        break;
      case 2:
        load_bins<2>(bins, first - lane, masses);
        break;
      case 4:
        load_bins<4>(bins, first - lane, masses);
        break;
      case 8:
        load_bins<8>(bins, first - lane, masses);
        break;
      default:
        load_bins<kBlocks>(bins, first - lane, masses);
    }
  }
  uint64_t mass = 0;
#pragma unroll
  for (const uint64_t of_bin : masses) mass += of_bin;
  mass = warp_sum(mass);
  if (lane == 0) bins.warp_mass[warp] = mass;
  __syncthreads();
  const uint64_t warp_through = warp_prefix(of_lane(bins.warp_mass, kWarps, uint64_t{0}));
  const uint64_t block_mass = __shfl_sync(kFullWarp, warp_through, 31);
  uint64_t rank_mass = lane == 0 ? block_mass : 0;
  if constexpr (kBlocks > 1) {
    if (threadIdx.x < blocks) of_block(&bins, threadIdx.x)->block_mass[rank] = block_mass;
    cluster_sync();
    rank_mass = of_lane(bins.block_mass, blocks, uint64_t{0});
  }
  const uint64_t rank_through = warp_prefix(rank_mass);
  if (least == 0) least = nucleus_mass(__shfl_sync(kFullWarp, rank_through, 31), top_p);
  uint64_t reached = above + __shfl_sync(kFullWarp, rank_through - rank_mass, static_cast<int>(rank)) +
                     __shfl_sync(kFullWarp, warp_through, static_cast<int>(warp)) - mass;
  if (reached < least && least <= reached + mass) {  // one warp of the cluster
#pragma unroll
    for (uint32_t i = 0; i < kRounds; ++i) {
      const uint64_t through = reached + warp_prefix(masses[i]);
      const uint32_t holds = __ballot_sync(kFullWarp, least <= through);
      if (holds != 0) {
        const int holder = __ffs(static_cast<int>(holds)) - 1;
        const Found found = {.bin = first - 32 * i - static_cast<uint32_t>(holder),
                             .above = __shfl_sync(kFullWarp, through - masses[i], holder),
                             .least = least};
        if (lane < blocks) of_block(&bins, lane)->found = found;
        break;
      }
      reached = __shfl_sync(kFullWarp, through, 31);
    }
  }
  sync_blocks<kBlocks>();
}

}  // namespace allot::kernels::cuda
