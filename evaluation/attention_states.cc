#include "evaluation/attention_states.h"

namespace allot::evaluation {

std::vector<double> AttentionStates::scores(int64_t number) const {
  const Layer& layer = layers.at(static_cast<size_t>(number / heads));
  const int64_t head = number % heads;
  const auto dim = static_cast<size_t>(head_dim);
  const auto query = layer.query.subspan(static_cast<size_t>(head) * dim, dim);
  const auto first = static_cast<size_t>(head / (heads / kv_heads) * keys) * dim;
  std::vector<double> scores;
  for (int64_t n = 0; n < keys; ++n) {
    const auto key = layer.key.subspan(first + static_cast<size_t>(n) * dim, dim);
    double score = 0;
    for (size_t d = 0; d < dim; ++d) score += static_cast<double>(query[d]) * static_cast<double>(key[d]);
    scores.push_back(score);
  }
  return scores;
}

std::span<const float> AttentionStates::values(int64_t number) const {
  const auto count = static_cast<size_t>(keys * head_dim);
  const auto kv_head = static_cast<size_t>(number % heads / (heads / kv_heads));
  return layers.at(static_cast<size_t>(number / heads)).value.subspan(kv_head * count, count);
}

}  // namespace allot::evaluation
