#include "model/weight_storage.h"

#include "model/weights_source.h"

namespace allot::model {
namespace {

int64_t product_bytes(int64_t out_features, int64_t in_features, int64_t bytes_per_element, bool quantized) {
  if (quantized && quantizes(in_features)) return out_features * (in_features + int64_t{sizeof(float)});
  return out_features * in_features * bytes_per_element;
}

// Of the products of all layers.
int64_t layer_product_bytes(const ModelConfig& config, int64_t bytes_per_element, bool quantized) {
  const int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const int64_t q_width = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_width = int64_t{config.num_kv_heads} * config.head_dim;
  const auto bytes = [&](int64_t out_features, int64_t in_features) {
    return product_bytes(out_features, in_features, bytes_per_element, quantized);
  };
  return config.num_layers * (bytes(q_width + 2 * kv_width, hidden) + bytes(hidden, q_width) +
                              bytes(2 * intermediate, hidden) + bytes(hidden, intermediate));
}

int64_t logits_product_bytes(const ModelConfig& config, int64_t bytes_per_element, WeightStorage storage) {
  return product_bytes(config.vocab_size, config.hidden_size, bytes_per_element,
                       storage == WeightStorage::kFp8AndLogits);
}

}  // namespace

int64_t stored_weight_bytes(const ModelConfig& config, kernels::DType dtype, WeightStorage storage) {
  const int64_t element = kernels::size_of(dtype);
  const bool quantized = storage != WeightStorage::kDtype;
  int64_t bytes = weight_bytes(config, dtype) + layer_product_bytes(config, element, quantized) -
                  layer_product_bytes(config, element, false);
  if (storage != WeightStorage::kFp8AndLogits || !quantizes(config.hidden_size)) return bytes;
  bytes += logits_product_bytes(config, element, storage);
  if (!config.tie_word_embeddings) bytes -= logits_product_bytes(config, element, WeightStorage::kFp8);
  return bytes;
}

int64_t step_weight_bytes(const ModelConfig& config, int64_t bytes_per_element, WeightStorage storage) {
  return layer_product_bytes(config, bytes_per_element, storage != WeightStorage::kDtype) +
         logits_product_bytes(config, bytes_per_element, storage);
}

}  // namespace allot::model
