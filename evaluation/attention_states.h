// What the last token of a text attended with in every layer of a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace allot::evaluation {

struct AttentionStates {
  struct Layer {
    std::span<const float> query;       // [heads, head_dim], times the scale of the scores
    std::span<const float> key, value;  // [kv_heads, keys, head_dim]
  };
  std::vector<Layer> layers;
  int64_t heads = 0;     // of a layer
  int64_t kv_heads = 0;  // divides heads
  int64_t keys = 0;
  int64_t head_dim = 0;

  int64_t all_heads() const { return static_cast<int64_t>(layers.size()) * heads; }
  // Of head `number` of all, layer after layer: scores of the keys, and values [keys, head_dim].
  std::vector<double> scores(int64_t number) const;
  std::span<const float> values(int64_t number) const;
};

}  // namespace allot::evaluation
