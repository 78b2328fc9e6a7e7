#include "model/cuda/pass_arrays.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/round_up.h"

namespace allot::model::cuda {
namespace {

constexpr int64_t kAlignment = 256;

// Every query of the batch with the pages, budgets and draws of its sequence.
void fill_queries(const PassShape& shape, const ForwardBatch& batch, const PassArrays& arrays) {
  const QueryArrays& queries = arrays.queries;
  for (int64_t b = 0; b < batch.batch(); ++b) {
    const int64_t first = batch.query_start[b], end = batch.query_start[b + 1];
    for (int64_t row = first; row < end; ++row) {
      queries.lengths[row] = static_cast<int32_t>(batch.lengths[b] - (end - 1 - row));
      queries.draws[row] = batch.draws[b];
      std::copy_n(arrays.page_table + b * shape.max_pages, shape.max_pages,
                  queries.page_table + row * shape.max_pages);
    }
    for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
      int32_t* const budgets = queries.budgets + layer * shape.apart;
      std::fill(budgets + first, budgets + end, arrays.budgets[layer * shape.sequences + b]);
    }
  }
}

}  // namespace

PassBlock lay_out_pass(const PassShape& shape, std::byte* base) {
  PassBlock block;
  const auto place = [&]<class T>(T*& array, int64_t count) {
    if (base != nullptr) array = reinterpret_cast<T*>(base + block.bytes);
    block.bytes += round_up(count * static_cast<int64_t>(sizeof(T)), kAlignment);
  };
  PassArrays& arrays = block.arrays;
  place(arrays.tokens, shape.rows);
  place(arrays.chosen_before, shape.rows);
  place(arrays.positions, shape.rows);
  place(arrays.slots, shape.rows);
  place(arrays.query_start, shape.sequences + 1);
  place(arrays.cum_queries, shape.sequences + 1);
  place(arrays.cum_keys, shape.sequences + 1);
  place(arrays.lengths, shape.sequences);
  place(arrays.page_table, shape.sequences * shape.max_pages);
  place(arrays.budgets, shape.num_layers * shape.sequences);
  place(arrays.draws, shape.sequences);
  place(arrays.output_rows, shape.outputs);
  place(arrays.rules, shape.outputs);
  place(arrays.token_draws, shape.outputs);
  place(arrays.token_positions, shape.outputs);
  place(arrays.token_seen_rows, shape.outputs);
  if (shape.apart == 0) return block;
  place(arrays.queries.lengths, shape.apart);
  place(arrays.queries.page_table, shape.apart * shape.max_pages);
  place(arrays.queries.budgets, shape.num_layers * shape.apart);
  place(arrays.queries.draws, shape.apart);
  return block;
}

void fill_pass(const PassShape& shape, const ForwardBatch& batch, std::span<const TokenChoice> choices,
               const PassArrays& arrays) {
  const int64_t rows = batch.num_tokens(), sequences = batch.batch();
  const auto outputs = static_cast<int64_t>(batch.output_rows.size());
  const auto pad = [](auto* array, const auto& from, int64_t to, auto padding) {
    std::fill(std::copy(from.begin(), from.end(), array), array + to, padding);
  };
  pad(arrays.tokens, batch.tokens, shape.rows, -1);
  pad(arrays.chosen_before, batch.chosen_before, shape.rows, -1);
  pad(arrays.positions, batch.positions, shape.rows, 0);
  pad(arrays.slots, batch.slots, shape.rows, int64_t{-1});
  pad(arrays.query_start, batch.query_start, shape.sequences + 1, rows);
  std::copy_n(arrays.query_start, shape.sequences + 1, arrays.cum_queries);
  arrays.cum_keys[0] = 0;
  for (int64_t b = 0; b < shape.sequences; ++b) {
    arrays.cum_keys[b + 1] = arrays.cum_keys[b] + (b < sequences ? batch.lengths[b] : 0);
  }
  // Padding is a sequence of one key with budget 0: nothing of it is read.
  pad(arrays.lengths, batch.lengths, shape.sequences, 1);
  pad(arrays.draws, batch.draws, shape.sequences, kernels::SequenceDraws{});
  for (int64_t b = 0; b < shape.sequences; ++b) {
    int32_t* const pages = arrays.page_table + b * shape.max_pages;
    const int32_t known = b < sequences ? std::min(batch.max_pages, shape.max_pages) : 0;
    if (known > 0) std::memcpy(pages, batch.page_table.data() + b * batch.max_pages, known * sizeof(int32_t));
    std::fill(pages + known, pages + shape.max_pages, 0);
  }
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    int32_t* const budgets = arrays.budgets + layer * shape.sequences;
    std::copy_n(batch.budgets.begin() + layer * sequences, sequences, budgets);
    std::fill(budgets + sequences, budgets + shape.sequences, 0);
  }
  for (int64_t i = 0; i < shape.outputs; ++i) {
    const bool live = i < outputs;
    arrays.output_rows[i] = live ? static_cast<int32_t>(batch.output_rows[i]) : -1;
    const bool chosen = live && i < static_cast<int64_t>(choices.size());
    const TokenChoice choice = chosen ? choices[i] : TokenChoice{};
    arrays.rules[i] = {.temperature = static_cast<float>(choice.sampling.temperature),
                       .top_p = static_cast<float>(choice.sampling.top_p),
                       .repetition_penalty = static_cast<float>(choice.sampling.repetition_penalty),
                       .active = chosen};
    arrays.token_draws[i] = choice.draws;
    arrays.token_positions[i] = static_cast<int32_t>(choice.position);
    arrays.token_seen_rows[i] = choice.slot;
  }
  if (shape.apart > 0) fill_queries(shape, batch, arrays);
}

int64_t decode_rows(int64_t live) {
  if (live <= 2) return live;
  // Steps of an eighth to a quarter.
  const int64_t octave = std::bit_ceil(static_cast<uint64_t>(live));
  return round_up(live, std::clamp<int64_t>(octave / 8, 2, 64));
}

}  // namespace allot::model::cuda
