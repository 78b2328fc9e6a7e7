// The weights of a decoder in the memory of a CUDA device: model/weights.h's tensors, fused in the same way.
// Shapes are those of the decoder's configuration, which is a rank's where the model is spread over devices.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention_cuda.h"
#include "kernels/estimator.h"
#include "model/cuda/device_memory.h"
#include "model/model_config.h"
#include "model/weight_storage.h"
#include "model/weights_source.h"

namespace allot::model::cuda {

// The weights of a product [out_features, in_features].
struct ProductWeights {
  DeviceBuffer elements;  // of the dtype, or e4m3
  DeviceBuffer scales;    // float32 [out_features] of e4m3 (kernels/fp8.h); else empty
};

struct DeviceLayerWeights {
  DeviceBuffer input_norm;          // [hidden_size]
  ProductWeights qkv;               // [(num_q_heads + 2 num_kv_heads) * head_dim, hidden_size]
  DeviceBuffer qkv_bias;            // [(num_q_heads + 2 num_kv_heads) * head_dim], empty when there is none
  DeviceBuffer q_norm;              // [head_dim], empty when the architecture has none
  DeviceBuffer k_norm;              // [head_dim], likewise
  DeviceBuffer attention_sub_norm;  // [num_q_heads * head_dim], empty when the architecture has none
  ProductWeights attention_output;  // [hidden_size, num_q_heads * head_dim]
  DeviceBuffer attention_output_bias;  // [hidden_size], empty when there is none
  DeviceBuffer post_attention_norm;    // [hidden_size]
  ProductWeights gate_up;              // [2 intermediate_size, hidden_size]: gate, then up
  DeviceBuffer gate_up_bias;           // [2 intermediate_size], empty when there is none
  DeviceBuffer mlp_sub_norm;           // [intermediate_size], empty when the architecture has none
  ProductWeights down;                 // [hidden_size, intermediate_size]
  DeviceBuffer down_bias;              // [hidden_size], empty when there is none
};

struct DeviceWeights {
  DeviceBuffer embedding;  // [vocab_size, hidden_size]
  std::vector<DeviceLayerWeights> layers;
  DeviceBuffer final_norm;  // [hidden_size]
  // The rank's rows of the vocabulary (vocabulary_part), [rows, hidden_size]; empty when tied to the
  // embedding, unless it is quantised.
  ProductWeights output_head;

  // Of all rows of the vocabulary where it is tied to the embedding.
  const std::byte* head() const {
    return output_head.elements.size() > 0 ? output_head.elements.data() : embedding.data();
  }
};

// How weights are kept, and which part of them.
struct WeightPlan {
  WeightStorage storage = WeightStorage::kDtype;
  ModelSplit split = {};
};

// Throws Error naming all of them when `needed` bytes of weights as `dtype`, and so stored, exceed the `free`
// of the device's `total` bytes.
void require_device_memory(int64_t needed, int64_t free, int64_t total, kernels::DType dtype,
                           WeightStorage storage = WeightStorage::kDtype);

// Throws Unsupported naming both when the device has no products of such weights.
void require_capability(WeightStorage storage, const kernels::DeviceLimits& device);

// Every tensor the configuration asks for, on the current device as `dtype`, rounded to nearest even: bytes
// of a checkpoint go through page-locked staging memory that up to `threads` threads fill while earlier
// parts are copied; random weights are generated on the device, with the same bits as on a CPU. Weights of 8
// bits are made of those of `dtype` on the device, a product at a time, for which it takes the memory of the
// largest such product, as `dtype`, while it runs. Throws the errors of WeightsSource::at, and Error with
// both numbers when the weights do not fit the device memory that is free. With a split, `config` is the
// rank's (config_of_rank), and weights are what the rank has of the source's.
DeviceWeights load_device_weights(const WeightsSource& source, const ModelConfig& config,
                                  kernels::DType dtype, int threads, const WeightPlan& plan = {});

}  // namespace allot::model::cuda
