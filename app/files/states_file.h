// A safetensors file with what the last token of a text attended with: for every layer i from 0 on
// `layers.i.query` [heads, head_dim], times the scale of its scores, `layers.i.key` and `layers.i.value`
// [kv_heads, keys, head_dim], float32, as `allot_attention.recording` writes it.
#pragma once

#include <filesystem>

#include "evaluation/attention_states.h"
#include "model/safetensors.h"

namespace allot::app {

class StatesFile {
 public:
  // Throws what model::SafetensorsFile throws, and CorruptFile naming tensor and shape where the file has
  // other tensors.
  explicit StatesFile(const std::filesystem::path& path);
  // As long as this lives.
  const evaluation::AttentionStates& states() const { return states_; }

 private:
  model::SafetensorsFile file_;
  evaluation::AttentionStates states_;
};

}  // namespace allot::app
