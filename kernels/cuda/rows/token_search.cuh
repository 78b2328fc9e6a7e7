// Where in a row the mass of the nucleus exceeds the target: the last steps of a choice.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows/token_bins.cuh"
#include "kernels/cuda/rows/token_row.cuh"

namespace allot::kernels::cuda {

// Heavier weights than `threshold` (of a bracket or the nucleus) and how many are as heavy.
struct Content {
  uint64_t mass = 0;
  uint32_t ties = 0;
};

// The tokens to choose from: all heavier than `threshold`, and of the ties the lowest ids.
struct Nucleus {
  uint32_t threshold;
  uint32_t ties;
  uint64_t mass;
};

// What remains to be found: the token at which the mass exceeds `target` in the vectors [first, last), of
// whose ties the first `ties` belong to the nucleus.
struct Search {
  int32_t first, last;
  uint64_t target;
  uint32_t ties;
};

// The lane whose part of the nucleus holds the choice, where the lanes have consecutive parts with content
// `own`; target and ties then count from that part's start. -1 where none does; they then count from the
// end of all.
__device__ __forceinline__ int pick_part(const Content& own, uint32_t threshold, Search& search) {
  const uint32_t ties_through = warp_prefix(own.ties);
  const uint32_t ties_before = ties_through - own.ties;
  const uint32_t left = search.ties > ties_before ? search.ties - ties_before : 0;
  const uint64_t mass = own.mass + uint64_t{min(own.ties, left)} * threshold;
  const uint64_t through = warp_prefix(mass);
  const uint32_t holds = __ballot_sync(kFullWarp, search.target < through);
  if (holds == 0) {
    search.target -= __shfl_sync(kFullWarp, through, 31);
    search.ties -= min(search.ties, __shfl_sync(kFullWarp, ties_through, 31));
    return -1;
  }
  const int lane = __ffs(static_cast<int>(holds)) - 1;
  search.target -= __shfl_sync(kFullWarp, through - mass, lane);
  search.ties = __shfl_sync(kFullWarp, left, lane);
  return lane;
}

// Where the segment of warp `warp` of the vectors [first, last) begins: equal parts, in order.
__device__ __forceinline__ int32_t segment_start(int32_t first, int32_t last, uint32_t warp) {
  return first + static_cast<int32_t>(int64_t{last - first} * warp / kWarps);
}

// Narrows the search, the same in every warp, to one of the segments of its vectors, which hold `masses` and
// `ties`, [kWarps].
__device__ __forceinline__ void take_segment(const uint64_t* masses, const uint32_t* ties, uint32_t threshold,
                                             Search& search) {
  const uint32_t lane = threadIdx.x % 32;
  Content own;
  if (lane < kWarps) own = {.mass = masses[lane], .ties = ties[lane]};
  const auto warp = static_cast<uint32_t>(pick_part(own, threshold, search));
  const int32_t first = search.first, last = search.last;
  search.first = segment_start(first, last, warp);
  search.last = segment_start(first, last, warp + 1);
}

// In one warp: the id.
template <class T>
__device__ int32_t find_id(const Weights<T>& weights, uint32_t threshold, Search search) {
  constexpr int kN = Row<T>::kN;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int32_t vector = search.first; vector < search.last; vector += 32) {
    uint32_t weight[kN] = {};
    if (vector + lane < search.last) {
      float x[kN];
      weights.row.load(vector + lane, x);
      weights.get(x, weight);
    }
    Content own;
#pragma unroll
    for (const uint32_t w : weight) {
      own.mass += w > threshold ? w : 0;
      own.ties += w == threshold ? 1 : 0;
    }
    const int holder = pick_part(own, threshold, search);
    if (holder < 0) continue;
    int32_t id = (vector + lane) * kN;
#pragma unroll
    for (const uint32_t w : weight) {
      const bool counts = w > threshold || (w == threshold && search.ties > 0);
      if (w == threshold && counts) --search.ties;
      const uint32_t share = counts ? w : 0;
      if (search.target < share) break;
      search.target -= share;
      ++id;
    }
    return __shfl_sync(kFullWarp, id, holder);
  }
  return -1;  // not reached: the target is below the mass of the part
}

}  // namespace allot::kernels::cuda
