#include "model/cuda/device_weights.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "kernels/fp8_cuda.h"
#include "model/cuda/random_fill.h"
#include "model/parallel.h"

namespace allot::model::cuda {
namespace {

// Bytes of the page-locked memory that a thread fills at a time. Two for each thread: one is filled while the
// other is copied, so no thread waits for another.
constexpr int64_t kSlotBytes = int64_t{4} << 20;
constexpr int kSlotsPerWorker = 2;
// More threads would only lock more pages: this many already read faster than the link to the device carries.
constexpr int kMaxWorkers = 32;

// A tensor and the device memory for it.
struct Placement {
  WeightTensor tensor;
  std::byte* out = nullptr;
};

// A product whose weights are quantised, and the device memory for them.
struct QuantizedPlacement {
  std::vector<WeightTensor> tensors;  // one under another
  int64_t out_features = 0;
  int32_t in_features = 0;
  std::byte* elements = nullptr;
  float* scales = nullptr;

  int64_t count() const { return out_features * in_features; }
};

// Allocates every buffer and notes which tensor goes where; nothing is copied yet.
class Layout {
 public:
  Layout(kernels::DType dtype, const WeightsSource& source, const ModelSplit& split)
      : dtype_(dtype), source_(source), split_(split) {}

  // One buffer that holds the rank's parts of the named tensors one after the other.
  DeviceBuffer stack(std::initializer_list<std::string> names) { return stack(find(names)); }

  DeviceBuffer stack(std::vector<WeightTensor> tensors) {
    DeviceBuffer buffer(count_of(tensors) * kernels::size_of(dtype_));
    place(std::move(tensors), dtype_, buffer.data(), &placements_);
    return buffer;
  }

  DeviceBuffer stack_if(bool present, std::initializer_list<std::string> names) {
    return present ? stack(names) : DeviceBuffer();
  }

  // The weights of a product, of 8 bits where they are to be `quantized` and can be.
  ProductWeights product(bool quantized, std::initializer_list<std::string> names) {
    return product(quantized, find(names));
  }

  ProductWeights product(bool quantized, std::vector<WeightTensor> tensors) {
    const int64_t in_features = tensors.front().shape.back();
    if (!quantized || !quantizes(in_features)) return {.elements = stack(std::move(tensors)), .scales = {}};
    const int64_t out_features = count_of(tensors) / in_features;
    ProductWeights weights{.elements = DeviceBuffer(out_features * in_features),
                           .scales = DeviceBuffer(out_features * int64_t{sizeof(float)})};
    quantized_.push_back({.tensors = std::move(tensors),
                          .out_features = out_features,
                          .in_features = static_cast<int32_t>(in_features),
                          .elements = weights.elements.data(),
                          .scales = weights.scales.as<float>()});
    return weights;
  }

  const std::vector<Placement>& placements() const { return placements_; }
  const std::vector<QuantizedPlacement>& quantized() const { return quantized_; }

  // Notes that the tensors go to `out`, one after the other.
  static void place(std::vector<WeightTensor> tensors, kernels::DType dtype, std::byte* out,
                    std::vector<Placement>* placements) {
    for (WeightTensor& tensor : tensors) {
      const int64_t bytes = tensor.count() * kernels::size_of(dtype);
      placements->push_back({std::move(tensor), out});
      out += bytes;
    }
  }

 private:
  // The rank's parts of them.
  std::vector<WeightTensor> find(std::initializer_list<std::string> names) const {
    std::vector<WeightTensor> tensors;
    for (const std::string& name : names) tensors.push_back(part_of(source_.at(name), split_));
    return tensors;
  }
  static int64_t count_of(std::span<const WeightTensor> tensors) {
    int64_t elements = 0;
    for (const WeightTensor& tensor : tensors) elements += tensor.count();
    return elements;
  }

  kernels::DType dtype_;
  const WeightsSource& source_;
  ModelSplit split_;
  std::vector<Placement> placements_;
  std::vector<QuantizedPlacement> quantized_;
};

// Page-locked staging memory between the files' pages and the device. Each slot has a stream of its own and
// may be filled again as soon as that stream has nothing left to do.
class Staging {
 public:
  explicit Staging(int64_t workers)
      : memory_(workers * kSlotsPerWorker * kSlotBytes),
        streams_(workers * kSlotsPerWorker),
        next_slot_(workers, 0) {}
  // After an error, copies that are still queued read memory_.
  ~Staging() {
    for (const Stream& stream : streams_) (void)cudaStreamSynchronize(stream.get());
  }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Lets fill(memory) write `bytes` <= kSlotBytes and queues their copy to the device memory `out`. For each
  // worker, only one thread at a time may call it.
  template <class Fill>
  void copy(int worker, int64_t bytes, std::byte* out, const Fill& fill) {
    const int slot = worker * kSlotsPerWorker + next_slot_[worker];
    next_slot_[worker] = (next_slot_[worker] + 1) % kSlotsPerWorker;
    std::byte* const memory = memory_.data() + slot * kSlotBytes;
    streams_[slot].synchronize();
    fill(memory);
    check(cudaMemcpyAsync(out, memory, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                          streams_[slot].get()),
          "cudaMemcpyAsync of weights");
  }

  void finish() const {
    for (const Stream& stream : streams_) stream.synchronize();
  }

 private:
  PinnedBuffer memory_;
  std::vector<Stream> streams_;
  std::vector<int> next_slot_;  // of each worker
};

void generate(const std::vector<Placement>& placements, kernels::DType dtype) {
  const Stream stream;
  for (const auto& [tensor, out] : placements) {
    if (const auto* random = std::get_if<RandomTensor>(&tensor.elements)) {
      const ElementRuns whole{.length = tensor.count(), .pitch = tensor.count()};
      fill_random_runs_cuda(*random, tensor.part.value_or(whole), tensor.count(), dtype, out, stream.get());
    }
  }
  stream.synchronize();
}

// Of a stored tensor: what a slot of the staging memory holds at a time.
struct Piece {
  const Placement* placement;
  int64_t first;
  int64_t count;
};

std::vector<Piece> pieces_of(const std::vector<Placement>& placements, kernels::DType dtype) {
  const int64_t piece_elements = kSlotBytes / kernels::size_of(dtype);
  std::vector<Piece> pieces;
  for (const Placement& placement : placements) {
    if (std::holds_alternative<RandomTensor>(placement.tensor.elements)) continue;
    const int64_t count = placement.tensor.count();
    for (int64_t first = 0; first < count; first += piece_elements) {
      pieces.push_back({&placement, first, std::min(piece_elements, count - first)});
    }
  }
  return pieces;
}

// Writes the elements of tensors to where they were placed. The staging memory is made when the first stored
// tensor needs it.
class Loader {
 public:
  Loader(kernels::DType dtype, int threads) : dtype_(dtype), threads_(std::clamp(threads, 1, kMaxWorkers)) {
    check(cudaGetDevice(&device_), "cudaGetDevice");
  }

  void load(const std::vector<Placement>& placements) {
    generate(placements, dtype_);
    const std::vector<Piece> pieces = pieces_of(placements, dtype_);
    if (pieces.empty()) return;
    const auto count = static_cast<int64_t>(pieces.size());
    const auto workers = static_cast<int>(std::min<int64_t>(count, threads_));
    if (!staging_ || workers > workers_) staging_.emplace(workers_ = workers);
    const int64_t size = kernels::size_of(dtype_);
    run_parallel(count, workers, [&](int64_t i, int worker) {
      check(cudaSetDevice(device_), "cudaSetDevice");  // every thread has a current device of its own
      const Piece& piece = pieces[i];
      staging_->copy(worker, piece.count * size, piece.placement->out + piece.first * size,
                     [&](std::byte* memory) {
                       write_elements(piece.placement->tensor, piece.first, piece.count, dtype_, memory);
                     });
    });
    staging_->finish();
  }

  // One product after another, through memory for the largest of them.
  void quantize(const std::vector<QuantizedPlacement>& products) {
    if (products.empty()) return;
    const auto largest = std::ranges::max_element(products, {}, &QuantizedPlacement::count);
    const DeviceBuffer wide(largest->count() * kernels::size_of(dtype_));
    const kernels::DeviceLimits limits = kernels::device_limits(device_);
    const Stream stream;
    for (const QuantizedPlacement& product : products) {
      std::vector<Placement> placements;
      Layout::place(product.tensors, dtype_, wide.data(), &placements);
      load(placements);
      kernels::quantize_rows_cuda({.rows = product.out_features,
                                   .width = product.in_features,
                                   .dtype = dtype_,
                                   .input = wide.data(),
                                   .out = reinterpret_cast<uint8_t*>(product.elements),
                                   .scales = product.scales},
                                  limits, stream.get());
      stream.synchronize();
    }
  }

 private:
  kernels::DType dtype_;
  int threads_;
  int device_ = 0;
  int workers_ = 0;
  std::optional<Staging> staging_;
};

DeviceLayerWeights lay_out_layer(Layout& layout, const ModelConfig& config, int32_t layer, bool fp8) {
  const std::string prefix = "model.layers." + std::to_string(layer) + ".";
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  const std::string q = attention + "q_proj.", k = attention + "k_proj.", v = attention + "v_proj.";
  const std::string gate = mlp + "gate_proj.", up = mlp + "up_proj.";
  return DeviceLayerWeights{
      .input_norm = layout.stack({prefix + "input_layernorm.weight"}),
      .qkv = layout.product(fp8, {q + "weight", k + "weight", v + "weight"}),
      .qkv_bias = layout.stack_if(config.attention_bias, {q + "bias", k + "bias", v + "bias"}),
      .q_norm = layout.stack_if(config.qk_norm, {attention + "q_norm.weight"}),
      .k_norm = layout.stack_if(config.qk_norm, {attention + "k_norm.weight"}),
      .attention_sub_norm = layout.stack_if(config.sub_norms, {attention + "attn_sub_norm.weight"}),
      .attention_output = layout.product(fp8, {attention + "o_proj.weight"}),
      .attention_output_bias = layout.stack_if(config.attention_output_bias, {attention + "o_proj.bias"}),
      .post_attention_norm = layout.stack({prefix + "post_attention_layernorm.weight"}),
      .gate_up = layout.product(fp8, {gate + "weight", up + "weight"}),
      .gate_up_bias = layout.stack_if(config.mlp_bias, {gate + "bias", up + "bias"}),
      .mlp_sub_norm = layout.stack_if(config.sub_norms, {mlp + "ffn_sub_norm.weight"}),
      .down = layout.product(fp8, {mlp + "down_proj.weight"}),
      .down_bias = layout.stack_if(config.mlp_bias, {mlp + "down_proj.bias"}),
  };
}

}  // namespace

void require_device_memory(int64_t needed, int64_t free, int64_t total, kernels::DType dtype,
                           WeightStorage storage) {
  if (needed <= free) return;
  const char* const advice = dtype == kernels::DType::kFloat32 ? "; dtype bfloat16 takes half"
                             : needed <= total                 ? "; end other processes on it"
                                                               : "; use a GPU with more memory";
  throw Error("the weights take " + std::to_string(needed) + " bytes as " + std::string(name(dtype)) +
              (storage == WeightStorage::kDtype ? "" : " and " + std::string(name(storage))) + ", but " +
              std::to_string(free) + " of the GPU's " + std::to_string(total) + " bytes are free" + advice);
}

void require_capability(WeightStorage storage, const kernels::DeviceLimits& device) {
  // Products of 8-bit numbers on tensor cores, and conversions to them, begin there.
  constexpr int32_t kLeastFp8Capability = 89;
  if (storage == WeightStorage::kDtype || device.compute_capability >= kLeastFp8Capability) return;
  throw Unsupported(fmt::format(
      "engine options: weights {} need a GPU of compute capability {}.{} or newer, and this one has {}.{}; use "
      "weights dtype",
      name(storage), kLeastFp8Capability / 10, kLeastFp8Capability % 10, device.compute_capability / 10,
      device.compute_capability % 10));
}

DeviceWeights load_device_weights(const WeightsSource& source, const ModelConfig& config,
                                  kernels::DType dtype, int threads, const WeightPlan& plan) {
  const WeightStorage storage = plan.storage;
  const VocabularyPart head = vocabulary_part(config.vocab_size, plan.split);
  const int64_t left_out =
      config.tie_word_embeddings ? 0 : int64_t{config.vocab_size - head.count} * config.hidden_size;
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  require_device_memory(stored_weight_bytes(config, dtype, storage) - left_out * kernels::size_of(dtype),
                        static_cast<int64_t>(free), static_cast<int64_t>(total), dtype, storage);
  const bool fp8 = storage != WeightStorage::kDtype;
  const bool fp8_logits = storage == WeightStorage::kFp8AndLogits && quantizes(config.hidden_size);
  Layout layout(dtype, source, plan.split);
  DeviceWeights weights;
  weights.embedding = layout.stack({"model.embed_tokens.weight"});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(lay_out_layer(layout, config, layer, fp8));
  }
  weights.final_norm = layout.stack({"model.norm.weight"});
  if (!config.tie_word_embeddings) {
    weights.output_head =
        layout.product(fp8_logits, {rows_of(source.at("lm_head.weight"), head.first, head.count)});
  } else if (fp8_logits) {  // rows of the embedding itself stay as they are
    weights.output_head = layout.product(true, {"model.embed_tokens.weight"});
  }
  Loader loader(dtype, threads);
  loader.load(layout.placements());
  loader.quantize(layout.quantized());
  return weights;
}

}  // namespace allot::model::cuda
