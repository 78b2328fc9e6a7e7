// Tables of the rotary position embedding, computed as Hugging Face transformers computes them (float32
// angles), so that logits agree at every position. Torch-free.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_config.h"

namespace allot::model {

// theta^(-2i / head_dim) for i < head_dim / 2, with Llama 3 scaling where the configuration has it:
// frequencies whose wavelength is beyond the original context are divided by `factor`, a band below it is
// blended ("The Llama 3 Herd of Models", and transformers' rope type "llama3"). [head_dim / 2]
std::vector<float> rope_frequencies(const ModelConfig& config);

// cos and sin of position * frequency, grown on demand.
class RopeTable {
 public:
  explicit RopeTable(const ModelConfig& config);

  // Makes rows 0 .. positions - 1 available. Invalidates the pointers below.
  void extend_to(int64_t positions);
  int64_t rows() const { return rows_; }
  const float* cos() const { return cos_.data(); }  // [rows, head_dim / 2]
  const float* sin() const { return sin_.data(); }  // [rows, head_dim / 2]

 private:
  std::vector<float> frequencies_;
  int64_t rows_ = 0;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

}  // namespace allot::model
