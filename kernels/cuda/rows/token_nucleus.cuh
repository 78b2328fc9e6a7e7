// Steps 2 and 3 of a choice: the nucleus of a row without sorting, by histograms of weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows/token_block.cuh"
#include "kernels/cuda/rows/token_row.cuh"
#include "kernels/cuda/rows/token_search.cuh"

namespace allot::kernels::cuda {

// Adds weights to the bins that bin_of(weight, bin) gives, where it is true: all additions first, because
// each has to be waited for, then the few carries.
template <int kN, class BinOf>
__device__ __forceinline__ void add_to_bins(Shared& s, const uint32_t (&weight)[kN], const BinOf& bin_of) {
  uint32_t bin[kN], sum[kN];
  bool carries = false;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    bin[j] = 0;
    sum[j] = bin_of(weight[j], bin[j]) ? atomicAdd(&s.bins.low[bin[j]], weight[j]) : 0;
  }
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    sum[j] += weight[j];
    carries = carries || sum[j] < weight[j];
  }
  if (!carries) return;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    if (sum[j] < weight[j]) atomicAdd(&s.bins.high[bin[j]], 1);
  }
}

// What the cluster found in a bracket.
struct InBracket {
  uint32_t lightest, heaviest;
  uint32_t fullest;  // weights in the block that has most
  __device__ bool all_equal() const { return lightest == heaviest; }
};

// Step 3: fills segment_mass with the mass above the bracket, segment_ties with the number of weights in it
// and, with kListed, the list.
template <bool kListed, class T>
__device__ InBracket gather_bracket(Shared& s, const Weights<T>& weights, const Bracket& bracket,
                                    int32_t first, int32_t last) {
  const uint32_t warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    s.entries = 0;
    s.lightest = ~0u;
    s.heaviest = 0;
  }
  __syncthreads();
  const uint32_t low = bracket.low, high = bracket.high();
  uint64_t mass = 0;
  uint32_t count = 0, lightest = ~0u, heaviest = 0;
  weights.for_each(first, last, low, [&](const uint32_t(&weight)[Row<T>::kN]) {
#pragma unroll
    for (int j = 0; j < Row<T>::kN; ++j) {
      mass += weight[j] > high ? weight[j] : 0;
      if (weight[j] < low || weight[j] > high) continue;
      ++count;
      lightest = min(lightest, weight[j]);
      heaviest = max(heaviest, weight[j]);
      if constexpr (kListed) {
        const uint32_t entry = atomicAdd(&s.entries, 1);
        if (entry < kListEntries) s.list[entry] = {weight[j], warp};
      }
    }
  });
  mass = warp_sum(mass);
  count = __reduce_add_sync(kFullWarp, count);
  lightest = __reduce_min_sync(kFullWarp, lightest);
  heaviest = __reduce_max_sync(kFullWarp, heaviest);
  if (threadIdx.x % 32 == 0) {
    s.segment_mass[warp] = mass;
    s.segment_ties[warp] = count;
    if (count > 0) {
      atomicMin(&s.lightest, lightest);
      atomicMax(&s.heaviest, heaviest);
      if constexpr (!kListed) atomicAdd(&s.entries, count);
    }
  }
  __syncthreads();
  if (threadIdx.x < cluster_blocks()) {
    Told* const theirs = of_block(&s.told, threadIdx.x);
    theirs->in_bracket[cluster_rank()] = s.entries;
    theirs->lightest[cluster_rank()] = s.lightest;
    theirs->heaviest[cluster_rank()] = s.heaviest;
  }
  cluster_sync();
  return {.lightest = __reduce_min_sync(kFullWarp, of_lane(s.told.lightest, cluster_blocks(), ~0u)),
          .heaviest = __reduce_max_sync(kFullWarp, of_lane(s.told.heaviest, cluster_blocks(), 0u)),
          .fullest = __reduce_max_sync(kFullWarp, of_lane(s.told.in_bracket, cluster_blocks(), 0u))};
}

// Divides the bracket by the weights that `add` hands over, as arrays.
template <class Add>
__device__ Bracket divide(Shared& s, const Bracket& bracket, uint64_t least, const Add& add) {
  s.bins.clear();
  __syncthreads();
  const uint32_t low = bracket.low, high = bracket.high(), shift = bin_shift<kBinBits>(bracket);
  add([&](const auto& weights) {
    add_to_bins(s, weights, [&](uint32_t weight, uint32_t& bin) {
      bin = (weight - low) >> shift;
      return weight >= low && weight <= high;
    });
  });
  find_bin(s.bins, bracket.above, least, 1);
  return narrower<kBinBits>(bracket, s.bins.found);
}

// Steps 2 and 3: the nucleus; segment_mass and segment_ties are then those of its threshold.
template <class T>
__device__ Nucleus find_nucleus(Shared& s, const Weights<T>& weights, float top_p, int32_t first,
                                int32_t last) {
  // The bins are clear since the kernel began.
  weights.for_each(first, last, 1, [&](const uint32_t(&weight)[Row<T>::kN]) {
    add_to_bins(s, weight, [&](uint32_t w, uint32_t& bin) {
      if (w == 0) return false;
      bin = s.bins.first_bin(w);
      return true;
    });
  });
  find_bin(s.bins, 0, 0, top_p);
  const Found found = s.bins.found;
  const uint64_t least = found.least;
  Bracket bracket = first_bracket<kBinBits>(found);
  // bfloat16 logits are so coarse that a bin rarely holds two different weights.
  constexpr bool kCoarse = sizeof(T) == 2;
  InBracket inside = gather_bracket<!kCoarse>(s, weights, bracket, first, last);
  while (!inside.all_equal() && inside.fullest > kListEntries) {
    bracket =
        divide(s, bracket, least, [&](const auto& add) { weights.for_each(first, last, bracket.low, add); });
    inside = gather_bracket<!kCoarse>(s, weights, bracket, first, last);
  }
  if (kCoarse && !inside.all_equal()) {
    cluster_sync();  // before this block's word of the bracket is given again
    gather_bracket<true>(s, weights, bracket, first, last);
  }
  if (inside.all_equal()) {
    bracket = {.low = inside.heaviest, .bits = 0, .above = bracket.above};
  } else {
    const uint32_t entries = s.entries;
    while (bracket.bits > 0) {
      bracket = divide(s, bracket, least, [&](const auto& add) {
        for (uint32_t i = threadIdx.x; i < entries; i += kThreads) {
          const uint32_t weight[1] = {s.list[i].weight};
          add(weight);
        }
      });
    }
    if (threadIdx.x < kWarps) s.segment_ties[threadIdx.x] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < entries; i += kThreads) {
      const Entry entry = s.list[i];
      if (entry.weight > bracket.low) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&s.segment_mass[entry.warp]), entry.weight);
      } else if (entry.weight == bracket.low) {
        atomicAdd(&s.segment_ties[entry.warp], 1);
      }
    }
    __syncthreads();
  }
  const uint32_t ties = nucleus_ties(least, bracket.above, bracket.low);
  return {.threshold = bracket.low, .ties = ties, .mass = bracket.above + uint64_t{ties} * bracket.low};
}

// Without top_p: every weight.
template <class T>
__device__ void sum_segments(Shared& s, const Weights<T>& weights, int32_t first, int32_t last) {
  uint64_t mass = 0;
  weights.for_each(first, last, 1, [&](const uint32_t(&weight)[Row<T>::kN]) {
#pragma unroll
    for (const uint32_t w : weight) mass += w;
  });
  mass = warp_sum(mass);
  if (threadIdx.x % 32 == 0) {
    s.segment_mass[threadIdx.x / 32] = mass;
    s.segment_ties[threadIdx.x / 32] = 0;
  }
  __syncthreads();
}

}  // namespace allot::kernels::cuda
