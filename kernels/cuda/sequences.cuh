// Where the sequences of a ragged batch lie: the prefix sums that every block of the score kernel computes
// for itself, and the checks of values that only the device knows.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/sampling.h"

namespace allot::kernels::cuda {

// Sequence of a query, by bisection of query_start.
__device__ __forceinline__ int32_t sequence_of(const Args& args, int32_t query) {
  if (args.one_query_each) return query;
  int32_t low = 0;
  auto high = static_cast<int32_t>(args.p.batch);
#pragma unroll 1
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (args.p.query_start[middle] <= query) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// One sequence within a pass.
struct PassSequence {
  int32_t length = 0;   // keys the sequence's last query sees
  int32_t queries = 0;  // of the whole launch
  int32_t first = 0;    // first query of the pass, 0-based in the sequence
  int32_t count = 0;    // queries of the pass
  int32_t slot = 0;     // place of the first query in the pass

  // Keys that query `q` of the pass (0-based in the sequence) sees.
  __device__ __forceinline__ int32_t visible(int32_t q) const { return length - (queries - 1 - first - q); }
};

__device__ __forceinline__ void record_fault(const Args& args, FaultCode code, int64_t sequence,
                                             int64_t value, int64_t limit) {
  if (atomicCAS(&args.fault->code, kFaultNone, code) == kFaultNone) {
    args.fault->sequence = sequence;
    args.fault->value = value;
    args.fault->limit = limit;
    args.fault->tile = args.p.method.tile;
  }
}

// Checks that a sequence keeps the bounds; a sequence that breaks them gets NaN as output and no key is
// read for it.
__device__ __forceinline__ FaultCode sequence_fault(const Args& args, int32_t length, int32_t queries,
                                                    int32_t budget) {
  if (queries < 0 || queries > args.max_queries) return kFaultQueries;
  if (length < queries || length > args.max_length ||
      (length > 0 && args.page_size.quotient(length - 1) >= args.p.max_pages)) {
    return kFaultLength;
  }
  if (!args.samples) return kFaultNone;
  if (budget > args.max_budget || budget < (args.any_dense ? kDenseBudget : 0)) return kFaultBudget;
  if (args.sample_in_every_tile && budget > 0 && budget < tile_count(length, args.p.method.tile)) {
    return kFaultTileBudget;
  }
  return kFaultNone;
}

__device__ __forceinline__ int32_t budget_of(const Args& args, int32_t b) {
  return args.samples ? args.p.budgets[b] : kDenseBudget;
}

// The sequence's part in the pass. It has no queries where it broke the bounds or its budget is 0, so that
// none of its keys is read.
__device__ __forceinline__ PassSequence pass_sequence(const Args& args, int32_t b, FaultCode* fault) {
  PassSequence s;
  s.length = args.p.lengths[b];
  const int32_t budget = budget_of(args, b);
  int32_t start = b;
  s.queries = 1;
  if (!args.one_query_each) {
    start = static_cast<int32_t>(args.p.query_start[b]);
    s.queries = static_cast<int32_t>(args.p.query_start[b + 1]) - start;
  }
  *fault = sequence_fault(args, s.length, s.queries, budget);
  if (*fault != kFaultNone || budget == 0) return s;
  s.first = max(0, args.first_query - start);
  s.slot = start + s.first - args.first_query;
  s.count = max(0, min(s.queries - s.first, args.pass_queries - s.slot));
  return s;
}

// Whether the exact decode kernel serves a sequence. It depends on the sequence alone, so that its result
// does.
__device__ __forceinline__ bool is_decoded_exactly(const Args& args, int32_t b, int32_t queries) {
  if (!args.exact_decode || queries != 1) return false;
  if (!args.samples && args.p.method.score_stage == ScoreStage::kExact) return true;
  return args.p.budgets != nullptr && args.p.budgets[b] == kDenseBudget;
}

// The same for a score kernel: it also has no queries where another kernel serves the sequence.
__device__ __forceinline__ PassSequence scored_sequence(const Args& args, int32_t b, FaultCode* fault) {
  PassSequence s = pass_sequence(args, b, fault);
  if (is_decoded_exactly(args, b, s.queries)) s.count = 0;
  // Only a launch with dense sequences has two, and it has budgets whatever its estimator.
  const bool divided = args.scored != Scored::kEvery;
  if (divided && (args.p.budgets[b] == kDenseBudget) != (args.scored == Scored::kExact)) s.count = 0;
  return s;
}

// Row of a key in the pool, counted in rows of head_dim elements: in key_pages or value_pages. The key lies
// in entry `entry` of its sequence's page table, which names `page`.
__device__ __forceinline__ uint32_t pool_row(const Args& args, int32_t page, int32_t kv_head, int32_t key,
                                             int32_t entry) {
  return (static_cast<uint32_t>(page) * args.num_kv_heads.value() + kv_head) * args.page_size.value() +
         (key - entry * args.page_size.value());
}

// The page that an entry of a sequence's page table names.
__device__ __forceinline__ int32_t page_number(const Args& args, int32_t sequence, int32_t entry) {
  return args.p.page_table[int64_t{sequence} * args.p.max_pages + entry];
}

// Row of a key in key_pages, whose page is given. A page outside the pool is recorded, marked in
// `bad_page` and replaced by page 0, so that nothing outside the pool is read.
__device__ __forceinline__ uint32_t key_row(const Args& args, int32_t sequence, int32_t kv_head, int32_t key,
                                            int32_t page, bool* bad_page) {
  if (page < 0 || page >= args.p.num_pages) {
    record_fault(args, kFaultPage, sequence, page, args.p.num_pages);
    *bad_page = true;
    page = 0;
  }
  return pool_row(args, page, kv_head, key, args.page_size.quotient(key));
}
__device__ __forceinline__ uint32_t key_row(const Args& args, int32_t sequence, int32_t kv_head, int32_t key,
                                            bool* bad_page) {
  return key_row(args, sequence, kv_head, key, page_number(args, sequence, args.page_size.quotient(key)),
                 bad_page);
}

}  // namespace allot::kernels::cuda
