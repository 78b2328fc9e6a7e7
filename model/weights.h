// The weights of a Llama or Qwen2 decoder, read from a checkpoint, converted to the engine's dtype and fused:
// q, k and v are one product, gate and up another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/estimator.h"
#include "model/buffer.h"
#include "model/linear.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace allot::model {

struct LayerWeights {
  Buffer input_norm;  // [hidden_size]
  Linear qkv;  // [(num_q_heads + 2 num_kv_heads) * head_dim, hidden_size]; without its bias, which the rotary
  Buffer qkv_bias;  // kernel adds: [(num_q_heads + 2 num_kv_heads) * head_dim], empty when there is none
  Linear attention_output;     // [hidden_size, num_q_heads * head_dim]
  Buffer post_attention_norm;  // [hidden_size]
  Linear gate_up;              // [2 intermediate_size, hidden_size]: gate, then up
  Linear down;                 // [hidden_size, intermediate_size]
};

struct DecoderWeights {
  std::shared_ptr<const Buffer> embedding;  // [vocab_size, hidden_size]
  std::vector<LayerWeights> layers;
  Buffer final_norm;   // [hidden_size]
  Linear output_head;  // [vocab_size, hidden_size]; the embedding itself when tied
};

// Reads every tensor the configuration asks for. Stored float32, bfloat16 and float16 become `dtype`, rounded
// to nearest even. Throws CorruptFile when a tensor is absent, Unsupported when its dtype or shape is not the
// architecture's, naming the tensor, what was found and what was expected.
DecoderWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, kernels::DType dtype);

}  // namespace allot::model
