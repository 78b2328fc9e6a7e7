#include "model/cuda/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/round_up.h"
#include "kernels/rows_cuda.h"
#include "model/cuda/random_fill.h"
#include "model/rope.h"

namespace allot::model::cuda {
namespace {

DeviceBuffer copy_to_device(const float* values, int64_t count) {
  DeviceBuffer buffer(count * static_cast<int64_t>(sizeof(float)));
  // cudaMemcpy from pageable memory returns before its last bytes are on the device, and no stream of ours
  // waits for the default stream.
  const Stream stream;
  check(cudaMemcpyAsync(buffer.data(), values, buffer.size(), cudaMemcpyHostToDevice, stream.get()),
        "cudaMemcpyAsync");
  stream.synchronize();
  return buffer;
}

int32_t qkv_width(const ModelConfig& config) {
  return (config.num_q_heads + 2 * config.num_kv_heads) * config.head_dim;
}

// Rows of logits begin at multiples of 16 bytes, which the token sampler reads at a time.
int64_t logits_stride(const ModelConfig& config) {
  return round_up(config.vocab_size, 8);
}

bool is_quantized(const DeviceWeights& weights) {
  const auto quantized = [](const ProductWeights& product) { return product.scales.size() > 0; };
  return quantized(weights.output_head) ||
         std::ranges::any_of(weights.layers, [&](const DeviceLayerWeights& layer) {
           return quantized(layer.qkv) || quantized(layer.attention_output) || quantized(layer.gate_up) ||
                  quantized(layer.down);
         });
}

}  // namespace

CudaDecoder::CudaDecoder(const ModelConfig& config, DeviceWeights weights, kernels::DType dtype,
                         const Limits& limits, const kernels::DeviceLimits& device, const ModelRank& rank)
    : config_(config),
      weights_(std::move(weights)),
      dtype_(dtype),
      device_(device),
      limits_(limits),
      rank_(rank),
      vocabulary_(vocabulary_part(config.vocab_size, rank.split)),
      q_width_(config.num_q_heads * config.head_dim),
      qkv_width_(qkv_width(config)),
      logits_stride_(cuda::logits_stride(config)) {
  RopeTable rope(config);
  rope.extend_to(config.max_position_embeddings);
  const int64_t entries = rope.rows() * config.head_dim / 2;
  cos_ = copy_to_device(rope.cos(), entries);
  sin_ = copy_to_device(rope.sin(), entries);
  const int64_t size = kernels::size_of(dtype);
  residual_ = DeviceBuffer(limits.rows * config.hidden_size * size);
  hidden_ = DeviceBuffer(limits.rows * config.hidden_size * size);
  qkv_ = DeviceBuffer(limits.rows * qkv_width_ * size);
  attended_ = DeviceBuffer(limits.rows * q_width_ * size);
  gate_up_ = DeviceBuffer(limits.rows * 2 * config.intermediate_size * size);
  activated_ = DeviceBuffer(limits.rows * config.intermediate_size * size);
  kept_ = DeviceBuffer(limits.rows * std::max(config.hidden_size, q_width_) * size);
  logits_ = DeviceBuffer(limits.outputs * logits_stride_ * size);
  if (rank_.collective != nullptr) {
    const int64_t bytes = limits.outputs * vocabulary_.stride * size;
    logits_part_ = DeviceBuffer(bytes);
    logits_parts_ = DeviceBuffer(rank_.split.ranks * bytes);
  }
  if (is_quantized(weights_)) {
    matmul_.reserve_fp8(std::max({limits.rows, limits.outputs, kMaxProjectedRows}),
                        std::max({config.hidden_size, q_width_, config.intermediate_size}));
  }
}

void CudaDecoder::make_cache(const KvCacheShape& shape) {
  cache_shape_ = shape;
  value_offset_ = layer_key_bytes(shape).all();
  cache_layer_bytes_ = value_offset_ + layer_value_bytes(shape);
  cache_ = DeviceBuffer(shape.num_layers * cache_layer_bytes_);
  norms_ = DeviceBuffer(shape.num_layers * layer_vectors(shape) * int64_t{sizeof(float)});
  if (!splits_keys()) return;
  restored_keys_ = DeviceBuffer(layer_value_bytes(shape));
  query_planes_ = DeviceBuffer(limits_.rows * 2 * q_width_);
  query_units_ = DeviceBuffer(limits_.rows * config_.num_q_heads * int64_t{sizeof(float)});
}

int8_t* CudaDecoder::low_planes(int32_t layer) const {
  const LayerKeyBytes bytes = layer_key_bytes(cache_shape_);
  return bytes.low == 0 ? nullptr : reinterpret_cast<int8_t*>(keys(layer) + bytes.first);
}

float* CudaDecoder::value_norms(int32_t layer) const {
  return norms_.as<float>() + layer_vectors(cache_shape_) * layer;
}

void CudaDecoder::fill_cache_at_random(cudaStream_t stream) {
  fill_random_cuda(random_tensor(/*seed=*/0, "kv_cache", 1), 0,
                   cache_.size() / static_cast<int64_t>(kernels::size_of(dtype_)), dtype_, cache_.data(),
                   stream);
  if (splits_keys()) {
    // Units are no random bits, which may be those of infinity.
    const auto block = static_cast<size_t>(kernels::split_block_bytes(cache_shape_.head_dim));
    const int64_t units = kernels::split_unit_offset(cache_shape_.head_dim, 0);
    for (int32_t layer = 0; layer < cache_shape_.num_layers; ++layer) {
      cuda::check(cudaMemset2DAsync(
                      keys(layer) + units, block, 0x3C, block - static_cast<size_t>(units),
                      static_cast<size_t>(layer_vectors(cache_shape_) / kernels::kSplitBlockKeys), stream),
                  "cudaMemset2DAsync");
    }
  }
  // Some length for every value, 0.75.
  cuda::check(cudaMemsetAsync(norms_.data(), 0x3F, norms_.size(), stream), "cudaMemsetAsync");
}

int64_t CudaDecoder::queries_together(const PassPlan& plan) const {
  constexpr int64_t kMost = 1920;  // that leave a kernel all its warps
  if (plan.shape.apart == 0) return std::min(plan.queries, kMost);
  // Workspace of a query, mostly: 2 bytes a key and query head, as much again for statistics and sums of
  // parts, and tables of the rows that its groups have read.
  const int64_t bytes =
      int64_t{plan.max_length} * (int64_t{4} * config_.num_q_heads +
                                  (plan.rows_read == nullptr ? 0 : int64_t{16} * config_.num_kv_heads));
  constexpr int64_t kBytes = int64_t{256} << 20;
  return std::min(plan.shape.apart, std::clamp<int64_t>(kBytes / bytes, 16, kMost));
}

CudaDecoder::AttentionLaunch CudaDecoder::attention_launch(const PassPlan& plan, AttentionMode mode,
                                                           const kernels::AttentionMethod& method) const {
  const bool samples = mode != AttentionMode::kDense;
  const bool by_planes = reads_planes(plan, mode);
  const kernels::LaunchBounds bounds{.num_queries = by_planes ? queries_together(plan) : plan.queries,
                                     .max_queries = by_planes ? 1 : plan.max_queries,
                                     .max_length = plan.max_length,
                                     .max_budget = plan.max_budget,
                                     .any_dense = mode == AttentionMode::kMixed,
                                     .settled_keys = plan.decode};
  kernels::AttentionParams params{.batch = by_planes ? bounds.num_queries : plan.shape.sequences,
                                  .num_q_heads = config_.num_q_heads,
                                  .num_kv_heads = config_.num_kv_heads,
                                  .head_dim = config_.head_dim,
                                  .page_size = cache_shape_.page_size,
                                  .max_pages = plan.shape.max_pages,
                                  .num_pages = cache_shape_.num_pages,
                                  .dtype = dtype_,
                                  .scale = 1 / std::sqrt(static_cast<float>(config_.head_dim)),
                                  .query = qkv_.data(),
                                  .query_stride = qkv_width_,
                                  .key_pages = sixteen_bit_keys(0, plan),
                                  .value_pages = values(0),
                                  .value_norms = value_norms(0),
                                  .out = attended_.data(),
                                  .first_head = rank_.split.rank * config_.num_q_heads,
                                  .rows_read = plan.rows_read};
  if (samples) params.method = method;
  if (by_planes) {
    params.split = {.high = keys(0),
                    .low = low_planes(0),
                    .query = query_planes_.as<int8_t>(),
                    .query_units = query_units_.as<float>()};
  }
  return {params, bounds};
}

int64_t CudaDecoder::attention_bytes(const PassPlan& plan, const kernels::AttentionMethod& method) const {
  size_t bytes = 0;
  for (const AttentionMode mode : {AttentionMode::kDense, AttentionMode::kSampled, AttentionMode::kMixed}) {
    if (!plan.has(mode)) continue;
    const AttentionLaunch launch = attention_launch(plan, mode, method);
    bytes = std::max(bytes, kernels::cuda_workspace_bytes(launch.params, launch.bounds, device_));
  }
  return static_cast<int64_t>(bytes);
}

bool CudaDecoder::reserve_attention(int64_t bytes, cudaStream_t stream) {
  if (bytes <= attention_workspace_.size()) return false;
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  attention_workspace_ = DeviceBuffer();  // freed first: old and new together may not fit
  attention_workspace_ = DeviceBuffer(bytes);
  kernels::reset_cuda_workspace(attention_workspace(), stream);
  return true;
}

void CudaDecoder::check(cudaStream_t stream) const {
  kernels::check_cuda(attention_workspace(), stream);
}

// hidden = norm(residual), preceded by residual += hidden when asked for.
void CudaDecoder::normalise(const NormStep& step, cudaStream_t stream) {
  const kernels::RmsNormParams params{.rows = step.rows,
                                      .width = config_.hidden_size,
                                      .dtype = dtype_,
                                      .epsilon = static_cast<float>(config_.rms_norm_eps),
                                      .input = step.adds_hidden ? hidden_.data() : residual_.data(),
                                      .residual = step.adds_hidden ? residual_.data() : nullptr,
                                      .weight = step.weight.data(),
                                      .out = hidden_.data(),
                                      .int8_grid = step.int8_grid};
  if (step.adds_hidden && rank_.collective != nullptr) {
    // What is added is a product of which each rank has a part.
    if (step.quantized.elements == nullptr && rank_.collective->sum_and_normalise(params, stream)) return;
    rank_.collective->sum(hidden_.data(), step.rows * config_.hidden_size, dtype_, stream);
  }
  if (step.quantized.elements != nullptr) {
    kernels::rms_norm_quantized_cuda(params, step.quantized, device_, stream);
  } else {
    kernels::rms_norm_cuda(params, device_, stream);
  }
}

void CudaDecoder::normalise_rows(const DeviceBuffer& weight, int64_t rows, int32_t width,
                                 const DeviceBuffer& data, cudaStream_t stream) const {
  kernels::rms_norm_cuda({.rows = rows,
                          .width = width,
                          .dtype = dtype_,
                          .epsilon = static_cast<float>(config_.rms_norm_eps),
                          .input = data.data(),
                          .weight = weight.data(),
                          .out = data.data(),
                          .int8_grid = int8_inputs()},
                         device_, stream);
}

MatmulParams CudaDecoder::product(LayerProduct which, int32_t layer, int64_t rows) {
  const DeviceLayerWeights& weights = weights_.layers[layer];
  const auto params = [&](const ProductWeights& weight, const DeviceBuffer* bias, int32_t out_features,
                          int32_t in_features, const DeviceBuffer& input, const DeviceBuffer& out) {
    return MatmulParams{.rows = rows,
                        .out_features = out_features,
                        .in_features = in_features,
                        .dtype = dtype_,
                        .input = input.data(),
                        .weight = weight.elements.data(),
                        .weight_scales = weight.scales.as<float>(),
                        .bias = bias == nullptr ? nullptr : bias->data(),
                        .out = out.data(),
                        .out_stride = out_features};
  };
  const int32_t hidden = config_.hidden_size, intermediate = config_.intermediate_size;
  switch (which) {
    case LayerProduct::kQkv:  // the rotation adds its bias
      return params(weights.qkv, nullptr, qkv_width_, hidden, hidden_, qkv_);
    case LayerProduct::kAttentionOutput:
      return params(weights.attention_output, &weights.attention_output_bias, hidden, q_width_, attended_,
                    hidden_);
    case LayerProduct::kGateUp: {
      MatmulParams gate_up =
          params(weights.gate_up, &weights.gate_up_bias, 2 * intermediate, hidden, hidden_, gate_up_);
      gate_up.activation = config_.activation;
      if (input_of_down(layer, rows).elements == nullptr) gate_up.activated = activated_.data();
      return gate_up;
    }
    case LayerProduct::kDown:
      break;
  }
  return params(weights.down, &weights.down_bias, hidden, intermediate, activated_, hidden_);
}

kernels::QuantizedRows CudaDecoder::input_of_down(int32_t layer, int64_t rows) {
  if (int8_inputs() || config_.sub_norms) return {};
  return matmul_.quantized_input(product(LayerProduct::kDown, layer, rows));
}

CudaDecoder::Fed CudaDecoder::fed(LayerProduct which, int32_t layer, int64_t rows) {
  Fed fed{.product = product(which, layer, rows), .input = {}};
  if (which == LayerProduct::kDown) {
    fed.input = input_of_down(layer, rows);
  } else if (!int8_inputs()) {
    fed.input = matmul_.quantized_input(fed.product);
  }
  fed.product.quantized = fed.input.elements != nullptr;
  return fed;
}

MatmulParams CudaDecoder::logits_product(const void* states, int64_t rows, void* out) const {
  const std::byte* head = weights_.head();
  if (head == weights_.embedding.data()) head += vocabulary_.first * state_bytes();
  return {.rows = rows,
          .out_features = vocabulary_.count,
          .in_features = config_.hidden_size,
          .dtype = dtype_,
          .input = states,
          .weight = head,
          .weight_scales = weights_.output_head.scales.as<float>(),
          .out = out,
          .out_stride = rank_.collective == nullptr ? logits_stride_ : vocabulary_.stride};
}

void CudaDecoder::tune(int64_t rows, cudaStream_t stream) {
  // What becomes of gate and up depends on what was chosen for `down`.
  for (const LayerProduct which :
       {LayerProduct::kQkv, LayerProduct::kAttentionOutput, LayerProduct::kDown, LayerProduct::kGateUp}) {
    matmul_.tune(product(which, 0, rows), stream);
  }
  if (vocabulary_.count > 0) {
    const DeviceBuffer& out = rank_.collective == nullptr ? logits_ : logits_part_;
    matmul_.tune(logits_product(hidden_.data(), rows, out.data()), stream);
  }
}

void CudaDecoder::attend(int32_t layer, const PassPlan& plan, const PassArrays& arrays,
                         const kernels::AttentionMethod& method, cudaStream_t stream) {
  auto [params, bounds] = attention_launch(plan, plan.modes[layer], method);
  params.key_pages = sixteen_bit_keys(layer, plan);
  params.value_pages = values(layer);
  params.value_norms = value_norms(layer);
  params.page_table = arrays.page_table;
  params.query_start = arrays.query_start;
  params.lengths = arrays.lengths;
  params.budgets = arrays.budgets + layer * plan.shape.sequences;
  params.draws = arrays.draws;
  params.layer = static_cast<uint32_t>(layer);
  if (params.split.high == nullptr)
    return kernels::attend_cuda(params, bounds, device_, attention_workspace(), stream);
  params.split.high = keys(layer);
  params.split.low = low_planes(layer);
  // Every query is a sequence: all sequences have one, or those of prompts are taken for that.
  const bool apart = plan.shape.apart > 0;
  const int64_t all = apart ? plan.shape.apart : plan.queries;
  if (apart) {
    params.page_table = arrays.queries.page_table;
    params.lengths = arrays.queries.lengths;
    params.budgets = arrays.queries.budgets + layer * plan.shape.apart;
    params.draws = arrays.queries.draws;
  }
  const int64_t together = bounds.num_queries;
  for (int64_t first = 0; first < all; first += together) {
    kernels::AttentionParams some = params;
    some.batch = bounds.num_queries = std::min(together, all - first);
    some.query = qkv_.data() + first * qkv_width_ * kernels::size_of(dtype_);
    some.split.query += first * 2 * q_width_;
    some.split.query_units += first * config_.num_q_heads;
    some.lengths += first;
    some.page_table += first * plan.shape.max_pages;
    some.budgets += first;
    some.draws += first;
    some.out = attended_.data() + first * q_width_ * kernels::size_of(dtype_);
    if (some.rows_read != nullptr) some.rows_read += first;
    kernels::attend_cuda(some, bounds, device_, attention_workspace(), stream);
  }
}

void CudaDecoder::restore_keys(int32_t layer, const PassPlan& plan, const PassArrays& arrays,
                               cudaStream_t stream) const {
  kernels::restore_split_keys_cuda({.sequences = plan.shape.sequences,
                                    .num_kv_heads = config_.num_kv_heads,
                                    .head_dim = config_.head_dim,
                                    .page_size = cache_shape_.page_size,
                                    .max_pages = plan.shape.max_pages,
                                    .num_pages = cache_shape_.num_pages,
                                    .dtype = dtype_,
                                    .high = keys(layer),
                                    .low = low_planes(layer),
                                    .page_table = arrays.page_table,
                                    .lengths = arrays.lengths,
                                    .budgets = arrays.budgets + layer * plan.shape.sequences,
                                    .key_pages = restored_keys_.data()},
                                   device_, stream);
}

void CudaDecoder::attend_densely(int32_t layer, const PassPlan& plan, const PassArrays& arrays,
                                 cudaStream_t stream) {
  kernels::gather_cache_cuda({.sequences = plan.shape.sequences,
                              .total_keys = plan.total_keys,
                              .num_kv_heads = config_.num_kv_heads,
                              .head_dim = config_.head_dim,
                              .page_size = cache_shape_.page_size,
                              .max_pages = plan.shape.max_pages,
                              .num_pages = cache_shape_.num_pages,
                              .dtype = dtype_,
                              .key_pages = sixteen_bit_keys(layer, plan),
                              .value_pages = values(layer),
                              .page_table = arrays.page_table,
                              .cum_keys = arrays.cum_keys,
                              .keys = prompt_keys_.data(),
                              .values = prompt_values_.data()},
                             device_, stream);
  dense_prefill_->attend({.sequences = plan.shape.sequences,
                          .tokens = plan.queries,
                          .total_keys = plan.total_keys,
                          .max_queries = plan.max_queries,
                          .max_keys = plan.max_length,
                          .num_q_heads = config_.num_q_heads,
                          .num_kv_heads = config_.num_kv_heads,
                          .head_dim = config_.head_dim,
                          .dtype = dtype_,
                          .scale = 1 / std::sqrt(static_cast<float>(config_.head_dim)),
                          .query = qkv_.data(),
                          .query_stride = qkv_width_,
                          .keys = prompt_keys_.data(),
                          .values = prompt_values_.data(),
                          .cum_queries = arrays.cum_queries,
                          .cum_keys = arrays.cum_keys,
                          .out = attended_.data()},
                         stream);
}

void CudaDecoder::reserve_dense_prefill(int64_t keys, cudaStream_t stream) {
  const int64_t bytes = keys * config_.num_kv_heads * config_.head_dim * kernels::size_of(dtype_);
  if (bytes <= prompt_keys_.size()) return;
  cuda::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  for (DeviceBuffer* buffer : {&prompt_keys_, &prompt_values_}) {
    *buffer = DeviceBuffer();
    *buffer = DeviceBuffer(bytes);
  }
}

void CudaDecoder::run_layer(int32_t layer, const PassPlan& plan, const PassArrays& arrays,
                            const kernels::AttentionMethod& method, cudaStream_t stream) {
  const DeviceLayerWeights& weights = weights_.layers[layer];
  int64_t rows = plan.shape.rows;
  const bool splits = splits_keys();
  kernels::RotaryPlanes planes;
  if (splits) planes = {.high = keys(layer), .low = low_planes(layer)};
  if (reads_planes(plan, plan.modes[layer])) {
    planes.query = query_planes_.as<int8_t>();
    planes.query_units = query_units_.as<float>();
  }
  const Fed qkv = fed(LayerProduct::kQkv, layer, rows);
  normalise({.weight = weights.input_norm,
             .rows = rows,
             .adds_hidden = layer > 0,
             .int8_grid = int8_inputs(),
             .quantized = qkv.input},
            stream);
  matmul_.run(qkv.product, stream);
  kernels::rotate_and_store_cuda({.tokens = rows,
                                  .num_q_heads = config_.num_q_heads,
                                  .num_kv_heads = config_.num_kv_heads,
                                  .head_dim = config_.head_dim,
                                  .dtype = dtype_,
                                  .qkv = qkv_.data(),
                                  .qkv_stride = qkv_width_,
                                  .bias = weights.qkv_bias.data(),
                                  .q_norm = weights.q_norm.data(),
                                  .k_norm = weights.k_norm.data(),
                                  .norm_epsilon = static_cast<float>(config_.rms_norm_eps),
                                  .cos = cos_.as<float>(),
                                  .sin = sin_.as<float>(),
                                  .table_rows = config_.max_position_embeddings,
                                  .positions = arrays.positions,
                                  .key_pages = splits ? nullptr : keys(layer),
                                  .planes = planes,
                                  .value_pages = values(layer),
                                  .value_norms = value_norms(layer),
                                  .num_pages = cache_shape_.num_pages,
                                  .page_size = cache_shape_.page_size,
                                  .slots = arrays.slots,
                                  .settled_places = plan.decode},
                                 device_, stream);
  if (splits && !plan.decode && plan.modes[layer] != AttentionMode::kSampled)
    restore_keys(layer, plan, arrays, stream);
  if (plan.modes[layer] == AttentionMode::kDense && plan.max_queries > 1 && dense_prefill_ != nullptr) {
    attend_densely(layer, plan, arrays, stream);
  } else {
    attend(layer, plan, arrays, method, stream);
  }
  if (layer == config_.num_layers - 1 && !plan.decode) {
    // Every key and value is in the cache now: the rest is needed only for the rows whose logits are wanted.
    rows = plan.shape.outputs;
    if (rows == 0) return;
    keep_rows(arrays, rows, plan.shape.rows, stream);
  }
  if (config_.sub_norms) normalise_rows(weights.attention_sub_norm, rows, q_width_, attended_, stream);
  matmul_.run(product(LayerProduct::kAttentionOutput, layer, rows), stream);
  const Fed gate_up = fed(LayerProduct::kGateUp, layer, rows);
  normalise({.weight = weights.post_attention_norm,
             .rows = rows,
             .adds_hidden = true,
             .int8_grid = int8_inputs(),
             .quantized = gate_up.input},
            stream);
  matmul_.run(gate_up.product, stream);
  const Fed down = fed(LayerProduct::kDown, layer, rows);
  if (down.input.elements != nullptr) {
    kernels::activate_and_multiply_quantized_cuda({.rows = rows,
                                                   .width = config_.intermediate_size,
                                                   .dtype = dtype_,
                                                   .activation = config_.activation,
                                                   .gate_up = gate_up_.data(),
                                                   .out = activated_.data()},
                                                  down.input, device_, stream);
  }
  if (config_.sub_norms)
    normalise_rows(weights.mlp_sub_norm, rows, config_.intermediate_size, activated_, stream);
  matmul_.run(down.product, stream);
}

void CudaDecoder::queue(const PassPlan& plan, const PassArrays& arrays,
                        const kernels::AttentionMethod& method, cudaStream_t stream) {
  queue_states(plan, arrays, method, stream);
  const int64_t outputs = plan.shape.outputs;
  if (outputs > 0) project_logits(0, std::min(outputs, limits_.outputs), stream);
}

void CudaDecoder::queue_states(const PassPlan& plan, const PassArrays& arrays,
                               const kernels::AttentionMethod& method, cudaStream_t stream) {
  const int64_t rows = plan.shape.rows;
  kernels::gather_embeddings_cuda({.tokens = rows,
                                   .width = config_.hidden_size,
                                   .vocab_size = config_.vocab_size,
                                   .dtype = dtype_,
                                   .table = weights_.embedding.data(),
                                   .ids = arrays.tokens,
                                   .out = residual_.data()},
                                  device_, stream);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    run_layer(layer, plan, arrays, method, stream);
  }
  const int64_t outputs = plan.shape.outputs;
  if (outputs > 0) normalise({.weight = weights_.final_norm, .rows = outputs, .adds_hidden = true}, stream);
}

// Moves the residual and the attention of the rows whose logits are wanted to the front, using buffers of
// activations that are free now.
void CudaDecoder::keep_rows(const PassArrays& arrays, int64_t outputs, int64_t rows, cudaStream_t stream) {
  const auto keep = [&](const DeviceBuffer& of_rows, int32_t width) {
    kernels::gather_rows_cuda({.rows = outputs,
                               .width = width,
                               .source_rows = rows,
                               .dtype = dtype_,
                               .source = of_rows.data(),
                               .indices = arrays.output_rows,
                               .out = kept_.data()},
                              device_, stream);
    cuda::check(cudaMemcpyAsync(of_rows.data(), kept_.data(), outputs * width * kernels::size_of(dtype_),
                                cudaMemcpyDeviceToDevice, stream),
                "cudaMemcpyAsync");
  };
  keep(residual_, config_.hidden_size);
  keep(attended_, q_width_);
}

void CudaDecoder::project_logits(int64_t first, int64_t count, cudaStream_t stream) {
  project_states(states() + first * state_bytes(), count, logits_.data(), stream);
}

void CudaDecoder::project_states(const void* states, int64_t rows, void* out, cudaStream_t stream) {
  if (rank_.collective == nullptr) {
    matmul_.run(logits_product(states, rows, out), stream);
    return;
  }
  for (int64_t first = 0; first < rows; first += limits_.outputs) {
    gather_logits(static_cast<const std::byte*>(states) + first * state_bytes(),
                  std::min(limits_.outputs, rows - first),
                  static_cast<std::byte*>(out) + first * logits_stride_ * kernels::size_of(dtype_), stream);
  }
}

void CudaDecoder::gather_logits(const std::byte* states, int64_t rows, std::byte* out, cudaStream_t stream) {
  const int64_t size = kernels::size_of(dtype_);
  const int64_t row_bytes = vocabulary_.stride * size;
  if (vocabulary_.count > 0) matmul_.run(logits_product(states, rows, logits_part_.data()), stream);
  rank_.collective->gather(logits_part_.data(), logits_parts_.data(), rows * row_bytes, stream);
  for (int32_t rank = 0; rank < rank_.split.ranks; ++rank) {
    const VocabularyPart part = vocabulary_part(config_.vocab_size, {rank, rank_.split.ranks});
    if (part.count == 0) continue;
    cuda::check(cudaMemcpy2DAsync(out + part.first * size, logits_stride_ * size,
                                  logits_parts_.data() + rank * rows * row_bytes, row_bytes,
                                  part.count * size, rows, cudaMemcpyDeviceToDevice, stream),
                "cudaMemcpy2DAsync");
  }
}

}  // namespace allot::model::cuda
