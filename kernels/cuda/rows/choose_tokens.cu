// A cluster of blocks a row; block `rank` has the ranks' part of the ids, each of its warps a contiguous
// segment of that. Steps, each a pass over the row:
//   1. the largest logit (and where), which settles greedy rows;
//   2. top_p below 1: the mass of all weights in bins of a 128th of an octave, and from it the bin in which
//      the threshold of the nucleus lies;
//   3. the mass of each segment above that bin, and the weights in the bin, few, as a list. Usually they are
//      all equal (bfloat16 logits are that coarse) and so are the threshold; else the list is divided further
//      by the same histograms, and where it does not hold them all the row is;
//   4. with the masses of the segments: the segment of the choice, then the part of it, then the id.
// Every mass is an exact integer, so no result depends on the number of blocks or the order of atomics.
#include <cuda_runtime.h>

#include "base/philox.h"
#include "kernels/cuda/rows/cluster.cuh"
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/token_kernels.h"
#include "kernels/token_weights.h"

namespace allot::kernels::cuda {
namespace {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarps = kThreads / 32;
constexpr uint32_t kBinBits = 12;
constexpr uint32_t kBins = 1 << kBinBits;
constexpr uint32_t kListEntries = 1024;
static_assert(kBins % (kMaxRowBlocks * 32) == 0);
// The carry of a bin's 32-bit counter counts wraps, so only the row's mass bounds the vocabulary.
static_assert(uint64_t{kMaxVocabulary} * kLargestTokenWeight < uint64_t{1} << 53, "exact as a double");

// The weights from `low` on that agree with it above their lowest `bits`; `above` is the mass of heavier
// ones.
struct Bracket {
  uint32_t low;
  uint32_t bits;
  uint64_t above;
  __device__ uint32_t high() const { return low + (1u << bits) - 1; }
};

struct Found {
  uint32_t bin;
  uint64_t above;  // mass of heavier bins
  uint64_t least;  // mass the nucleus must reach
};

// A weight of the bracket and the warp in whose segment it lies.
struct Entry {
  uint32_t weight;
  uint32_t warp;
};

// What a block tells the others of its cluster; each has a copy of all.
struct Told {
  uint64_t best[kMaxRowBlocks];
  uint64_t bins_mass[kMaxRowBlocks];
  uint64_t mass[kMaxRowBlocks];
  uint32_t ties[kMaxRowBlocks];
  uint32_t in_bracket[kMaxRowBlocks];
  uint32_t lightest[kMaxRowBlocks];
  uint32_t heaviest[kMaxRowBlocks];
  Found found;
};

struct Shared {
  uint32_t bin[kBins];    // low half of the mass of each bin
  uint32_t carry[kBins];  // high half
  Entry list[kListEntries];
  Told told;
  uint64_t warp_mass[kWarps];  // scratch of sums over the block
  uint64_t segment_mass[kWarps];
  uint32_t segment_ties[kWarps];
  uint32_t entries;  // of list; more than kListEntries where it is too small
  uint32_t lightest, heaviest;
};

template <class T>
struct Row {
  static constexpr int kN = kVector<T>;

  const uint4* logits;
  const uint32_t* seen;  // null without a penalty
  float penalty;
  int32_t vocab_size;
  int32_t vectors;

  __device__ Row(const ChooseTokensParams& p, int64_t row, const uint32_t* seen_bits,
                 float repetition_penalty)
      : logits(reinterpret_cast<const uint4*>(static_cast<const T*>(p.logits) + row * p.logits_stride)),
        seen(repetition_penalty == 1 ? nullptr : seen_bits),
        penalty(repetition_penalty),
        vocab_size(p.vocab_size),
        vectors((p.vocab_size + kN - 1) / kN) {}

  // First vector of part `part` of `parts`.
  __device__ int32_t part(uint32_t part, uint32_t parts) const {
    return static_cast<int32_t>(int64_t{vectors} * part / parts);
  }

  // Logits of ids vector * kN and following after the penalty; -infinity beyond the vocabulary.
  __device__ void finish(int32_t vector, const uint4& raw, float (&x)[kN]) const {
    expand<T>(raw, x);
    const int32_t id = vector * kN;
    if (seen != nullptr) {
      const uint32_t bits = seen[id / 32] >> (id % 32);
      if ((bits & ((1u << kN) - 1)) != 0) {
#pragma unroll
        for (int j = 0; j < kN; ++j) x[j] = (bits >> j & 1) != 0 ? penalised(x[j], penalty) : x[j];
      }
    }
    if (id + kN > vocab_size) {
#pragma unroll
      for (int j = 0; j < kN; ++j) x[j] = id + j < vocab_size ? x[j] : -INFINITY;
    }
  }
  __device__ void load(int32_t vector, float (&x)[kN]) const {
    finish(vector, logits[vector], x);
  }

  // Calls body(vector, logits) for the vectors [first, last), a warp's; each lane has every 32nd, kUnroll of
  // them in flight.
  template <int kUnroll, class Body>
  __device__ __forceinline__ void for_each(int32_t first, int32_t last, const Body& body) const {
    for (int32_t v = first + static_cast<int32_t>(threadIdx.x % 32); v < last; v += 32 * kUnroll) {
      uint4 raw[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (v + 32 * k < last) raw[k] = logits[v + 32 * k];
      }
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (v + 32 * k < last) {
          float x[kN];
          finish(v + 32 * k, raw[k], x);
          body(v + 32 * k, x);
        }
      }
    }
  }
};

// Of two numbers the larger; NaN if either is.
__device__ __forceinline__ float larger(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Orders floats as integers, NaN above all.
__device__ __forceinline__ uint32_t ordered(float x) {
  if (x != x) return 0xFFFFFFFFu;
  const uint32_t bits = __float_as_uint(x + 0.0f);  // -0 and 0 are a tie
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float unordered(uint32_t order) {
  return __uint_as_float((order & 0x80000000u) != 0 ? order & 0x7FFFFFFFu : ~order);
}

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

__device__ __forceinline__ uint64_t warp_max(uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kFullWarp, x, offset);
    x = x > other ? x : other;
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

// Largest x of the cluster.
__device__ uint64_t cluster_max(Shared& s, uint64_t x) {
  x = warp_max(x);
  if (threadIdx.x % 32 == 0) s.warp_mass[threadIdx.x / 32] = x;
  __syncthreads();
  x = warp_max(of_lane(s.warp_mass, kWarps, uint64_t{0}));
  if (threadIdx.x < cluster_blocks()) of_block(&s.told, threadIdx.x)->best[cluster_rank()] = x;
  cluster_sync();
  return warp_max(of_lane(s.told.best, cluster_blocks(), uint64_t{0}));
}

// The largest logit (as ordered()) and the lowest vector that holds it, as ~vector.
template <class T>
__device__ uint64_t find_largest(Shared& s, const Row<T>& row, int32_t first, int32_t last) {
  float best = -INFINITY, any = -INFINITY;
  int32_t best_vector = INT32_MAX;
  row.template for_each<4>(first, last, [&](int32_t vector, const float(&x)[Row<T>::kN]) {
    float largest = x[0];
#pragma unroll
    for (int j = 1; j < Row<T>::kN; ++j) largest = larger(largest, x[j]);
    any = larger(any, largest);  // NaN from then on
    if (largest > best || best_vector == INT32_MAX) {
      best = largest;
      best_vector = vector;
    }
  });
  return cluster_max(s,
                     uint64_t{ordered(any != any ? any : best)} << 32 | ~static_cast<uint32_t>(best_vector));
}

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
__device__ __noinline__ void find_bin(Shared& s, uint64_t above, uint64_t least, float top_p) {
  cluster_sync();
  const uint32_t blocks = cluster_blocks(), rank = cluster_rank();
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Each block has a part of the bins, in falling order of weight, and each of its warps a part of that, from
  // `first` on.
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

// What remains to be found: the token at which the mass exceeds `target` in the vectors [first, last), of
// whose ties the first `ties` belong to the nucleus.
struct Search {
  int32_t first, last;
  uint64_t target;
  uint32_t ties;
};

// The lane whose part of the nucleus holds the choice, where the lanes have consecutive parts with content
// `own`; target and ties then count from that part's start. -1 where none does; they then count from the end
// of all.
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

// Narrows the search, the same in every warp, to one of the segments of the block: equal parts of it.
__device__ __forceinline__ void take_segment(const Shared& s, uint32_t threshold, Search& search) {
  const uint32_t lane = threadIdx.x % 32;
  Content own;
  if (lane < kWarps) own = {.mass = s.segment_mass[lane], .ties = s.segment_ties[lane]};
  const int warp = pick_part(own, threshold, search);
  const int32_t first = search.first, length = search.last - search.first;
  search.first = first + static_cast<int32_t>(int64_t{length} * warp / kWarps);
  search.last = first + static_cast<int32_t>(int64_t{length} * (warp + 1) / kWarps);
}

// Step 4 in one warp: the id.
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

// Step 4: the id, in the threads of one warp of the cluster; -1 in all others.
template <class T>
__device__ int32_t locate(Shared& s, const Weights<T>& weights, const Nucleus* found, uint32_t random,
                          int32_t block_first, int32_t block_last) {
  // Rounds in which one warp looks through its part.
  constexpr int32_t kRounds = 3;
  const uint32_t blocks = cluster_blocks();
  const uint32_t lane = threadIdx.x % 32;
  if (threadIdx.x < blocks) {
    Content own;
#pragma unroll
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      own.mass += s.segment_mass[warp];
      own.ties += s.segment_ties[warp];
    }
    Told* const theirs = of_block(&s.told, threadIdx.x);
    theirs->mass[cluster_rank()] = own.mass;
    theirs->ties[cluster_rank()] = own.ties;
  }
  cluster_sync();
  Content of_rank;
  if (lane < blocks) of_rank = {.mass = s.told.mass[lane], .ties = s.told.ties[lane]};
  const Nucleus nucleus =
      found != nullptr ? *found : Nucleus{.threshold = 0, .ties = 0, .mass = warp_sum(of_rank.mass)};
  Search search = {.first = block_first,
                   .last = block_last,
                   .target = target_mass(nucleus.mass, random),
                   .ties = nucleus.ties};
  const int rank = pick_part(of_rank, nucleus.threshold, search);
  if (rank != static_cast<int>(cluster_rank())) return -1;  // nobody needs this block's memory any more
  take_segment(s, nucleus.threshold, search);
  while (search.last - search.first > 32 * kRounds) {
    const int32_t length = search.last - search.first;
    const uint32_t warp = threadIdx.x / 32;
    Content own;
    weights.for_each(search.first + static_cast<int32_t>(int64_t{length} * warp / kWarps),
                     search.first + static_cast<int32_t>(int64_t{length} * (warp + 1) / kWarps),
                     max(nucleus.threshold, 1), [&](const uint32_t(&weight)[Row<T>::kN]) {
#pragma unroll
                       for (const uint32_t w : weight) {
                         own.mass += w > nucleus.threshold ? w : 0;
                         own.ties += w == nucleus.threshold ? 1 : 0;
                       }
                     });
    own.mass = warp_sum(own.mass);
    own.ties = __reduce_add_sync(kFullWarp, own.ties);
    __syncthreads();  // every warp has taken its segment
    if (lane == 0) {
      s.segment_mass[warp] = own.mass;
      s.segment_ties[warp] = own.ties;
    }
    __syncthreads();
    take_segment(s, nucleus.threshold, search);
  }
  return threadIdx.x < 32 ? find_id(weights, nucleus.threshold, search) : -1;
}

template <class T>
__global__ void __launch_bounds__(kThreads, 2) choose_tokens(ChooseTokensParams p) {
  __shared__ Shared s;
  let_dependents_start();
  clear_bins(s);
  wait_for_predecessor();
  const uint32_t blocks = cluster_blocks();
  const uint32_t rank = cluster_rank();
  const int64_t number = blockIdx.x / blocks;
  const TokenRule rule = p.rules[number];
  if (rule.active == 0) return;
  const int64_t seen_row = p.seen_row == nullptr ? number : p.seen_row[number];
  const bool has_seen = seen_row >= 0 && seen_row < p.seen_rows;
  uint32_t* const seen = p.seen + (has_seen ? seen_row : 0) * seen_words(p.vocab_size);
  const bool first_thread = rank == 0 && threadIdx.x == 0;
  const auto report = [&] {
    p.chosen[number] = -1;
    atomicMin(p.fault, static_cast<int32_t>(number));
  };
  if (!has_seen) {
    if (first_thread) report();
    return;
  }
  const Row<T> row(p, number, seen, rule.repetition_penalty);
  const int32_t block_first = row.part(rank, blocks), block_last = row.part(rank + 1, blocks);
  const uint32_t warp = threadIdx.x / 32;
  const int32_t length = block_last - block_first;
  const int32_t first = block_first + static_cast<int32_t>(int64_t{length} * warp / kWarps);
  const int32_t last = block_first + static_cast<int32_t>(int64_t{length} * (warp + 1) / kWarps);
#if __CUDA_ARCH__ >= 900
  cluster_sync();  // every block of the cluster runs before its memory is written
#endif

  const uint64_t best = find_largest(s, row, first, last);
  const auto order = static_cast<uint32_t>(best >> 32);
  if (order == 0xFFFFFFFFu) {
    if (first_thread) report();
    return;
  }
  const float largest = unordered(order);
  int32_t id = -1;
  if (!(rule.temperature > 0) || isinf(largest)) {
    if (first_thread) {
      const auto vector = static_cast<int32_t>(~static_cast<uint32_t>(best));
      float x[Row<T>::kN];
      row.load(vector, x);
      for (int j = Row<T>::kN - 1; j >= 0; --j) {
        if (x[j] == largest) id = vector * Row<T>::kN + j;
      }
    }
  } else {
    const SequenceDraws draws = p.draws[number];
    const uint32_t random = draw_bits({.key = draws.key,
                                       .question = draws.question,
                                       .layer = kTokenLayer,
                                       .head = 0,
                                       .position = static_cast<uint32_t>(p.positions[number])},
                                      0);
    const Weights<T> weights{row, largest, weight_scale(rule.temperature)};
    if (rule.top_p < 1) {
      const Nucleus nucleus = find_nucleus(s, weights, rule.top_p, first, last);
      id = locate(s, weights, &nucleus, random, block_first, block_last);
    } else {
      sum_segments(s, weights, first, last);
      id = locate(s, weights, nullptr, random, block_first, block_last);
    }
    if (threadIdx.x != 0) id = -1;
  }
  if (id >= 0) {
    p.chosen[number] = id;
    atomicOr(&seen[id / 32], 1u << (id % 32));
  }
}

__global__ void mark_seen(MarkSeenParams p) {
  begin_overlapped();
  const int64_t token = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (token >= p.tokens) return;
  const int32_t id = p.ids[token], row = p.rows[token];
  if (row < 0 || row >= p.seen_rows || id < 0 || id >= p.vocab_size) return;
  atomicOr(&p.seen[row * seen_words(p.vocab_size) + id / 32], 1u << (id % 32));
}

}  // namespace

void launch_choose_tokens(const ChooseTokensParams& p, uint32_t row_blocks, const DeviceLimits& limits,
                          CudaStream stream) {
  const auto kernel = p.dtype == DType::kFloat32 ? choose_tokens<float> : choose_tokens<__nv_bfloat16>;
  launch_overlapped(
      kernel,
      {.rows = static_cast<uint32_t>(p.rows) * row_blocks, .threads = kThreads, .cluster = row_blocks},
      limits, stream, p);
}

void launch_mark_seen(const MarkSeenParams& p, const DeviceLimits& limits, CudaStream stream) {
  constexpr uint32_t kMarkThreads = 256;
  launch_overlapped(
      mark_seen,
      {.rows = static_cast<uint32_t>((p.tokens + kMarkThreads - 1) / kMarkThreads), .threads = kMarkThreads},
      limits, stream, p);
}

}  // namespace allot::kernels::cuda
