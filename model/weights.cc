#include "model/weights.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <initializer_list>
#include <numeric>
#include <span>
#include <string>

#include "base/error.h"
#include "kernels/bfloat16.h"

namespace allot::model {
namespace {

float from_float16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t magnitude = bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return std::bit_cast<float>(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // A half is a float whose exponent is 112 too small; multiplying repairs subnormals, too.
  return std::bit_cast<float>(sign |
                              std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

std::string text(std::span<const int64_t> shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + "]";
}

// Writes `tensor` to `out` as `dtype`.
void convert(const TensorView& tensor, kernels::DType dtype, std::byte* out) {
  const bool to_float32 = dtype == kernels::DType::kFloat32;
  const bool same = to_float32 ? tensor.dtype == TensorDType::kF32 : tensor.dtype == TensorDType::kBF16;
  if (same) {
    std::memcpy(out, tensor.bytes.data(), tensor.bytes.size());
    return;
  }
  const int64_t size = tensor.dtype == TensorDType::kF32 ? 4 : 2;
  const int64_t count = static_cast<int64_t>(tensor.bytes.size()) / size;
  for (int64_t i = 0; i < count; ++i) {
    // The file's bytes need not be aligned for their type.
    uint32_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + i * size, size);
    const float value = tensor.dtype == TensorDType::kF32 ? std::bit_cast<float>(bits)
                        : tensor.dtype == TensorDType::kBF16
                            ? kernels::float_from_bfloat16(static_cast<uint16_t>(bits))
                            : from_float16(static_cast<uint16_t>(bits));
    if (to_float32) {
      std::memcpy(out + 4 * i, &value, 4);
    } else {
      const uint16_t rounded = kernels::bfloat16_from_float(value);
      std::memcpy(out + 2 * i, &rounded, 2);
    }
  }
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, kernels::DType dtype) : checkpoint_(checkpoint), dtype_(dtype) {}

  // The named tensors under one another in one buffer: matrices of `columns` columns, or vectors. lengths[i]
  // is the first dimension of tensor i.
  Buffer stack(std::initializer_list<std::string> names, std::initializer_list<int64_t> lengths,
               std::optional<int64_t> columns = std::nullopt) const {
    const int64_t row_bytes = columns.value_or(1) * kernels::size_of(dtype_);
    Buffer buffer(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) * row_bytes);
    std::byte* out = buffer.data();
    for (size_t i = 0; i < names.size(); ++i) {
      std::vector<int64_t> shape{lengths.begin()[i]};
      if (columns) shape.push_back(*columns);
      convert(checked(names.begin()[i], shape), dtype_, out);
      out += shape[0] * row_bytes;
    }
    return buffer;
  }

  std::shared_ptr<const Buffer> shared_rows(const std::string& name, int64_t count, int64_t columns) const {
    return std::make_shared<const Buffer>(stack({name}, {count}, columns));
  }

  // `name`.weight and, when asked for, `name`.bias.
  Linear linear(const std::string& name, int64_t out_features, int64_t in_features, bool bias) const {
    auto weight = shared_rows(name + ".weight", out_features, in_features);
    auto added = bias ? std::make_shared<const Buffer>(stack({name + ".bias"}, {out_features})) : nullptr;
    return Linear(std::move(weight), std::move(added), out_features, in_features, dtype_);
  }

  kernels::DType dtype() const { return dtype_; }

 private:
  const TensorView& checked(const std::string& name, std::span<const int64_t> shape) const {
    const TensorView& tensor = checkpoint_.at(name);
    if (!std::equal(tensor.shape.begin(), tensor.shape.end(), shape.begin(), shape.end())) {
      throw Unsupported("tensor " + name + " has shape " + text(tensor.shape) + ", expected " + text(shape) +
                        " from config.json; config.json and weights belong to different models");
    }
    if (tensor.dtype != TensorDType::kF32 && tensor.dtype != TensorDType::kBF16 &&
        tensor.dtype != TensorDType::kF16) {
      throw Unsupported("tensor " + name +
                        " is stored quantised or as integers, expected F32, BF16 or F16; convert the "
                        "checkpoint to one of them");
    }
    return tensor;
  }

  const Checkpoint& checkpoint_;
  kernels::DType dtype_;
};

LayerWeights load_layer(const Loader& load, const ModelConfig& config, int32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_rows = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;

  auto qkv = std::make_shared<const Buffer>(
      load.stack({attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"},
                 {q_rows, kv_rows, kv_rows}, hidden));
  Buffer qkv_bias;
  if (config.attention_bias) {
    qkv_bias = load.stack({attention + "q_proj.bias", attention + "k_proj.bias", attention + "v_proj.bias"},
                          {q_rows, kv_rows, kv_rows});
  }
  auto gate_up = std::make_shared<const Buffer>(
      load.stack({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, {intermediate, intermediate}, hidden));
  std::shared_ptr<const Buffer> gate_up_bias;
  if (config.mlp_bias) {
    gate_up_bias = std::make_shared<const Buffer>(
        load.stack({mlp + "gate_proj.bias", mlp + "up_proj.bias"}, {intermediate, intermediate}));
  }

  return LayerWeights{
      .input_norm = load.stack({prefix + "input_layernorm.weight"}, {hidden}),
      .qkv = Linear(std::move(qkv), nullptr, q_rows + 2 * kv_rows, hidden, load.dtype()),
      .qkv_bias = std::move(qkv_bias),
      .attention_output = load.linear(attention + "o_proj", hidden, q_rows, config.attention_output_bias),
      .post_attention_norm = load.stack({prefix + "post_attention_layernorm.weight"}, {hidden}),
      .gate_up = Linear(std::move(gate_up), std::move(gate_up_bias), 2 * intermediate, hidden, load.dtype()),
      .down = load.linear(mlp + "down_proj", hidden, intermediate, config.mlp_bias),
  };
}

}  // namespace

DecoderWeights load_weights(const Checkpoint& checkpoint, const ModelConfig& config, kernels::DType dtype) {
  const Loader load(checkpoint, dtype);
  const int64_t vocab = config.vocab_size, hidden = config.hidden_size;
  auto embedding = load.shared_rows("model.embed_tokens.weight", vocab, hidden);
  auto head = config.tie_word_embeddings ? embedding : load.shared_rows("lm_head.weight", vocab, hidden);
  std::vector<LayerWeights> layers;
  for (int32_t layer = 0; layer < config.num_layers; ++layer)
    layers.push_back(load_layer(load, config, layer));
  return DecoderWeights{
      .embedding = std::move(embedding),
      .layers = std::move(layers),
      .final_norm = load.stack({"model.norm.weight"}, {hidden}),
      .output_head = Linear(std::move(head), nullptr, vocab, hidden, dtype),
  };
}

}  // namespace allot::model
