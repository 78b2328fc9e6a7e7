// One launch of attention over a paged KV cache for a ragged batch: decode (one query a sequence) and
// prefill (many) are the same call. CPU implementation in attention_cpu.cc; the slow double-precision
// twin is reference.h. Raw pointers only; nothing here allocates tensors or knows LibTorch.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "kernels/method.h"
#include "kernels/split_keys.h"

namespace allot::kernels {

// What one sequence of the batch needs beyond its pages.
struct SequenceDraws {
  DrawKey key;
  uint32_t question = 0;
};

struct AttentionParams {
  // Shapes.
  int64_t batch = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;       // divides num_q_heads; query head h reads KV head h / (q heads / KV heads)
  int32_t head_dim = 0;           // multiple of 8, at most 256
  int32_t page_size = 0;          // tokens a page holds
  int32_t max_pages = 0;          // row length of page_table
  int64_t num_pages = 0;          // pages in the pool, for validation
  DType dtype = DType::kFloat32;  // of query, pages and out; scores and sums are float32
  float scale = 0;                // usually 1 / sqrt(head_dim)

  // Data. Sequence b owns queries query_start[b] .. query_start[b + 1) of `query`; its last query sees keys
  // 0 .. lengths[b), the one before it one key less, and so on (causal).
  const void* query = nullptr;      // [num_queries, num_q_heads, head_dim], row stride query_stride elements
  int64_t query_stride = 0;         // elements between consecutive queries; >= num_q_heads * head_dim
  const void* key_pages = nullptr;  // [num_pages, num_kv_heads, page_size, head_dim]
  // Where set, keys are these. Sequences that sample: scores are those of the high planes, p~ what they give.
  // With a low plane rows are corrected by the ratio estimator: each has the weight w of its estimator by p~,
  // and out = sum(w r v) sum(w) / sum(w r), over the rows drawn, with r = exp(score - score of the high
  // plane). Sequences with a dense budget: scores are those of both planes, or of the high one where there is
  // no low plane; but where key_pages is set, too, they read that, the same keys, and query. On CUDA only.
  SplitKeys split = {};
  const void* value_pages = nullptr;  // [num_pages, num_kv_heads, page_size, head_dim]
  // [num_pages, num_kv_heads, page_size] norms of the vectors in value_pages (rotate_and_store writes them);
  // null unless uses_value_norms(method).
  const float* value_norms = nullptr;
  const int32_t* page_table = nullptr;   // [batch, max_pages] page of each block of page_size tokens
  const int64_t* query_start = nullptr;  // [batch + 1]
  const int32_t* lengths = nullptr;      // [batch] keys visible to the last query; >= number of queries
  void* out = nullptr;                   // [num_queries, num_q_heads, head_dim], contiguous

  // Estimation. The caller acts on `prefill`: the kernels treat a query of a prompt like any other. The score
  // stage applies to sequences that sample; one with a dense budget always has exact scores.
  AttentionMethod method = {.estimator = Estimator::kExact};
  // [batch] samples S per query head, or value rows R per KV head (method.unit); 0 = zero output,
  // kDenseBudget = exact scores and exact attention for that sequence, bit for bit those of a launch without
  // any sampling. May be null for kExact, which checks only for kDenseBudget.
  const int32_t* budgets = nullptr;
  const SequenceDraws* draws = nullptr;  // [batch]; may be null for kExact and kTopk
  uint32_t layer = 0;                    // coordinate of the draws
  // The layer's number of the launch's first query head, where a layer's heads are spread over devices: draws
  // are made under it, so that they do not depend on the spread. A multiple of the query heads of a KV head.
  // `pooled` shares rows out among the heads of the launch alone.
  int32_t first_head = 0;
  // [batch] adds, for every query and KV head of the sequence, the number of distinct value rows that its
  // head group read; null = not counted. Sequences with a dense budget are not counted. On CUDA counting
  // takes time and workspace where heads choose alone.
  int64_t* rows_read = nullptr;
};

// Budget of a sequence whose attention is exact while batch mates sample.
inline constexpr int32_t kDenseBudget = -1;

// Whether sequences with a dense budget read the planes of split keys.
ALLOT_HOST_DEVICE constexpr bool attends_exactly_by_planes(const AttentionParams& params) {
  return params.split.high != nullptr && params.key_pages == nullptr;
}

// Whether a sequence is scored by its exact queries and not by their Bernoulli estimates. Reads p.budgets, so
// call it where they are: on the host or on the device.
ALLOT_HOST_DEVICE constexpr bool has_exact_scores(const AttentionParams& params, int64_t sequence) {
  return params.method.score_stage == ScoreStage::kExact ||
         (params.budgets != nullptr && params.budgets[sequence] == kDenseBudget);
}

// Checks shapes, strides, page numbers, budgets and pointers. Throws InvalidArgument naming sequence,
// value and what was expected, for example: "attention: sequence 3 has length 200, which needs 13
// pages of 16 tokens, but its page table has room for 12". `flash` with a budget below a row's tile
// count is refused here.
void validate(const AttentionParams& params);

// Runs the launch on the calling thread's pool of `num_threads` threads (1 = the calling thread only).
// Deterministic: the result of a row depends on its own data, budget and draw coordinates only, never on
// batch mates, page numbers or thread count. Bytes of `out` beyond the batch's queries and cache slots beyond
// `lengths` are not touched.
void attend_cpu(const AttentionParams& params, int num_threads);

}  // namespace allot::kernels
