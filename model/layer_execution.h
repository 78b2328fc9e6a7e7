// What the layers of an engine have done, counted while it runs: the proof that a schedule was executed and
// not only given. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "kernels/method.h"
#include "model/attention_plan.h"

namespace allot::model {

// Sums over the tokens of all passes that were counted.
struct LayerExecution {
  int64_t sampled_tokens = 0;
  int64_t exact_tokens = 0;
  int64_t samples = 0;  // of a query head, or value rows of a KV head (AttentionMethod::unit); sampled tokens
  // Distinct value rows that the kernels read for the sampled tokens, over the KV heads; nothing where the
  // device does not count them.
  std::optional<int64_t> rows = std::nullopt;
  int64_t row_limit = 0;  // most that they may have read: row_limit() of each token, over the KV heads
  friend bool operator==(const LayerExecution&, const LayerExecution&) = default;
};

// Most distinct value rows that a KV head with `group` query heads reads for a token of `budget` samples (or
// rows) that sees `keys` keys. `pooled` keeps it on average over the KV heads of a layer only.
int64_t row_limit(const kernels::AttentionMethod& method, int64_t budget, int64_t group, int64_t keys);

// Adds what a pass of this batch does to `layers` [num_layers], except for the rows: the last layer computes
// output rows only.
void count_pass(const ForwardBatch& batch, const kernels::AttentionMethod& method, int32_t num_q_heads,
                int32_t num_kv_heads, std::span<LayerExecution> layers);

}  // namespace allot::model
