// The tokens of a forward pass, and how its attention is cut into launches that threads take one
// by one. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cache_format.h"

namespace allot::model {

// New tokens of several sequences, one sequence after the other.
struct ForwardBatch {
  std::vector<int32_t> tokens;  // [num_tokens]
  // [num_tokens] where a token is not known yet: the choice (0 .. outputs - 1) of the pass before that makes
  // it, whatever `tokens` has there; -1 = `tokens` has it. Empty = all are known.
  std::vector<int32_t> chosen_before;
  std::vector<int32_t> positions;    // [num_tokens] in the token's sequence
  std::vector<int64_t> slots;        // [num_tokens] page * page_size + offset: where keys and values go
  std::vector<int64_t> query_start;  // [batch + 1] first token of each sequence
  std::vector<int32_t>
      lengths;  // [batch] tokens of the sequence after this pass, those in the cache included
  std::vector<int32_t> page_table;  // [batch, max_pages]
  int32_t max_pages = 0;
  std::vector<int32_t> budgets;  // [num_layers, batch] samples, or kernels::kDenseBudget
  // [num_layers, num_kv_heads, batch], where a sequence has budgets of its own for KV heads; the first of a
  // layer are those of `budgets`. Empty: all heads of a layer have the layer's.
  std::vector<int32_t> head_budgets = {};
  std::vector<kernels::SequenceDraws> draws;  // [batch]
  std::vector<int64_t> output_rows;           // tokens whose logits are wanted, ascending
  // What the keys and values that the pass writes are rounded to before anything reads them: a simulation
  // (kernels/cache_rounding.h), which the CPU alone has.
  kernels::CacheFormats simulated_cache = {};

  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
};

// Sets positions and slots of the batch's tokens, which query_start, lengths and page_table determine.
void place_tokens(ForwardBatch& batch, int32_t page_size);

// New tokens of one sequence, those at positions begin .. end - 1.
struct SequencePart {
  std::span<const int32_t> tokens = {};  // of the sequence, at least up to `end`
  // The choice of the pass before that makes the token at end - 1; -1 = it is known.
  int32_t chosen_before = -1;
  int64_t begin = 0;
  int64_t end = 0;
  std::span<const int32_t> pages = {};  // of the sequence, in order
  // [num_layers], or [num_layers, num_kv_heads], each a number or kExactLayer; empty = exact attention in
  // every layer
  std::span<const int32_t> samples = {};
  kernels::SequenceDraws draws = {};
  int64_t first_output = 0;  // positions from here on are output rows
};

// The batch of these parts. Two parts of one sequence, one behind the other, may be in one batch with
// different samples: a layer writes the keys of all new tokens before it attends.
ForwardBatch make_batch(std::span<const SequencePart> parts, int32_t num_layers, int32_t page_size);

// How many tokens of a prompt to process next, when `remaining` of its `size` tokens are left and the pass
// has `room` > 0: at most `room`, or one more. Attention of a single query is summed in another order than
// that of several, so a prompt is never cut so that one token is left alone: the cut depends on batch mates,
// but the result's bits must not. 0 = wait for a pass with more room.
int64_t prefill_tokens(int64_t size, int64_t remaining, int64_t room);

// A run of consecutive queries of one sequence. The kernel sees it as a sequence of its own, on the same
// pages, that ends where the run ends. Attention of a row depends only on its own data, so cutting
// changes no result.
struct QueryRun {
  int64_t sequence = 0;
  int32_t queries = 0;
  int32_t length = 0;  // keys visible to the run's last query
};

class AttentionPlan {
 public:
  // Plans attention of the tokens `rows` (ascending) of the batch, whose queries are contiguous from row 0.
  // Runs are short enough, and launches even enough, for `threads` threads to share one long sequence.
  AttentionPlan(const ForwardBatch& batch, std::span<const int64_t> rows, int threads);

  struct Launch {
    int64_t first_run = 0;
    int64_t runs = 0;
    int64_t first_row = 0;
  };
  std::span<const Launch> launches() const { return launches_; }
  std::span<const QueryRun> runs() const { return runs_; }

  // Sets batch, pages, query_start, lengths, draws and budgets of one launch of one layer.
  void describe(const Launch& launch, int32_t layer, kernels::AttentionParams& params) const;
  // Budgets of a launch in a layer, and the KV heads that have them.
  struct HeadBudgets {
    std::span<const int32_t> budgets;  // [launch.runs]
    std::vector<int32_t> kv_heads;     // ascending
  };
  // One for all heads whose budgets are equal, the first head's first; empty where all heads of the layer
  // have the budgets that describe() sets.
  std::vector<HeadBudgets> head_budgets(const Launch& launch, int32_t layer) const;
  // True when no sequence samples in this layer.
  bool all_dense(int32_t layer) const;

 private:
  int32_t max_pages_;
  std::vector<QueryRun> runs_;
  std::vector<Launch> launches_;
  std::vector<int64_t> query_start_;           // runs + 1 entries for each launch, from 0
  std::vector<int32_t> lengths_;               // [runs]
  std::vector<int32_t> page_table_;            // [runs, max_pages]
  std::vector<int32_t> budgets_;               // [num_layers, runs]
  int64_t num_kv_heads_ = 0;                   // of head_budgets_; 0 where that is empty
  std::vector<int32_t> head_budgets_;          // [num_layers, num_kv_heads, runs]
  std::vector<kernels::SequenceDraws> draws_;  // [runs]
};

}  // namespace allot::model
