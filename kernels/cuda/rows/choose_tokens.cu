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
#include "kernels/cuda/rows/token_block.cuh"
#include "kernels/cuda/rows/token_kernels.h"
#include "kernels/cuda/rows/token_nucleus.cuh"
#include "kernels/cuda/rows/token_row.cuh"

namespace allot::kernels::cuda {
namespace {

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
    if (p.fault != nullptr) atomicMin(p.fault, static_cast<int32_t>(number));
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

constexpr uint32_t kListThreads = 256;
uint32_t list_blocks(int64_t entries) {
  return static_cast<uint32_t>((entries + kListThreads - 1) / kListThreads);
}

__global__ void feed_tokens(FeedTokensParams p) {
  begin_overlapped();
  const int64_t token = int64_t{blockIdx.x} * kListThreads + threadIdx.x;
  if (token >= p.tokens) return;
  const int32_t choice = p.choices[token];
  if (choice < 0) return;
  p.ids[token] = choice < p.chosen_rows ? p.chosen[choice] : INT32_MAX;
}

__global__ void mark_seen(MarkSeenParams p) {
  begin_overlapped();
  const int64_t token = int64_t{blockIdx.x} * kListThreads + threadIdx.x;
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

void launch_feed_tokens(const FeedTokensParams& p, const DeviceLimits& limits, CudaStream stream) {
  launch_overlapped(feed_tokens, {.rows = list_blocks(p.tokens), .threads = kListThreads}, limits, stream, p);
}

void launch_mark_seen(const MarkSeenParams& p, const DeviceLimits& limits, CudaStream stream) {
  launch_overlapped(mark_seen, {.rows = list_blocks(p.tokens), .threads = kListThreads}, limits, stream, p);
}

}  // namespace allot::kernels::cuda
