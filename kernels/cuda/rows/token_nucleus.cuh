// Steps 2 and 3 of a choice: the nucleus of a row without sorting, by histograms of weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows/token_block.cuh"
#include "kernels/cuda/rows/token_row.cuh"

namespace allot::kernels::cuda {

__device__ __forceinline__ void clear_bins(Shared& s) {
  for (uint32_t i = threadIdx.x; i < kBins; i += kThreads) s.bin[i] = s.carry[i] = 0;
}

// Adds weights to the bins that bin_of(weight, bin) gives, where it is true: all additions first, because
// each has to be waited for, then the few carries.
template <int kN, class BinOf>
__device__ __forceinline__ void add_to_bins(Shared& s, const uint32_t (&weight)[kN], const BinOf& bin_of) {
  uint32_t bin[kN], sum[kN];
  bool carries = false;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    bin[j] = 0;
    sum[j] = bin_of(weight[j], bin[j]) ? atomicAdd(&s.bin[bin[j]], weight[j]) : 0;
  }
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    sum[j] += weight[j];
    carries = carries || sum[j] < weight[j];
  }
  if (!carries) return;
#pragma unroll
  for (int j = 0; j < kN; ++j) {
    if (sum[j] < weight[j]) atomicAdd(&s.carry[bin[j]], 1);
  }
}

// Rounds of 32 bins that a warp of a cluster has.
ALLOT_HOST_DEVICE constexpr uint32_t bin_rounds(uint32_t blocks) {
  return blocks * kThreads < kBins ? kBins / (blocks * kThreads) : 1;
}
using BinMasses = uint64_t[bin_rounds(1)];

// The cluster's masses of bins first - 32 i, all asked for at once.
template <uint32_t kBlocks>
__device__ __forceinline__ void load_bins(Shared& s, uint32_t first, BinMasses& masses) {
#pragma unroll
  for (uint32_t i = 0; i < bin_rounds(kBlocks); ++i) {
#pragma unroll
    for (uint32_t other = 0; other < kBlocks; ++other) {
      const Shared* const theirs = kBlocks == 1 ? &s : of_block(&s, other);
      masses[i] += uint64_t{theirs->carry[first - 32 * i]} << 32 | theirs->bin[first - 32 * i];
    }
  }
}

// Finds the bin, counted from the heaviest, at which the mass reaches `least` or, where that is 0, what top_p
// makes of the mass of all bins, and leaves it in s.told.found. `above` is the mass of what is heavier than
// all bins. Waits for everybody's bins first; afterwards they may be cleared.
__device__ __noinline__ inline void find_bin(Shared& s, uint64_t above, uint64_t least, float top_p) {
  cluster_sync();
  const uint32_t blocks = cluster_blocks(), rank = cluster_rank();
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Each block has a part of the bins, in falling order of weight, and each of its warps a part of that,
  // from `first` on.
  const uint32_t of_this_block = kBins / blocks;
  const uint32_t of_warp = 32 * bin_rounds(blocks);
  const uint32_t first = kBins - 1 - (rank * of_this_block + warp * of_warp);
  BinMasses masses = {};
  if (warp * of_warp < of_this_block) {
    switch (blocks) {
      case 1:
        load_bins<1>(s, first - lane, masses);
        break;
      case 2:
        load_bins<2>(s, first - lane, masses);
        break;
      case 4:
        load_bins<4>(s, first - lane, masses);
        break;
      case 8:
        load_bins<8>(s, first - lane, masses);
        break;
      default:
        load_bins<kMaxRowBlocks>(s, first - lane, masses);
    }
  }
  uint64_t mass = 0;
#pragma unroll
  for (const uint64_t of_bin : masses) mass += of_bin;
  mass = warp_sum(mass);
  if (lane == 0) s.warp_mass[warp] = mass;
  __syncthreads();
  const uint64_t warp_through = warp_prefix(of_lane(s.warp_mass, kWarps, uint64_t{0}));
  const uint64_t block_mass = __shfl_sync(kFullWarp, warp_through, 31);
  if (threadIdx.x < blocks) of_block(&s.told, threadIdx.x)->bins_mass[rank] = block_mass;
  cluster_sync();
  const uint64_t rank_mass = of_lane(s.told.bins_mass, blocks, uint64_t{0});
  const uint64_t rank_through = warp_prefix(rank_mass);
  if (least == 0) least = nucleus_mass(__shfl_sync(kFullWarp, rank_through, 31), top_p);
  uint64_t reached = above + __shfl_sync(kFullWarp, rank_through - rank_mass, static_cast<int>(rank)) +
                     __shfl_sync(kFullWarp, warp_through, static_cast<int>(warp)) - mass;
  if (reached < least && least <= reached + mass) {  // one warp of the cluster
#pragma unroll
    for (uint32_t i = 0; i < bin_rounds(1); ++i) {
      const uint64_t through = reached + warp_prefix(masses[i]);
      const uint32_t holds = __ballot_sync(kFullWarp, least <= through);
      if (holds != 0) {
        const int holder = __ffs(static_cast<int>(holds)) - 1;
        const Found found = {.bin = first - 32 * i - static_cast<uint32_t>(holder),
                             .above = __shfl_sync(kFullWarp, through - masses[i], holder),
                             .least = least};
        if (lane < blocks) of_block(&s.told, lane)->found = found;
        break;
      }
      reached = __shfl_sync(kFullWarp, through, 31);
    }
  }
  cluster_sync();
}

// Bins of the whole range of weights: the octave and the next 7 bits.
__device__ __forceinline__ uint32_t first_bin(uint32_t weight) {
  const int zeros = __clz(static_cast<int>(weight));
  return static_cast<uint32_t>(31 - zeros) << 7 | ((weight << zeros) >> 24 & 127u);
}
__device__ __forceinline__ Bracket first_bracket(const Found& found) {
  const uint32_t octave = found.bin >> 7, leading = 128 + (found.bin & 127u);
  return {.low = octave >= 7 ? leading << (octave - 7) : leading >> (7 - octave),
          .bits = octave >= 7 ? octave - 7 : 0,
          .above = found.above};
}

// Bins of a bracket: its highest kBinBits bits.
__device__ __forceinline__ uint32_t bin_shift(const Bracket& bracket) {
  return bracket.bits > kBinBits ? bracket.bits - kBinBits : 0;
}
__device__ __forceinline__ Bracket narrower(const Bracket& bracket, const Found& found) {
  const uint32_t shift = bin_shift(bracket);
  return {.low = bracket.low + (found.bin << shift), .bits = shift, .above = found.above};
}

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

template <class T>
struct Weights {
  static constexpr int kN = Row<T>::kN;
  const Row<T>& row;
  float largest;
  float scale;

  __device__ __forceinline__ void get(const float (&x)[kN], uint32_t (&weight)[kN]) const {
#pragma unroll
    for (int j = 0; j < kN; ++j) weight[j] = token_weight(x[j], largest, scale);
  }

  // Calls body(weights) for the vectors [first, last) except those in which all weights are less than
  // `least`: most, in the logits of a trained model.
  template <class Body>
  __device__ __forceinline__ void for_each(int32_t first, int32_t last, uint32_t least,
                                           const Body& body) const {
    // The exponent of a weight is off by far less than the margin.
    const float least_exponent = __log2f(static_cast<float>(least)) - 31.001f;
    row.template for_each<4>(first, last, [&](int32_t, const float(&x)[kN]) {
      float most = x[0];
#pragma unroll
      for (int j = 1; j < kN; ++j) most = fmaxf(most, x[j]);
      if ((most - largest) * scale < least_exponent) return;
      uint32_t weight[kN];
      get(x, weight);
      body(weight);
    });
  }
};

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
  clear_bins(s);
  __syncthreads();
  const uint32_t low = bracket.low, high = bracket.high(), shift = bin_shift(bracket);
  add([&](const auto& weights) {
    add_to_bins(s, weights, [&](uint32_t weight, uint32_t& bin) {
      bin = (weight - low) >> shift;
      return weight >= low && weight <= high;
    });
  });
  find_bin(s, bracket.above, least, 1);
  return narrower(bracket, s.told.found);
}

// Steps 2 and 3: the nucleus; segment_mass and segment_ties are then those of its threshold.
template <class T>
__device__ Nucleus find_nucleus(Shared& s, const Weights<T>& weights, float top_p, int32_t first,
                                int32_t last) {
  // The bins are clear since the kernel began.
  weights.for_each(first, last, 1, [&](const uint32_t(&weight)[Row<T>::kN]) {
    add_to_bins(s, weight, [](uint32_t w, uint32_t& bin) {
      bin = first_bin(w);
      return w != 0;
    });
  });
  find_bin(s, 0, 0, top_p);
  const Found found = s.told.found;
  const uint64_t least = found.least;
  Bracket bracket = first_bracket(found);
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
