// One forward pass of a decoder on a CUDA device, queued kernel by kernel: the CUDA counterpart of
// model/decoder.h. Every call only queues work on the stream and may be captured in a graph.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/attention_cuda.h"
#include "model/attention_plan.h"
#include "model/collective.h"
#include "model/cuda/dense_prefill.h"
#include "model/cuda/device_memory.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/matmul.h"
#include "model/cuda/pass_arrays.h"
#include "model/kv_cache.h"
#include "model/model_config.h"
#include "model/model_split.h"

namespace allot::model::cuda {

// How the sequences of a pass attend in a layer. Where keys are split, decoding reads their planes; in other
// passes a layer in which a sequence attends exactly restores the keys of those sequences first, and
// attention that samples takes every query of a pass for a sequence of its own (PassShape::apart), which is
// slow for long prompts.
enum class AttentionMode {
  kDense,    // every sequence exactly
  kSampled,  // every sequence by the estimator
  kMixed,    // some of each
};

// A pass as the device runs it: its shape, and what kernels must know of the content of its arrays.
struct PassPlan {
  PassShape shape;
  bool decode = false;               // row b is the only new token of sequence b, and its token is chosen
  int64_t queries = 0;               // rows that are not padding; in decode all rows
  int32_t max_queries = 1;           // most new tokens of a sequence
  int32_t max_length = 0;            // no sequence is longer after the pass
  int32_t max_budget = 0;            // no budget is larger
  int64_t total_keys = 0;            // sum of the lengths; not of decode steps
  std::vector<AttentionMode> modes;  // [num_layers]
  // On the device: AttentionParams::rows_read of all layers, [sequences], or [apart] where queries are that.
  int64_t* rows_read = nullptr;

  // Whether the sequences of a layer attend like this somewhere in the pass.
  bool has(AttentionMode mode) const { return std::ranges::find(modes, mode) != modes.end(); }
  friend auto operator<=>(const PassPlan&, const PassPlan&) = default;
};

class CudaDecoder {
 public:
  // The largest pass that is allowed; memory for it is allocated at once.
  struct Limits {
    int64_t rows = 0;
    int64_t outputs = 0;
  };

  // Allocates on the current device. `dtype` is bfloat16 or float16. `config` is that of the rank
  // (config_of_rank), and `weights` are its own.
  CudaDecoder(const ModelConfig& config, DeviceWeights weights, kernels::DType dtype, const Limits& limits,
              const kernels::DeviceLimits& device, const ModelRank& rank);

  // Bytes of workspace that attention of a plan needs.
  int64_t attention_bytes(const PassPlan& plan, const kernels::AttentionMethod& method) const;

  // Allocates the cache.
  void make_cache(const KvCacheShape& shape);
  const KvCacheShape& cache_shape() const { return cache_shape_; }
  // Fills every page with finite numbers, for benchmarks that skip the prompt.
  void fill_cache_at_random(cudaStream_t stream);
  // Grows the attention workspace; true when its address changed, so that captured graphs are stale. Waits
  // for the stream when it does.
  bool reserve_attention(int64_t bytes, cudaStream_t stream);

  // From now on the library computes exact attention of several new tokens a sequence; it must outlive this.
  // Without it, kernels that are meant for decode do.
  void use(const DensePrefill& library) { dense_prefill_ = &library; }
  // Grows the memory that the library's attention needs for `keys` keys. Waits for the stream when it does.
  void reserve_dense_prefill(int64_t keys, cudaStream_t stream);

  // Measures the products of a decode step of `rows` rows once. Waits for the stream.
  void tune(int64_t rows, cudaStream_t stream);

  // Queues the pass up to the logits of its output rows, the first limits().outputs of them.
  void queue(const PassPlan& plan, const PassArrays& arrays, const kernels::AttentionMethod& method,
             cudaStream_t stream);
  // The same up to the final norm: states() has the hidden states of its output rows.
  void queue_states(const PassPlan& plan, const PassArrays& arrays, const kernels::AttentionMethod& method,
                    cudaStream_t stream);
  // [outputs, hidden_size] in the decoder's dtype.
  const std::byte* states() const { return hidden_.data(); }
  int64_t state_bytes() const { return config_.hidden_size * kernels::size_of(dtype_); }
  // Most rows of project_states().
  static constexpr int64_t kMaxProjectedRows = 1024;
  // Queues the logits of `rows` hidden states, as states() has them, to `out` [rows, logits_stride()].
  void project_states(const void* states, int64_t rows, void* out, cudaStream_t stream);

  // Queues the logits of output rows first .. first + count of the last pass in place of those it has.
  void project_logits(int64_t first, int64_t count, cudaStream_t stream);
  const Limits& limits() const { return limits_; }

  // [at most limits().outputs, logits_stride()] in the decoder's dtype.
  const void* logits() const { return logits_.data(); }
  int64_t logits_stride() const { return logits_stride_; }

  // Waits for the stream; throws InvalidArgument naming the fault when attention found one.
  void check(cudaStream_t stream) const;
  // Where attention keeps its fault, for those who do not wait (attention_fault_cuda.h).
  kernels::CudaWorkspace attention_workspace() const {
    return {attention_workspace_.data(), static_cast<size_t>(attention_workspace_.size())};
  }

 private:
  // One launch of attention, or the first of several, which are of as many queries but for the last.
  struct AttentionLaunch {
    kernels::AttentionParams params;
    kernels::LaunchBounds bounds;
  };
  AttentionLaunch attention_launch(const PassPlan& plan, AttentionMode mode,
                                   const kernels::AttentionMethod& method) const;
  // Whether attention of a mode reads the planes of split keys.
  bool reads_planes(const PassPlan& plan, AttentionMode mode) const {
    return splits_keys() && (plan.decode || mode != AttentionMode::kDense);
  }
  // Queries of a launch over split keys, each of which is a sequence.
  int64_t queries_together(const PassPlan& plan) const;
  bool splits_keys() const { return cache_shape_.keys != kernels::KeyFormat::kSixteenBits; }
  // 16-bit keys, or high planes.
  std::byte* keys(int32_t layer) const { return cache_.data() + cache_layer_bytes_ * layer; }
  // Null where keys have none.
  int8_t* low_planes(int32_t layer) const;
  std::byte* values(int32_t layer) const { return keys(layer) + value_offset_; }
  float* value_norms(int32_t layer) const;
  // What kernels of 16-bit keys read: the layer's, or those that restore_keys() has left; null where planes
  // are read instead.
  const std::byte* sixteen_bit_keys(int32_t layer, const PassPlan& plan) const {
    if (!splits_keys()) return keys(layer);
    return plan.decode ? nullptr : restored_keys_.data();
  }
  void restore_keys(int32_t layer, const PassPlan& plan, const PassArrays& arrays, cudaStream_t stream) const;
  struct NormStep {
    const DeviceBuffer& weight;
    int64_t rows = 0;
    bool adds_hidden = false;               // hidden, summed over the ranks, is added to the residual first
    bool int8_grid = false;                 // RmsNormParams::int8_grid
    kernels::QuantizedRows quantized = {};  // where the result goes instead of hidden, unless null
  };
  void normalise(const NormStep& step, cudaStream_t stream);
  // Norms rows of `width` elements in place, for the next product of a layer.
  void normalise_rows(const DeviceBuffer& weight, int64_t rows, int32_t width, const DeviceBuffer& data,
                      cudaStream_t stream) const;
  // Inputs of a layer's products are on the int8 grid.
  bool int8_inputs() const { return config_.ternary.has_value(); }
  // A layer's matrix products.
  enum class LayerProduct { kQkv, kAttentionOutput, kGateUp, kDown };
  // That of gate and up activates, too, unless the activation leaves 8 bits for the next one.
  MatmulParams product(LayerProduct which, int32_t layer, int64_t rows);
  // Where the activation leaves its result as 8 bits; null elements where it leaves 16.
  kernels::QuantizedRows input_of_down(int32_t layer, int64_t rows);
  // The product with what becomes its input: as 8 bits, if the product takes such and what makes it can.
  struct Fed {
    MatmulParams product;
    kernels::QuantizedRows input;  // null elements: in 16 bits, as ever
  };
  Fed fed(LayerProduct which, int32_t layer, int64_t rows);
  // Of the rank's part of the vocabulary.
  MatmulParams logits_product(const void* states, int64_t rows, void* out) const;
  // Logits of at most limits().outputs states, computed by all ranks.
  void gather_logits(const std::byte* states, int64_t rows, std::byte* out, cudaStream_t stream);
  void attend(int32_t layer, const PassPlan& plan, const PassArrays& arrays,
              const kernels::AttentionMethod& method, cudaStream_t stream);
  void attend_densely(int32_t layer, const PassPlan& plan, const PassArrays& arrays, cudaStream_t stream);
  void run_layer(int32_t layer, const PassPlan& plan, const PassArrays& arrays,
                 const kernels::AttentionMethod& method, cudaStream_t stream);
  void keep_rows(const PassArrays& arrays, int64_t outputs, int64_t rows, cudaStream_t stream);

  ModelConfig config_;
  DeviceWeights weights_;
  kernels::DType dtype_;
  kernels::DeviceLimits device_;
  Limits limits_;
  ModelRank rank_;
  VocabularyPart vocabulary_;
  int32_t q_width_;    // num_q_heads * head_dim
  int32_t qkv_width_;  // (num_q_heads + 2 num_kv_heads) * head_dim
  int64_t logits_stride_;
  Matmul matmul_;

  DeviceBuffer cos_;  // [max positions, head_dim / 2]
  DeviceBuffer sin_;
  DeviceBuffer residual_;   // [rows, hidden_size]
  DeviceBuffer hidden_;     // [rows, hidden_size]
  DeviceBuffer qkv_;        // [rows, qkv_width]
  DeviceBuffer attended_;   // [rows, q_width]
  DeviceBuffer gate_up_;    // [rows, 2 intermediate_size]
  DeviceBuffer activated_;  // [rows, intermediate_size]
  DeviceBuffer kept_;       // [rows, the larger of hidden_size and q_width] while they are moved to the front
  DeviceBuffer logits_;     // [outputs, logits_stride]
  // Of a model over several ranks: logits of the rank's part of the vocabulary, and of all.
  DeviceBuffer logits_part_;   // [outputs, vocabulary_.stride]
  DeviceBuffer logits_parts_;  // [ranks, outputs, vocabulary_.stride]
  DeviceBuffer attention_workspace_;
  const DensePrefill* dense_prefill_ = nullptr;
  DeviceBuffer prompt_keys_;    // [keys, num_kv_heads, head_dim] for the library's attention
  DeviceBuffer prompt_values_;  // the same
  KvCacheShape cache_shape_;
  DeviceBuffer cache_;
  DeviceBuffer norms_;             // of the values, float32 [num_layers, num_pages, num_kv_heads, page_size]
  int64_t cache_layer_bytes_ = 0;  // of keys and values
  int64_t value_offset_ = 0;       // of a layer's values behind its keys
  DeviceBuffer restored_keys_;     // [num_pages, num_kv_heads, page_size, head_dim] of the layer at work
  DeviceBuffer query_planes_;      // int8 [rows, num_q_heads, 2, head_dim]
  DeviceBuffer query_units_;       // float32 [rows, num_q_heads]
};

}  // namespace allot::model::cuda
