// The choice among a row's tokens by a cluster of blocks, for logits of any type; block `rank` has the ranks'
// part of the ids, each of its warps a contiguous segment of that. Steps, each a pass over the row:
//   1. the largest logit (and where), which settles greedy rows;
//   2. top_p below 1: the mass of all weights in bins of a 128th of an octave, and from it the bin in which
//      the threshold of the nucleus lies;
//   3. the mass of each segment above that bin, and the weights in the bin, few, as a list. Usually they are
//      all equal (bfloat16 logits are that coarse) and so are the threshold; else the list is divided further
//      by the same histograms, and where it does not hold them all the row is;
//   4. with the masses of the segments: the segment of the choice, then the part of it, then the id.
// Every mass is an exact integer, so no result depends on the number of blocks or the order of atomics.
#pragma once

#include <cstdint>

#include "kernels/cuda/rows/cluster.cuh"
#include "kernels/cuda/rows/token_block.cuh"
#include "kernels/cuda/rows/token_nucleus.cuh"
#include "kernels/cuda/rows/token_row.cuh"
#include "kernels/cuda/rows/token_search.cuh"

namespace allot::kernels::cuda {

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
  take_segment(s.segment_mass, s.segment_ties, nucleus.threshold, search);
  while (search.last - search.first > 32 * kRounds) {
    const uint32_t warp = threadIdx.x / 32;
    Content own;
    weights.for_each(segment_start(search.first, search.last, warp),
                     segment_start(search.first, search.last, warp + 1), max(nucleus.threshold, 1u),
                     [&](const uint32_t(&weight)[Row<T>::kN]) {
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
    take_segment(s.segment_mass, s.segment_ties, nucleus.threshold, search);
  }
  return threadIdx.x < 32 ? find_id(weights, nucleus.threshold, search) : -1;
}

// The id in one thread of the cluster and kOthers in all others, or kNotANumber in all. The cluster's bins
// are clear.
template <class T>
__device__ int32_t choose_by_passes(Shared& s, const Row<T>& row, const TokenRule& rule, const Draw& draw) {
  const uint32_t blocks = cluster_blocks(), rank = cluster_rank();
  const uint32_t warp = threadIdx.x / 32;
  const int32_t block_first = row.part(rank, blocks), block_last = row.part(rank + 1, blocks);
  const int32_t first = segment_start(block_first, block_last, warp);
  const int32_t last = segment_start(block_first, block_last, warp + 1);
  const uint64_t best = find_largest(s, row, first, last);
  const auto order = static_cast<uint32_t>(best >> 32);
  if (order == 0xFFFFFFFFu) return kNotANumber;
  const float largest = unordered(order);
  if (!(rule.temperature > 0) || isinf(largest)) {
    if (rank != 0 || threadIdx.x != 0) return kOthers;
    const auto vector = static_cast<int32_t>(~static_cast<uint32_t>(best));
    float x[Row<T>::kN];
    row.load(vector, x);
    int32_t id = kOthers;
    for (int j = Row<T>::kN - 1; j >= 0; --j) {
      if (x[j] == largest) id = vector * Row<T>::kN + j;
    }
    return id;
  }
  const Weights<T> weights{row, largest, weight_scale(rule.temperature)};
  int32_t id;
  if (rule.top_p < 1) {
    const Nucleus nucleus = find_nucleus(s, weights, rule.top_p, first, last);
    id = locate(s, weights, &nucleus, draw.bits(), block_first, block_last);
  } else {
    sum_segments(s, weights, first, last);
    id = locate(s, weights, nullptr, draw.bits(), block_first, block_last);
  }
  return threadIdx.x == 0 ? id : kOthers;
}

}  // namespace allot::kernels::cuda
