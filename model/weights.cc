#include "model/weights.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "base/error.h"
#include "model/parallel.h"

namespace allot::model {
namespace {

// Elements that a thread reads or generates at a time.
constexpr int64_t kPieceElements = int64_t{1} << 20;

class Loader {
 public:
  Loader(const WeightsSource& source, kernels::DType dtype, int threads, const ModelSplit& split)
      : source_(source), dtype_(dtype), threads_(threads), split_(split) {}

  // One buffer that holds the rank's parts of the named tensors one after the other.
  Buffer stack(std::initializer_list<std::string> names) const {
    struct Piece {
      const WeightTensor* tensor;
      int64_t first;
      int64_t at;  // element of the buffer
    };
    std::vector<WeightTensor> tensors;
    for (const std::string& name : names) tensors.push_back(part_of(source_.at(name), split_));
    std::vector<Piece> pieces;
    int64_t elements = 0;
    for (const WeightTensor& tensor : tensors) {
      for (int64_t first = 0; first < tensor.count(); first += kPieceElements) {
        pieces.push_back({&tensor, first, elements + first});
      }
      elements += tensor.count();
    }
    const int64_t size = kernels::size_of(dtype_);
    Buffer buffer(elements * size);
    run_parallel(static_cast<int64_t>(pieces.size()), threads_, [&](int64_t i, int) {
      const auto [tensor, first, at] = pieces[i];
      write_elements(*tensor, first, std::min(kPieceElements, tensor->count() - first), dtype_,
                     buffer.data() + at * size);
    });
    return buffer;
  }

  std::shared_ptr<const Buffer> shared(std::initializer_list<std::string> names) const {
    return std::make_shared<const Buffer>(stack(names));
  }

  // `name`.weight and, when asked for, `name`.bias.
  Linear linear(const std::string& name, int64_t out_features, int64_t in_features, bool bias) const {
    return {shared({name + ".weight"}),
            bias ? shared({name + ".bias"}) : nullptr,
            out_features,
            in_features,
            dtype_,
            threads_};
  }

  kernels::DType dtype() const { return dtype_; }
  int threads() const { return threads_; }

 private:
  const WeightsSource& source_;
  kernels::DType dtype_;
  int threads_;
  ModelSplit split_;
};

void require_memory(const ModelConfig& config, kernels::DType dtype) {
  const int64_t needed = weight_bytes(config, dtype);
  const int64_t available = available_memory_bytes();
  if (available == 0 || needed <= available) return;
  throw Error("the weights take " + std::to_string(needed) + " bytes as " + std::string(name(dtype)) +
              ", but " + std::to_string(available) + " bytes of memory are free" +
              (dtype == kernels::DType::kFloat32 ? "; dtype bfloat16 takes half"
                                                 : "; free some, or use another machine"));
}

LayerWeights load_layer(const Loader& load, const ModelConfig& config, int32_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_rows = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;

  const auto qkv_of = [&](const std::string& part) {
    return load.stack(
        {attention + "q_proj." + part, attention + "k_proj." + part, attention + "v_proj." + part});
  };
  return LayerWeights{
      .input_norm = load.stack({prefix + "input_layernorm.weight"}),
      .qkv = Linear(std::make_shared<const Buffer>(qkv_of("weight")), nullptr, q_rows + 2 * kv_rows, hidden,
                    load.dtype(), load.threads()),
      .qkv_bias = config.attention_bias ? qkv_of("bias") : Buffer(),
      .q_norm = config.qk_norm ? load.stack({attention + "q_norm.weight"}) : Buffer(),
      .k_norm = config.qk_norm ? load.stack({attention + "k_norm.weight"}) : Buffer(),
      .attention_sub_norm = config.sub_norms ? load.stack({attention + "attn_sub_norm.weight"}) : Buffer(),
      .attention_output = load.linear(attention + "o_proj", hidden, q_rows, config.attention_output_bias),
      .post_attention_norm = load.stack({prefix + "post_attention_layernorm.weight"}),
      .gate_up =
          Linear(load.shared({mlp + "gate_proj.weight", mlp + "up_proj.weight"}),
                 config.mlp_bias ? load.shared({mlp + "gate_proj.bias", mlp + "up_proj.bias"}) : nullptr,
                 2 * intermediate, hidden, load.dtype(), load.threads()),
      .mlp_sub_norm = config.sub_norms ? load.stack({mlp + "ffn_sub_norm.weight"}) : Buffer(),
      .down = load.linear(mlp + "down_proj", hidden, intermediate, config.mlp_bias),
  };
}

}  // namespace

DecoderWeights load_weights(const WeightsSource& source, const ModelConfig& config, kernels::DType dtype,
                            int threads, const ModelSplit& split) {
  require_memory(config, dtype);
  const Loader load(source, dtype, threads, split);
  auto embedding = load.shared({"model.embed_tokens.weight"});
  auto head = config.tie_word_embeddings ? embedding : load.shared({"lm_head.weight"});
  std::vector<LayerWeights> layers;
  for (int32_t layer = 0; layer < config.num_layers; ++layer)
    layers.push_back(load_layer(load, config, layer));
  return DecoderWeights{
      .embedding = std::move(embedding),
      .layers = std::move(layers),
      .final_norm = load.stack({"model.norm.weight"}),
      .output_head = Linear(std::move(head), nullptr, config.vocab_size, config.hidden_size, dtype, threads),
  };
}

}  // namespace allot::model
