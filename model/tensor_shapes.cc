#include "model/tensor_shapes.h"

namespace allot::model {

std::map<std::string, std::vector<int64_t>> decoder_tensor_shapes(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_rows = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  std::map<std::string, std::vector<int64_t>> shapes;
  const auto linear = [&](const std::string& name, int64_t out_features, int64_t in_features, bool bias) {
    shapes[name + ".weight"] = {out_features, in_features};
    if (bias) shapes[name + ".bias"] = {out_features};
  };
  linear("model.embed_tokens", config.vocab_size, hidden, false);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
    shapes[prefix + "input_layernorm.weight"] = {hidden};
    linear(attention + "q_proj", q_rows, hidden, config.attention_bias);
    linear(attention + "k_proj", kv_rows, hidden, config.attention_bias);
    linear(attention + "v_proj", kv_rows, hidden, config.attention_bias);
    if (config.qk_norm) {
      shapes[attention + "q_norm.weight"] = {config.head_dim};
      shapes[attention + "k_norm.weight"] = {config.head_dim};
    }
    if (config.sub_norms) shapes[attention + "attn_sub_norm.weight"] = {q_rows};
    linear(attention + "o_proj", hidden, q_rows, config.attention_output_bias);
    shapes[prefix + "post_attention_layernorm.weight"] = {hidden};
    linear(mlp + "gate_proj", intermediate, hidden, config.mlp_bias);
    linear(mlp + "up_proj", intermediate, hidden, config.mlp_bias);
    if (config.sub_norms) shapes[mlp + "ffn_sub_norm.weight"] = {intermediate};
    linear(mlp + "down_proj", hidden, intermediate, config.mlp_bias);
  }
  shapes["model.norm.weight"] = {hidden};
  if (!config.tie_word_embeddings) linear("lm_head", config.vocab_size, hidden, false);
  return shapes;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + "]";
}

}  // namespace allot::model
