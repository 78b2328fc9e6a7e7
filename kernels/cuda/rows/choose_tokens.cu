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
  // The part of the row that holds the choice, and what remains to be found in it.
  int32_t first, last;  // vectors
  uint64_t target;
  uint32_t ties;
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

  // Calls body(vector, logits) for the vectors [first, last), a warp's; each lane has every 32nd.
  template <class Body>
  __device__ __forceinline__ void for_each(int32_t first, int32_t last, const Body& body) const {
    constexpr int kUnroll = 4;  // loads in flight
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

// Largest x of the cluster.
__device__ uint64_t cluster_max(Shared& s, uint64_t x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const uint64_t other = __shfl_xor_sync(kFullWarp, x, offset);
    x = x > other ? x : other;
  }
  if (threadIdx.x % 32 == 0) s.warp_mass[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < cluster_blocks()) {
    uint64_t best = 0;
    for (const uint64_t of_warp : s.warp_mass) best = of_warp > best ? of_warp : best;
    of_block(&s.told, threadIdx.x)->best[cluster_rank()] = best;
  }
  cluster_sync();
  uint64_t best = 0;
  for (uint32_t rank = 0; rank < cluster_blocks(); ++rank) {
    best = s.told.best[rank] > best ? s.told.best[rank] : best;
  }
  return best;
}

// The largest logit (as ordered()) and the lowest vector that holds it, as ~vector.
template <class T>
__device__ uint64_t find_largest(Shared& s, const Row<T>& row, int32_t first, int32_t last) {
  float best = -INFINITY, any = -INFINITY;
  int32_t best_vector = INT32_MAX;
  row.for_each(first, last, [&](int32_t vector, const float(&x)[Row<T>::kN]) {
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

__device__ __forceinline__ void add_to_bin(Shared& s, uint32_t bin, uint32_t weight) {
  if (atomicAdd(&s.bin[bin], weight) + weight < weight) atomicAdd(&s.carry[bin], 1);
}

// The bin, counted from the heaviest, at which the mass reaches what `least_of` makes of the mass of all
// bins; `above` is the mass of what is heavier than all of them. Waits for everybody's bins first; afterwards
// they may be cleared.
template <class Least>
__device__ Found find_bin(Shared& s, uint64_t above, const Least& least_of) {
  cluster_sync();
  const uint32_t blocks = cluster_blocks();
  const uint32_t rank = cluster_rank();
  // This thread's bins first .. first + count in falling order of weight.
  const uint32_t of_cluster_block = kBins / blocks;
  const uint32_t count = of_cluster_block > kThreads ? of_cluster_block / kThreads : 1;
  const uint32_t first = rank * of_cluster_block + threadIdx.x * count;
  const bool has_bins = threadIdx.x * count < of_cluster_block;
  const auto mass_of = [&](uint32_t order) {
    uint64_t mass = 0;
    for (uint32_t other = 0; other < blocks; ++other) {
      const Shared* const theirs = of_block(&s, other);
      mass += uint64_t{theirs->carry[kBins - 1 - order]} << 32 | theirs->bin[kBins - 1 - order];
    }
    return mass;
  };
  uint64_t mass = 0;
  if (has_bins) {
    for (uint32_t i = 0; i < count; ++i) mass += mass_of(first + i);
  }
  const uint64_t prefix = warp_prefix(mass);
  if (threadIdx.x % 32 == 31) s.warp_mass[threadIdx.x / 32] = prefix;
  __syncthreads();
  uint64_t before = prefix - mass, of_block_mass = 0;
  for (uint32_t warp = 0; warp < kWarps; ++warp) {
    if (warp < threadIdx.x / 32) before += s.warp_mass[warp];
    of_block_mass += s.warp_mass[warp];
  }
  if (threadIdx.x < blocks) of_block(&s.told, threadIdx.x)->bins_mass[rank] = of_block_mass;
  cluster_sync();
  uint64_t total = 0;
  for (uint32_t other = 0; other < blocks; ++other) {
    if (other < rank) before += s.told.bins_mass[other];
    total += s.told.bins_mass[other];
  }
  const uint64_t least = least_of(total);
  uint64_t reached = above + before;
  if (has_bins && reached < least && least <= reached + mass) {
    uint32_t order = first;
    for (uint64_t next = mass_of(order); reached + next < least; next = mass_of(++order)) reached += next;
    const Found found = {.bin = kBins - 1 - order, .above = reached, .least = least};
    for (uint32_t other = 0; other < blocks; ++other) of_block(&s.told, other)->found = found;
  }
  cluster_sync();
  return s.told.found;
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
  const Row<T>& row;
  float largest;
  float scale;

  // Calls body(weight) for every id of the vectors [first, last).
  template <class Body>
  __device__ __forceinline__ void for_each(int32_t first, int32_t last, const Body& body) const {
    row.for_each(first, last, [&](int32_t, const float(&x)[Row<T>::kN]) {
#pragma unroll
      for (int j = 0; j < Row<T>::kN; ++j) body(token_weight(x[j], largest, scale));
    });
  }
};

// Step 3: fills segment_mass with the mass above the bracket, segment_ties with the number of weights in it,
// the list, and what the cluster knows of them. Returns the number of weights of the fullest block.
template <class T>
__device__ uint32_t gather_bracket(Shared& s, const Weights<T>& weights, const Bracket& bracket,
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
  weights.for_each(first, last, [&](uint32_t weight) {
    if (weight < low) return;
    if (weight > high) {
      mass += weight;
      return;
    }
    ++count;
    lightest = min(lightest, weight);
    heaviest = max(heaviest, weight);
    const uint32_t entry = atomicAdd(&s.entries, 1);
    if (entry < kListEntries) s.list[entry] = {weight, warp};
  });
  if (count > 0) {
    atomicMin(&s.lightest, lightest);
    atomicMax(&s.heaviest, heaviest);
  }
  mass = warp_sum(mass);
  count = warp_sum(count);
  if (threadIdx.x % 32 == 0) {
    s.segment_mass[warp] = mass;
    s.segment_ties[warp] = count;
  }
  __syncthreads();
  if (threadIdx.x < cluster_blocks()) {
    Told* const theirs = of_block(&s.told, threadIdx.x);
    theirs->in_bracket[cluster_rank()] = s.entries;
    theirs->lightest[cluster_rank()] = s.lightest;
    theirs->heaviest[cluster_rank()] = s.heaviest;
  }
  cluster_sync();
  uint32_t fullest = 0;
  for (uint32_t rank = 0; rank < cluster_blocks(); ++rank) fullest = max(fullest, s.told.in_bracket[rank]);
  return fullest;
}

__device__ bool all_equal(const Shared& s) {
  uint32_t lightest = ~0u, heaviest = 0;
  for (uint32_t rank = 0; rank < cluster_blocks(); ++rank) {
    lightest = min(lightest, s.told.lightest[rank]);
    heaviest = max(heaviest, s.told.heaviest[rank]);
  }
  return lightest == heaviest;
}

// Divides the bracket by what `add` puts in the bins.
template <class Add>
__device__ Bracket divide(Shared& s, const Bracket& bracket, uint64_t least, const Add& add) {
  clear_bins(s);
  __syncthreads();
  const uint32_t low = bracket.low, high = bracket.high(), shift = bin_shift(bracket);
  add([&](uint32_t weight) {
    if (weight >= low && weight <= high) add_to_bin(s, (weight - low) >> shift, weight);
  });
  return narrower(bracket, find_bin(s, bracket.above, [least](uint64_t) { return least; }));
}

// Steps 2 and 3: the nucleus; segment_mass and segment_ties are then those of its threshold.
template <class T>
__device__ Nucleus find_nucleus(Shared& s, const Weights<T>& weights, float top_p, int32_t first,
                                int32_t last) {
  // The bins are clear since the kernel began.
  weights.for_each(first, last, [&](uint32_t weight) {
    if (weight != 0) add_to_bin(s, first_bin(weight), weight);
  });
  const Found found = find_bin(s, 0, [top_p](uint64_t total) { return nucleus_mass(total, top_p); });
  const uint64_t least = found.least;
  Bracket bracket = first_bracket(found);
  uint32_t fullest = gather_bracket(s, weights, bracket, first, last);
  while (!all_equal(s) && fullest > kListEntries) {
    bracket = divide(s, bracket, least, [&](const auto& add) { weights.for_each(first, last, add); });
    fullest = gather_bracket(s, weights, bracket, first, last);
  }
  if (all_equal(s)) {
    uint32_t threshold = 0;
    for (uint32_t rank = 0; rank < cluster_blocks(); ++rank)
      threshold = max(threshold, s.told.heaviest[rank]);
    bracket = {.low = threshold, .bits = 0, .above = bracket.above};
  } else {
    const uint32_t entries = s.entries;
    while (bracket.bits > 0) {
      bracket = divide(s, bracket, least, [&](const auto& add) {
        for (uint32_t i = threadIdx.x; i < entries; i += kThreads) add(s.list[i].weight);
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
  weights.for_each(first, last, [&](uint32_t weight) { mass += weight; });
  mass = warp_sum(mass);
  if (threadIdx.x % 32 == 0) {
    s.segment_mass[threadIdx.x / 32] = mass;
    s.segment_ties[threadIdx.x / 32] = 0;
  }
  __syncthreads();
}

// Mass of a part of the nucleus whose first `ties` ties count.
__device__ __forceinline__ uint64_t mass_of(uint64_t mass, uint32_t has_ties, uint32_t ties,
                                            uint32_t threshold) {
  return mass + uint64_t{min(has_ties, ties)} * threshold;
}

// Advances `target` and `ties` past a part of the nucleus; false where the choice lies in it.
__device__ __forceinline__ bool pass(uint64_t mass, uint32_t has_ties, uint32_t threshold, uint64_t& target,
                                     uint32_t& ties) {
  const uint64_t part = mass_of(mass, has_ties, ties, threshold);
  if (target < part) return false;
  target -= part;
  ties -= min(has_ties, ties);
  return true;
}

// Step 4 among the segments of a block, for one thread: keeps the one that holds the choice. The segments are
// equal parts of [first, last).
__device__ void take_segment(Shared& s, uint32_t threshold, int32_t first, int32_t last) {
  uint64_t target = s.target;
  uint32_t ties = s.ties, warp = 0;
  while (warp < kWarps - 1 && pass(s.segment_mass[warp], s.segment_ties[warp], threshold, target, ties))
    ++warp;
  s.first = first + static_cast<int32_t>(int64_t{last - first} * warp / kWarps);
  s.last = first + static_cast<int32_t>(int64_t{last - first} * (warp + 1) / kWarps);
  s.target = target;
  s.ties = ties;
}

// Step 4 in one warp: the id in the part of the row that s names.
template <class T>
__device__ int32_t find_id(const Shared& s, const Weights<T>& weights, uint32_t threshold) {
  constexpr int kN = Row<T>::kN;
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  uint64_t target = s.target;
  uint32_t ties = s.ties;
  for (int32_t vector = s.first; vector < s.last; vector += 32) {
    uint32_t weight[kN] = {};
    if (vector + lane < s.last) {
      float x[kN];
      weights.row.load(vector + lane, x);
#pragma unroll
      for (int j = 0; j < kN; ++j) weight[j] = token_weight(x[j], weights.largest, weights.scale);
    }
    Content own;
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      own.mass += weight[j] > threshold ? weight[j] : 0;
      own.ties += weight[j] == threshold ? 1 : 0;
    }
    const uint32_t ties_through = warp_prefix(own.ties);
    const uint32_t ties_before = ties_through - own.ties;
    uint32_t left = ties > ties_before ? ties - ties_before : 0;  // for this lane
    const uint64_t mass = mass_of(own.mass, own.ties, left, threshold);
    const uint64_t through = warp_prefix(mass);
    const uint32_t holds = __ballot_sync(kFullWarp, target < through);
    if (holds != 0) {
      int32_t id = 0;
      if (lane == __ffs(static_cast<int>(holds)) - 1) {
        uint64_t rest = target - (through - mass);
        for (int j = 0; j < kN; ++j) {
          const uint32_t share = weight[j] > threshold                ? weight[j]
                                 : weight[j] == threshold && left > 0 ? threshold
                                                                      : 0;
          if (weight[j] == threshold && left > 0) --left;
          if (rest < share) {
            id = (vector + lane) * kN + j;
            break;
          }
          rest -= share;
        }
      }
      return __shfl_sync(kFullWarp, id, __ffs(static_cast<int>(holds)) - 1);
    }
    target -= __shfl_sync(kFullWarp, through, 31);
    const uint32_t passed = __shfl_sync(kFullWarp, ties_through, 31);
    ties -= min(ties, passed);
  }
  return -1;  // not reached: the target is below the mass of the part
}

// Step 4: the id, in the threads of one warp of the cluster; -1 in all others.
template <class T>
__device__ int32_t locate(Shared& s, const Weights<T>& weights, const Nucleus* found, uint32_t random,
                          int32_t block_first, int32_t block_last) {
  const uint32_t blocks = cluster_blocks();
  if (threadIdx.x < blocks) {
    Content own;
    for (uint32_t warp = 0; warp < kWarps; ++warp) {
      own.mass += s.segment_mass[warp];
      own.ties += s.segment_ties[warp];
    }
    Told* const theirs = of_block(&s.told, threadIdx.x);
    theirs->mass[cluster_rank()] = own.mass;
    theirs->ties[cluster_rank()] = own.ties;
  }
  cluster_sync();
  Nucleus nucleus = {};
  if (found != nullptr) {
    nucleus = *found;
  } else {
    for (uint32_t rank = 0; rank < blocks; ++rank) nucleus.mass += s.told.mass[rank];
  }
  uint64_t target = target_mass(nucleus.mass, random);
  uint32_t ties = nucleus.ties, rank = 0;
  while (rank < blocks - 1 && pass(s.told.mass[rank], s.told.ties[rank], nucleus.threshold, target, ties)) {
    ++rank;
  }
  if (rank != cluster_rank()) return -1;  // nobody needs this block's memory any more
  if (threadIdx.x == 0) {
    s.target = target;
    s.ties = ties;
    take_segment(s, nucleus.threshold, block_first, block_last);
  }
  __syncthreads();
  while (s.last - s.first > 64) {  // more than two rounds of a warp
    const int32_t first = s.first, last = s.last;
    const uint32_t warp = threadIdx.x / 32;
    Content own;
    weights.for_each(first + static_cast<int32_t>(int64_t{last - first} * warp / kWarps),
                     first + static_cast<int32_t>(int64_t{last - first} * (warp + 1) / kWarps),
                     [&](uint32_t weight) {
                       if (weight > nucleus.threshold) own.mass += weight;
                       if (weight == nucleus.threshold) ++own.ties;
                     });
    own.mass = warp_sum(own.mass);
    own.ties = warp_sum(own.ties);
    if (threadIdx.x % 32 == 0) {
      s.segment_mass[warp] = own.mass;
      s.segment_ties[warp] = own.ties;
    }
    __syncthreads();
    if (threadIdx.x == 0) take_segment(s, nucleus.threshold, first, last);
    __syncthreads();
  }
  return threadIdx.x < 32 ? find_id(s, weights, nucleus.threshold) : -1;
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
