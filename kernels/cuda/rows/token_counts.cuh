// The choice among a row's tokens by one block that counts how many tokens have each value, for bfloat16
// logits: a vocabulary has many tokens and few values. One pass over the row, then the rule is applied to the
// values; the second pass goes on to the choice, from the end of the row that is nearer to it:
//   1. a counter for each value, and for how many tokens of that value were seen;
//   2. the largest logit; the mass of all weights in bins; the bin in which the threshold of the nucleus is,
//      and from the values in it the threshold;
//   3. the counters become what a token of their value contributes to the nucleus, and chunks of the row are
//      summed until the target is reached.
// A block's shared memory has counters for magnitudes from 2^-23 to 2^8. Smaller ones weigh what 0 does where
// the largest logit is above 2; a row with others is left to choose_by_passes().
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/rows/token_bins.cuh"
#include "kernels/cuda/rows/token_row.cuh"
#include "kernels/cuda/rows/token_search.cuh"

namespace allot::kernels::cuda {

// Not chosen by choose_by_counts(); the same in all threads.
inline constexpr int32_t kUncounted = -3;

// A value's bits with the sign last are consecutive integers for growing magnitude. Counters 1 and following
// are those from kLeastCounted on, counter 0 is of all that are smaller, the last of all others.
inline constexpr uint32_t kLeastCounted = 2 * ((127 - 23) << 7);
inline constexpr uint32_t kCountedValues = 2 * (31 << 7);
inline constexpr uint32_t kTiny = 0;
inline constexpr uint32_t kHuge = kCountedValues + 1;
// A float above this, plus or minus less than 2^-23, is rounded to itself; above 2 k times this where it is
// less than k 2^-23.
inline constexpr float kIgnoresTiny = 2;
// A counter has the tokens that were not seen in its lower bits, seen ones above. Until all are counted one
// may borrow from the other.
inline constexpr uint32_t kSeenStep = 1u << 19;
inline constexpr uint32_t kMostSeen = (1u << 13) - 1;
static_assert(kMaxVocabulary < static_cast<int32_t>(kSeenStep));

inline constexpr uint32_t kCountBinBits = 11;
inline constexpr uint32_t kListedSeen = 4096;

// Where two values are counted, from and to the halves of a word.
__device__ __forceinline__ uint32_t counters_of(uint32_t pair) {
  constexpr uint32_t kBoth = 0x10001u, kBelow = kLeastCounted - 1;
  const uint32_t sign_last = (pair << 1 & 0xFFFEFFFEu) | (pair >> 15 & kBoth);
  return __viaddmin_u16x2(__vmaxu2(sign_last, kBelow * kBoth), (0x10000u - kBelow) * kBoth, kHuge * kBoth);
}
// Of one value. Not by counters_of(): nvcc 13.0 takes a later comparison with the last counter from the
// packed minimum, and not from the half that is compared.
__device__ __forceinline__ uint32_t counter_of(uint32_t bits) {
  constexpr uint32_t kBelow = kLeastCounted - 1;
  const uint32_t sign_last = (bits << 1 & 0xFFFEu) | bits >> 15;
  return min(max(sign_last, kBelow) - kBelow, kHuge);
}
// The value of all tokens of a counter but the last.
__device__ __forceinline__ float counted_value(uint32_t counter) {
  const uint32_t sign_last = counter + (kLeastCounted - 1);
  return counter == kTiny ? 0 : __uint_as_float((sign_last << 15 & 0x7FFF0000u) | sign_last << 31);
}

// Counters are read four at a time.
inline constexpr uint32_t kCounters = (kHuge + 4) / 4 * 4;

struct CountShared {
  alignas(sizeof(uint4)) uint32_t count[kCounters];
  union {
    Bins<kCountBinBits, 1> bins;
    int32_t seen_ids[kListedSeen];  // before there are bins
  };
  uint64_t segment_mass[2][kWarps];  // of two chunks in turn
  uint32_t segment_ties[2][kWarps];
  uint32_t seen;                      // tokens
  uint32_t order;                     // of the largest logit
  uint32_t ties, lightest, heaviest;  // of the weights in a bracket

  __device__ __forceinline__ void clear() {
    for (uint32_t i = threadIdx.x; i < kCounters; i += kThreads) count[i] = 0;
    if (threadIdx.x == 0) {
      seen = order = 0;
      clear_bracket();
    }
  }
  __device__ __forceinline__ void clear_bracket() {
    ties = heaviest = 0;
    lightest = ~0u;
  }
};

// Step 1: the tokens of each value.
template <class T>
__device__ __forceinline__ void count_values(CountShared& s, const Row<T>& row) {
  constexpr int kUnroll = 4;
  const int32_t whole = row.vocab_size / Row<T>::kN;
  for (auto v = static_cast<int32_t>(threadIdx.x); v < whole; v += kUnroll * static_cast<int32_t>(kThreads)) {
    uint4 raw[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int32_t vector = v + k * static_cast<int32_t>(kThreads);
      raw[k] = vector < whole ? row.logits[vector] : uint4{};
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (v + k * static_cast<int32_t>(kThreads) >= whole) continue;
      const uint32_t words[4] = {raw[k].x, raw[k].y, raw[k].z, raw[k].w};
#pragma unroll
      for (const uint32_t word : words) {
        const uint32_t counters = counters_of(word);
        atomicAdd(&s.count[counters & 0xFFFFu], 1u);
        atomicAdd(&s.count[counters >> 16], 1u);
      }
    }
  }
  const int32_t id = whole * Row<T>::kN + static_cast<int32_t>(threadIdx.x);
  if (id < row.vocab_size) atomicAdd(&s.count[counter_of(row.bits(id))], 1u);
}

// Makes a token that count_values() counts one that was seen.
template <class T>
__device__ __forceinline__ void count_as_seen(CountShared& s, const Row<T>& row, int32_t id) {
  atomicAdd(&s.count[counter_of(row.bits(id))], kSeenStep - 1);
}

// Step 1: the seen tokens of each value. They are listed first: a lane that finds one in its word would wait
// for its logit alone.
template <class T>
__device__ __forceinline__ void count_seen(CountShared& s, const Row<T>& row) {
  constexpr int kUnroll = 4;
  const auto words = static_cast<int32_t>(seen_words(row.vocab_size));
  for (auto at = static_cast<int32_t>(threadIdx.x); at < words;
       at += kUnroll * static_cast<int32_t>(kThreads)) {
    uint32_t several[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const int32_t word = at + k * static_cast<int32_t>(kThreads);
      several[k] = word < words ? row.seen[word] : 0;
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      uint32_t bits = several[k];
      if (bits == 0) continue;
      uint32_t entry = atomicAdd(&s.seen, static_cast<uint32_t>(__popc(bits)));
      for (; bits != 0; bits &= bits - 1, ++entry) {
        const int32_t id = 32 * (at + k * static_cast<int32_t>(kThreads)) + __ffs(static_cast<int>(bits)) - 1;
        if (entry < kListedSeen) {
          s.seen_ids[entry] = id;
        } else {
          count_as_seen(s, row, id);
        }
      }
    }
  }
  __syncthreads();
  const uint32_t listed = min(s.seen, kListedSeen);
  for (uint32_t entry = threadIdx.x; entry < listed; entry += kThreads) {
    count_as_seen(s, row, s.seen_ids[entry]);
  }
}

// Calls body(logit, tokens) for the tokens that were not seen, then for those that were, of the values that a
// thread has.
template <class Body>
__device__ __forceinline__ void for_each_value(const CountShared& s, float penalty, const Body& body) {
  for (uint32_t four = threadIdx.x; four < kCounters / 4; four += kThreads) {
    const uint4 counts = reinterpret_cast<const uint4*>(s.count)[four];
    if ((counts.x | counts.y | counts.z | counts.w) == 0) continue;
    const uint32_t each[4] = {counts.x, counts.y, counts.z, counts.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      if (each[i] == 0) continue;
      const float x = counted_value(4 * four + i);
      const uint32_t unseen = each[i] % kSeenStep, seen = each[i] / kSeenStep;
      if (unseen != 0) body(x, unseen);
      if (seen != 0) body(penalised(x, penalty), seen);
    }
  }
}

// What a row's values and its rule say of weights.
struct ValueWeights {
  float largest;
  float scale;
  float penalty;

  __device__ __forceinline__ uint32_t weight(float x) const { return token_weight(x, largest, scale); }
  // Logarithm of the weight relative to the largest one, off by far less than kMargin.
  __device__ __forceinline__ float exponent(float x) const { return (x - largest) * scale; }
  static constexpr float kMargin = 1e-3f;

  // Calls body(weight, tokens) for the tokens of the values that a thread has, of weights 1 and above.
  template <class Body>
  __device__ __forceinline__ void for_each(const CountShared& s, const Body& body) const {
    for_each_value(s, penalty, [&](float x, uint32_t tokens) {
      const uint32_t w = weight(x);
      if (w != 0) body(w, tokens);
    });
  }
};

// Step 2: whether the counters say everything of the row, and its largest logit. Clears the bins.
__device__ __forceinline__ bool find_largest_value(CountShared& s, float penalty, float& largest) {
  s.bins.clear();
  uint32_t order = 0;
  for_each_value(s, penalty, [&](float x, uint32_t) { order = max(order, ordered(x)); });
  order = __reduce_max_sync(kFullWarp, order);
  if (threadIdx.x % 32 == 0) atomicMax(&s.order, order);
  __syncthreads();
  largest = unordered(s.order);
  const uint32_t tiny = s.count[kTiny];
  // A penalty and its inverse are the factors by which a tiny value of a seen token may have grown.
  const float ignores_tiny = tiny < kSeenStep ? kIgnoresTiny : 2 * kIgnoresTiny * fmaxf(penalty, 1 / penalty);
  return s.seen <= kMostSeen && s.count[kHuge] == 0 && isfinite(largest) &&
         (tiny == 0 || largest > ignores_tiny);
}

// Adds the mass of all weights that bin_of(weight, bin) is true for to the bin it gives.
template <class BinOf>
__device__ __forceinline__ void add_values(CountShared& s, const ValueWeights& weights, const BinOf& bin_of) {
  weights.for_each(s, [&](uint32_t weight, uint32_t tokens) {
    uint32_t bin;
    if (!bin_of(weight, bin)) return;
    const uint64_t mass = uint64_t{weight} * tokens;
    const auto low = static_cast<uint32_t>(mass);
    const uint32_t sum = atomicAdd(&s.bins.low[bin], low) + low;
    const uint32_t high = static_cast<uint32_t>(mass >> 32) + (sum < low ? 1 : 0);
    if (high != 0) atomicAdd(&s.bins.high[bin], high);
  });
}

// Step 2: the weights in the bracket. Afterwards s.ties, lightest and heaviest are the bracket's until
// clear_bracket().
__device__ __forceinline__ void gather_values(CountShared& s, const ValueWeights& weights,
                                              const Bracket& bracket) {
  const uint32_t low = bracket.low, high = bracket.high();
  const float least_exponent = __log2f(static_cast<float>(low)) - 31 - weights.kMargin;
  const float most_exponent = __log2f(static_cast<float>(high) + 1) - 31 + weights.kMargin;
  uint32_t ties = 0, lightest = ~0u, heaviest = 0;
  for_each_value(s, weights.penalty, [&](float x, uint32_t tokens) {
    const float exponent = weights.exponent(x);
    if (exponent < least_exponent || exponent > most_exponent) return;
    const uint32_t weight = weights.weight(x);
    if (weight < low || weight > high) return;
    ties += tokens;
    lightest = min(lightest, weight);
    heaviest = max(heaviest, weight);
  });
  if (ties != 0) {
    atomicAdd(&s.ties, ties);
    atomicMin(&s.lightest, lightest);
    atomicMax(&s.heaviest, heaviest);
  }
  __syncthreads();
}

// The nucleus, and what the whole row holds above its threshold and at it.
struct RowNucleus {
  Nucleus nucleus;
  Content row;
};

// Step 2: the nucleus of top_p. The bins are clear.
__device__ __noinline__ inline RowNucleus find_value_nucleus(CountShared& s, const ValueWeights& weights,
                                                             float top_p) {
  add_values(s, weights, [&](uint32_t weight, uint32_t& bin) {
    bin = s.bins.first_bin(weight);
    return true;
  });
  find_bin(s.bins, 0, 0, top_p);
  const uint64_t least = s.bins.found.least;
  Bracket bracket = first_bracket<kCountBinBits>(s.bins.found);
  gather_values(s, weights, bracket);
  while (s.lightest != s.heaviest) {
    s.bins.clear();
    __syncthreads();  // everybody has seen that the weights differ
    if (threadIdx.x == 0) s.clear_bracket();
    const uint32_t low = bracket.low, high = bracket.high(), shift = bin_shift<kCountBinBits>(bracket);
    add_values(s, weights, [&](uint32_t weight, uint32_t& bin) {
      bin = (weight - low) >> shift;
      return weight >= low && weight <= high;
    });
    find_bin(s.bins, bracket.above, least, 1);
    bracket = narrower<kCountBinBits>(bracket, s.bins.found);
    gather_values(s, weights, bracket);
  }
  const uint32_t threshold = s.heaviest, all_ties = s.ties;
  const uint32_t ties = nucleus_ties(least, bracket.above, threshold);
  return {
      .nucleus = {.threshold = threshold, .ties = ties, .mass = bracket.above + uint64_t{ties} * threshold},
      .row = {.mass = bracket.above, .ties = all_ties}};
}

// The mass of all weights.
__device__ __forceinline__ uint64_t mass_of_values(CountShared& s, const ValueWeights& weights) {
  uint64_t mass = 0;
  weights.for_each(s, [&](uint32_t weight, uint32_t tokens) { mass += uint64_t{weight} * tokens; });
  mass = warp_sum(mass);
  if (threadIdx.x % 32 == 0) s.bins.warp_mass[threadIdx.x / 32] = mass;
  __syncthreads();
  return warp_sum(of_lane(s.bins.warp_mass, kWarps, uint64_t{0}));
}

// Step 3: makes the counter of a value the weight of a token of it that was not seen, or 0 where that is
// below `least`.
__device__ __forceinline__ void counts_to_weights(CountShared& s, const ValueWeights& weights,
                                                  uint32_t least) {
  const float least_exponent = __log2f(static_cast<float>(least)) - 31 - weights.kMargin;
  for (uint32_t four = threadIdx.x; four < kCounters / 4; four += kThreads) {
    uint4& counts = reinterpret_cast<uint4*>(s.count)[four];
    if ((counts.x | counts.y | counts.z | counts.w) == 0) continue;
    uint32_t each[4] = {counts.x, counts.y, counts.z, counts.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const float x = counted_value(4 * four + i);
      const bool counts_for_some = each[i] % kSeenStep != 0 && weights.exponent(x) >= least_exponent;
      const uint32_t weight = counts_for_some ? weights.weight(x) : 0;
      each[i] = weight >= least ? weight : 0;
    }
    counts = {each[0], each[1], each[2], each[3]};
  }
  __syncthreads();
}

// Sum over the lanes of a warp of masses below 2^47.
__device__ __forceinline__ uint64_t warp_sum_of_masses(uint64_t mass) {
  constexpr int kBits = 26;
  const uint32_t low = __reduce_add_sync(kFullWarp, static_cast<uint32_t>(mass) & ((1u << kBits) - 1));
  const uint32_t high = __reduce_add_sync(kFullWarp, static_cast<uint32_t>(mass >> kBits));
  return (uint64_t{high} << kBits) + low;
}

// Two values that no token of a counted row has: its last counter is 0, as a count and as a weight.
inline constexpr uint32_t kNowhere = 0x7FFF7FFFu;
// Vectors that each lane sums of a chunk.
inline constexpr int kChunkRounds = 4;

// Step 3: what the nucleus of `threshold` has in the vectors [first, last) of a warp, at most kChunkRounds
// for each lane, by the weights of their values.
template <class T>
__device__ __forceinline__ Content sum_values(const CountShared& s, const Weights<T>& weights,
                                              uint32_t threshold, int32_t first, int32_t last) {
  const Row<T>& row = weights.row;
  const int32_t own = first + static_cast<int32_t>(threadIdx.x % 32);
  uint4 raw[kChunkRounds];
  constexpr int kN = Row<T>::kN;
  static_assert(kChunkRounds * kN <= 32);
  uint32_t seen = 0;
#pragma unroll
  for (int k = 0; k < kChunkRounds; ++k) {
    const int32_t vector = own + 32 * k;
    raw[k] = vector < last ? row.logits[vector] : uint4{kNowhere, kNowhere, kNowhere, kNowhere};
    if (vector < last && row.seen != nullptr) seen |= row.seen_bits(vector) << (kN * k);
  }
  uint64_t mass = 0;
  uint32_t ties = 0;
#pragma unroll
  for (int k = 0; k < kChunkRounds; ++k) {
    uint32_t words[4] = {raw[k].x, raw[k].y, raw[k].z, raw[k].w};
    const int32_t ids = row.vocab_size - (own + 32 * k) * kN;
    if (ids < kN) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (2 * i + 1 >= ids) words[i] |= kNowhere << 16;
        if (2 * i >= ids) words[i] = kNowhere;
      }
    }
#pragma unroll
    for (const uint32_t word : words) {
      const uint32_t counters = counters_of(word);
      const uint32_t low = s.count[counters & 0xFFFFu], high = s.count[counters >> 16];
      mass += low;
      mass += high;
      ties += low == threshold ? 1 : 0;
      ties += high == threshold ? 1 : 0;
    }
  }
  // Only now, with all vectors' seen tokens together, because a warp waits for the lane that has most.
  for (; seen != 0; seen &= seen - 1) {
    const int at = __ffs(static_cast<int>(seen)) - 1;
    const uint32_t value = row.bits((own + 32 * (at / kN)) * kN + at % kN);
    const float x = penalised(__uint_as_float(value << 16), row.penalty);
    const uint32_t weight = token_weight(x, weights.largest, weights.scale);
    const uint32_t counted = s.count[counter_of(value)];
    mass += weight >= threshold ? weight : 0;
    mass -= counted;
    ties += weight == threshold ? 1 : 0;
    ties -= counted == threshold ? 1 : 0;
  }
  return {.mass = mass - uint64_t{ties} * threshold, .ties = ties};
}

// Step 3: the id, in the first warp.
template <class T>
__device__ __forceinline__ int32_t find_choice(CountShared& s, const Weights<T>& weights,
                                               const RowNucleus& found, uint32_t random) {
  constexpr int32_t kChunk = kChunkRounds * static_cast<int32_t>(kThreads);
  const uint32_t warp = threadIdx.x / 32;
  const Nucleus nucleus = found.nucleus;
  const int32_t vectors = weights.row.vectors;
  const auto in_nucleus = [&](const Content& content) {
    return content.mass + uint64_t{min(content.ties, nucleus.ties)} * nucleus.threshold;
  };
  const uint64_t target = target_mass(nucleus.mass, random);
  const bool forwards = target < nucleus.mass / 2;
  Content before = forwards ? Content{} : found.row;  // of all ids before the chunk, or through it
  Search search;
  for (int32_t done = 0, turn = 0;; done += kChunk, turn ^= 1) {
    search.first = forwards ? done : max(vectors - done - kChunk, 0);
    search.last = forwards ? min(done + kChunk, vectors) : vectors - done;
    const Content own =
        sum_values(s, weights, nucleus.threshold, segment_start(search.first, search.last, warp),
                   segment_start(search.first, search.last, warp + 1));
    const uint64_t mass = warp_sum_of_masses(own.mass);
    const uint32_t ties = __reduce_add_sync(kFullWarp, own.ties);
    if (threadIdx.x % 32 == 0) {
      s.segment_mass[turn][warp] = mass;
      s.segment_ties[turn][warp] = ties;
    }
    __syncthreads();
    const uint64_t chunk_mass = warp_sum_of_masses(of_lane(s.segment_mass[turn], kWarps, uint64_t{0}));
    const uint32_t chunk_ties = __reduce_add_sync(kFullWarp, of_lane(s.segment_ties[turn], kWarps, 0u));
    if (!forwards) before = {.mass = before.mass - chunk_mass, .ties = before.ties - chunk_ties};
    const Content through = {.mass = before.mass + chunk_mass, .ties = before.ties + chunk_ties};
    const bool is_last = done + kChunk >= vectors;
    if (is_last || (forwards ? target < in_nucleus(through) : in_nucleus(before) <= target)) {
      search.target = target - in_nucleus(before);
      search.ties = nucleus.ties - min(nucleus.ties, before.ties);
      take_segment(s.segment_mass[turn], s.segment_ties[turn], nucleus.threshold, search);
      break;
    }
    if (forwards) before = through;
  }
  return threadIdx.x < 32 ? find_id(weights, nucleus.threshold, search) : kOthers;
}

// The id in one thread and kOthers in all others, or kUncounted in all. The counters are clear; the rule's
// temperature is above 0.
template <class T>
__device__ __forceinline__ int32_t choose_by_counts(CountShared& s, const Row<T>& row, const TokenRule& rule,
                                                    const Draw& draw) {
  __syncthreads();
  if (row.seen != nullptr) count_seen(s, row);
  count_values(s, row);
  __syncthreads();
  ValueWeights weights = {.largest = 0, .scale = weight_scale(rule.temperature), .penalty = row.penalty};
  if (!find_largest_value(s, row.penalty, weights.largest)) return kUncounted;
  RowNucleus found;
  if (rule.top_p < 1) {
    found = find_value_nucleus(s, weights, rule.top_p);
  } else {
    found = {.nucleus = {.threshold = 0, .ties = 0, .mass = mass_of_values(s, weights)}, .row = {}};
    found.row.mass = found.nucleus.mass;
  }
  counts_to_weights(s, weights, max(found.nucleus.threshold, 1u));
  const int32_t id = find_choice(s, Weights<T>{row, weights.largest, weights.scale}, found, draw.bits());
  return threadIdx.x == 0 ? id : kOthers;
}

}  // namespace allot::kernels::cuda
