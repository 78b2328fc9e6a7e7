#include "model/layer_execution.h"

#include <algorithm>

namespace allot::model {

int64_t row_limit(const kernels::AttentionMethod& method, int64_t budget, int64_t group, int64_t keys) {
  if (budget == 0) return 0;
  int64_t rows = method.unit == kernels::BudgetUnit::kRows ? budget : budget * group;
  if (row_of(method.estimator).spaced) ++rows;
  return std::min(rows, keys);
}

void count_pass(const ForwardBatch& batch, const kernels::AttentionMethod& method, int32_t num_q_heads,
                int32_t num_kv_heads, std::span<LayerExecution> layers) {
  const int64_t group = num_q_heads / num_kv_heads;
  for (size_t l = 0; l < layers.size(); ++l) {
    LayerExecution& layer = layers[l];
    const int32_t* const budgets = batch.budgets.data() + static_cast<int64_t>(l) * batch.batch();
    const auto count = [&](int64_t token, int64_t sequence) {
      const int32_t budget = budgets[sequence];
      if (budget == kernels::kDenseBudget || !row_of(method.estimator).samples) {
        ++layer.exact_tokens;
        return;
      }
      ++layer.sampled_tokens;
      layer.samples += budget;
      layer.row_limit += num_kv_heads * row_limit(method, budget, group, batch.positions[token] + 1);
    };
    if (l + 1 < layers.size()) {
      for (int64_t b = 0; b < batch.batch(); ++b)
        for (int64_t token = batch.query_start[b]; token < batch.query_start[b + 1]; ++token) count(token, b);
      continue;
    }
    int64_t sequence = 0;
    for (const int64_t token : batch.output_rows) {
      while (batch.query_start[sequence + 1] <= token) ++sequence;
      count(token, sequence);
    }
  }
}

}  // namespace allot::model
