// The arrays that a forward pass reads besides weights and cache, as one block of memory: the host fills a
// page-locked copy and sends it to the device in one piece. The position of each array depends only on the
// pass's shape, so a captured graph finds them in the same place. Host arithmetic, tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/token_sampler_cuda.h"
#include "model/attention_plan.h"
#include "model/backend.h"

namespace allot::model::cuda {

// Upper bounds of a pass. Rows beyond the live ones are padding: they are marked as such in every array.
struct PassShape {
  int64_t rows = 0;       // new tokens
  int64_t sequences = 0;  // in decode as many as rows
  int64_t outputs = 0;    // rows whose token is chosen; in decode as many as rows
  int32_t max_pages = 0;  // of a sequence
  int32_t num_layers = 0;
  // Queries that attention takes for sequences of their own, those of all rows, or 0: where its kernels have
  // one query a sequence.
  int64_t apart = 0;

  friend auto operator<=>(const PassShape&, const PassShape&) = default;
};

// What attention reads of the queries of a pass, where each is a sequence of its own.
struct QueryArrays {
  int32_t* lengths = nullptr;               // [apart] keys that it sees
  int32_t* page_table = nullptr;            // [apart, max_pages]
  int32_t* budgets = nullptr;               // [num_layers, apart]
  kernels::SequenceDraws* draws = nullptr;  // [apart]
};

struct PassArrays {
  int32_t* tokens = nullptr;                      // [rows] -1 = padding
  int32_t* chosen_before = nullptr;               // [rows] choice of the pass before, -1 = tokens has it
  int32_t* positions = nullptr;                   // [rows]
  int64_t* slots = nullptr;                       // [rows] of the cache; -1 = padding
  int64_t* query_start = nullptr;                 // [sequences + 1]
  int32_t* cum_queries = nullptr;                 // [sequences + 1] query_start once more, for libraries
  int32_t* cum_keys = nullptr;                    // [sequences + 1] sums of the lengths before
  int32_t* lengths = nullptr;                     // [sequences] 1 where there is no sequence
  int32_t* page_table = nullptr;                  // [sequences, max_pages]
  int32_t* budgets = nullptr;                     // [num_layers, sequences] 0 where there is no sequence
  kernels::SequenceDraws* draws = nullptr;        // [sequences]
  int32_t* output_rows = nullptr;                 // [outputs] -1 = padding
  kernels::TokenRule* rules = nullptr;            // [outputs] not active = padding
  kernels::SequenceDraws* token_draws = nullptr;  // [outputs]
  int32_t* token_positions = nullptr;             // [outputs]
  int32_t* token_seen_rows = nullptr;             // [outputs]
  QueryArrays queries = {};
};

// The arrays of a pass in a block that begins at `base`, aligned to 256 bytes; pass null to learn
// only the size.
struct PassBlock {
  PassArrays arrays;
  int64_t bytes = 0;
};
PassBlock lay_out_pass(const PassShape& shape, std::byte* base);

// Writes a batch into host memory. Requires a shape at least as large as the batch.
void fill_pass(const PassShape& shape, const ForwardBatch& batch, std::span<const TokenChoice> choices,
               const PassArrays& arrays);

// Number of rows with which a decode step of `live` sequences is captured: few different sizes have to be
// captured and measured, and little padding is wasted.
int64_t decode_rows(int64_t live);

}  // namespace allot::model::cuda
