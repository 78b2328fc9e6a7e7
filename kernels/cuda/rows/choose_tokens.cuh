// The kernels that choose tokens: what they do before and after the choice itself.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/rows/cluster.cuh"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/token_counts.cuh"
#include "kernels/cuda/rows/token_passes.cuh"

namespace allot::kernels::cuda {

// Chooses the token of row `number` of the batch by choose(row, rule, draw), which gives the id in one
// thread, and stores it.
template <class T, class Choose>
__device__ __forceinline__ void choose_of_row(const ChooseTokensParams& p, int64_t number,
                                              const Choose& choose) {
  const TokenRule rule = p.rules[number];
  if (rule.active == 0) return;
  const int64_t seen_row = p.seen_row == nullptr ? number : p.seen_row[number];
  const bool has_seen = seen_row >= 0 && seen_row < p.seen_rows;
  uint32_t* const seen = p.seen + (has_seen ? seen_row : 0) * seen_words(p.vocab_size);
  int32_t id = kNotANumber;
  if (has_seen) {
    id = choose(Row<T>(p, number, seen, rule.repetition_penalty), rule,
                Draw{p.draws + number, p.positions + number});
  }
  if (id >= 0) {
    p.chosen[number] = id;
    atomicOr(&seen[id / 32], 1u << (id % 32));
  } else if (id == kNotANumber && cluster_rank() == 0 && threadIdx.x == 0) {
    p.chosen[number] = -1;
    if (p.fault != nullptr) atomicMin(p.fault, static_cast<int32_t>(number));
  }
}

// A cluster of blocks a row.
template <class T>
__global__ void __launch_bounds__(kThreads, 2) choose_tokens(ChooseTokensParams p) {
  __shared__ Shared s;
  let_dependents_start();
  s.bins.clear();
  wait_for_predecessor();
  choose_of_row<T>(p, blockIdx.x / cluster_blocks(),
                   [&](const Row<T>& row, const TokenRule& rule, const Draw& draw) {
                     cluster_sync();  // every block of the cluster runs before its memory is written
                     return choose_by_passes(s, row, rule, draw);
                   });
}

// Shared memory of a block that counts values. Static, so that it is at most 48 KB and three blocks leave
// half of what a multiprocessor has to the cache.
union CountOrPasses {
  CountShared counts;
  Shared passes;
};

// Not inlined, so that its registers are not those of the rows that are counted.
template <class T>
__device__ __noinline__ int32_t choose_uncounted(Shared& s, Row<T> row, TokenRule rule, Draw draw) {
  s.bins.clear();
  __syncthreads();
  return choose_by_passes(s, row, rule, draw);
}

// A block a row.
template <class T>
__global__ void __launch_bounds__(kThreads, 3) choose_tokens_by_counts(ChooseTokensParams p) {
  __shared__ CountOrPasses s;
  let_dependents_start();
  s.counts.clear();
  wait_for_predecessor();
  choose_of_row<T>(p, blockIdx.x, [&](const Row<T>& row, const TokenRule& rule, const Draw& draw) {
    int32_t id = kUncounted;
    if (rule.temperature > 0) id = choose_by_counts(s.counts, row, rule, draw);
    if (id == kUncounted) {
      __syncthreads();  // nobody needs the counts any more
      id = choose_uncounted(s.passes, row, rule, draw);
    }
    return id;
  });
}

}  // namespace allot::kernels::cuda
