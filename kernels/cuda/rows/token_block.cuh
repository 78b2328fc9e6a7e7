// What the blocks of a cluster share while they choose the token of a row, and their sums.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/rows/cluster.cuh"
#include "kernels/cuda/rows/token_bins.cuh"
#include "kernels/cuda/rows/token_kernels.h"
#include "kernels/token_weights.h"

namespace allot::kernels::cuda {

inline constexpr uint32_t kBinBits = 12;
inline constexpr uint32_t kListEntries = 1024;
// Bins hold masses of 64 bits, so only the row's mass bounds the vocabulary.
static_assert(uint64_t{kMaxVocabulary} * kLargestTokenWeight < uint64_t{1} << 53, "exact as a double");

// A weight of the bracket and the warp in whose segment it lies.
struct Entry {
  uint32_t weight;
  uint32_t warp;
};

// What a block tells the others of its cluster; each has a copy of all.
struct Told {
  uint64_t best[kMaxRowBlocks];
  uint64_t mass[kMaxRowBlocks];
  uint32_t ties[kMaxRowBlocks];
  uint32_t in_bracket[kMaxRowBlocks];
  uint32_t lightest[kMaxRowBlocks];
  uint32_t heaviest[kMaxRowBlocks];
};

struct Shared {
  Bins<kBinBits, kMaxRowBlocks> bins;
  Entry list[kListEntries];
  Told told;
  uint64_t warp_mass[kWarps];  // scratch of sums over the block
  uint64_t segment_mass[kWarps];
  uint32_t segment_ties[kWarps];
  uint32_t entries;  // of list; more than kListEntries where it is too small
  uint32_t lightest, heaviest;
};

__device__ __forceinline__ uint64_t warp_max(uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kFullWarp, x, offset);
    x = x > other ? x : other;
  }
  return x;
}

// Largest x of the cluster.
__device__ inline uint64_t cluster_max(Shared& s, uint64_t x) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) s.warp_mass[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_max(of_lane(s.warp_mass, kWarps, uint64_t{0}));
  if (threadIdx.x < cluster_blocks()) of_block(&s.told, threadIdx.x)->best[cluster_rank()] = x;
  cluster_sync();
  return warp_max(of_lane(s.told.best, cluster_blocks(), uint64_t{0}));
}

}  // namespace allot::kernels::cuda
