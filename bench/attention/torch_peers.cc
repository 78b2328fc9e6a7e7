#include "bench/attention/torch_peers.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "model/cuda/torch_cuda.h"

namespace allot::bench::attention {
namespace {

constexpr uint64_t kSeed = 2605;
// cuDNN and FlashAttention read their caches in blocks of 16 bytes and more.
constexpr int32_t kPaddingMultiple = 16;

const at::Device kDevice(at::kCUDA, 0);

at::ScalarType scalar_type(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kBFloat16:
      return at::kBFloat16;
    case kernels::DType::kFloat16:
      return at::kHalf;
    case kernels::DType::kFloat32:
      break;
  }
  throw Unsupported("attention benchmark: caches are bfloat16 or float16, not " +
                    std::string(kernels::name(dtype)));
}

// A copy of `values` on the device.
template <class T>
at::Tensor on_device(std::span<const T> values) {
  const auto type = c10::CppTypeToScalarType<T>::value;
  // from_blob takes no const pointer; the tensor is only read.
  return at::from_blob(const_cast<T*>(values.data()), {static_cast<int64_t>(values.size())},
                       at::TensorOptions(type))
      .to(kDevice);
}

// [batch + 1] int32 starts of sequences of `lengths`.
at::Tensor starts_of(std::span<const int32_t> lengths) {
  std::vector<int32_t> starts = {0};
  for (const int32_t length : lengths) starts.push_back(starts.back() + length);
  return on_device<int32_t>(starts);
}

}  // namespace

struct TorchRuntime::State {
  c10::InferenceMode no_gradients;
  c10::impl::VirtualGuardImpl device{at::kCUDA};
  c10::Stream stream;
  c10::Stream previous;

  State() : stream(device.getStreamFromGlobalPool(kDevice)), previous(device.exchangeStream(stream)) {}
  ~State() { device.exchangeStream(previous); }
};

TorchRuntime::TorchRuntime() {
  model::cuda::load_torch_cuda();
  if (!at::globalContext().hasCUDA()) {
    throw CudaError("LibTorch " TORCH_VERSION
                    " finds no usable CUDA device; nvidia-smi shows devices and driver");
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  state_ = std::make_unique<State>();
}

TorchRuntime::~TorchRuntime() = default;

cudaStream_t TorchRuntime::stream() const {
  return static_cast<cudaStream_t>(state_->device.getStreamNativeHandle(state_->stream));
}

std::string TorchRuntime::torch_version() const {
  return TORCH_VERSION;
}

std::string TorchRuntime::cudnn_version() const {
  const long version = at::Context::versionRuntimeCuDNN();
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

std::string TorchRuntime::cuda_runtime_version() const {
  const long version = at::Context::versionCUDART();
  return std::to_string(version / 1000) + "." + std::to_string(version / 10 % 100);
}

struct TorchBatch::State {
  Shape shape;
  std::vector<int32_t> lengths;
  at::TensorOptions options;
  double scale = 0;
  int64_t num_tokens = 0;
  at::Tensor query;   // [batch, num_q_heads, head_dim]
  at::Tensor keys;    // [num_tokens + 1, num_kv_heads, head_dim]; the last row fills unused slots
  at::Tensor values;  // as keys
  std::vector<at::Tensor> pages;

  // Keys without the row that fills.
  at::Tensor tokens(const at::Tensor& rows) const { return rows.narrow(0, 0, num_tokens); }

  // [num_pages, num_kv_heads, page_size, head_dim] by `plan`, `filler` where no token lies.
  at::Tensor gather(const at::Tensor& rows, const PagePlan& plan, double filler) const {
    rows.select(0, num_tokens).fill_(filler);
    const at::Tensor index = on_device<int64_t>(plan.token_of_slot);
    return at::index_select(rows, 0, index)
        .view({plan.num_pages, plan.page_size, shape.num_kv_heads, shape.head_dim})
        .permute({0, 2, 1, 3})
        .contiguous();
  }

  // An output on the device as a tensor. LibTorch is told the device, which it would otherwise ask its own
  // CUDA runtime about.
  at::Tensor view_output(const void* output) const {
    return at::for_blob(const_cast<void*>(output), {shape.batch, shape.num_q_heads, shape.head_dim})
        .options(options)
        .target_device(kDevice)
        .make_tensor();
  }

  // Rows of query heads, as float32.
  at::Tensor rows_of(const at::Tensor& output) const {
    return output.reshape({-1, shape.head_dim}).to(at::kFloat);
  }

  Difference difference(const at::Tensor& output, const void* exact) const {
    const at::Tensor expected = rows_of(view_output(exact));
    const at::Tensor distance = rows_of(output).sub(expected).abs();
    const at::Tensor relative = distance.amax(-1).div(expected.abs().amax(-1));
    return {.rms = distance.square().mean().sqrt().item().toDouble(),
            .max_relative = relative.max().item().toDouble()};
  }
};

TorchBatch::TorchBatch(const TorchRuntime& /*runtime*/, const Shape& shape, std::span<const int32_t> lengths,
                       kernels::DType dtype, double score_deviation)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.shape = shape;
  s.lengths.assign(lengths.begin(), lengths.end());
  s.options = at::TensorOptions(scalar_type(dtype)).device(kDevice);
  s.scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  s.num_tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});

  at::Generator generator = at::globalContext().defaultGenerator(kDevice);
  generator.set_current_seed(kSeed);
  // Scores are sums of head_dim products of standard normal numbers times 1 / sqrt(head_dim): standard
  // deviation 1.
  s.query = at::randn({shape.batch, shape.num_q_heads, shape.head_dim}, s.options).mul(score_deviation);
  s.keys = at::randn({s.num_tokens + 1, shape.num_kv_heads, shape.head_dim}, s.options);
  s.values = at::randn({s.num_tokens + 1, shape.num_kv_heads, shape.head_dim}, s.options);
}

TorchBatch::~TorchBatch() {
  state_.reset();
  // Blocks that LibTorch keeps for itself would be missing for allot's own arrays of the next shape.
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
}

const void* TorchBatch::query() const {
  return state_->query.const_data_ptr();
}

KvPages TorchBatch::pages(const PagePlan& plan) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor keys = state_->gather(state_->keys, plan, kNan);
  const at::Tensor values = state_->gather(state_->values, plan, kNan);
  state_->pages.insert(state_->pages.end(), {keys, values});
  return {keys.const_data_ptr(), values.const_data_ptr()};
}

Difference TorchBatch::difference(const void* output, const void* exact) const {
  return state_->difference(state_->view_output(output), exact);
}

std::vector<Peer> TorchBatch::peers() {
  const State& s = *state_;
  const int64_t batch = s.shape.batch;
  const int64_t longest = *std::ranges::max_element(s.lengths);
  std::vector<Peer> peers;
  // `attend` gives an output of batch * num_q_heads rows. The latest is kept, as a captured graph writes to
  // it.
  const auto add = [&](const char* name, const char* cache, std::function<at::Tensor()> attend) {
    const auto output = std::make_shared<at::Tensor>();
    peers.push_back({.name = name,
                     .cache = cache,
                     .queue = [output, attend = std::move(attend)] { *output = attend(); },
                     .difference = [&s, output](const void* exact) { return s.difference(*output, exact); }});
  };

  if (!s.shape.ragged()) {
    const std::vector<int64_t> sizes = {batch, longest, s.shape.num_kv_heads, s.shape.head_dim};
    const at::Tensor keys = s.tokens(s.keys).view(sizes);
    const at::Tensor values = s.tokens(s.values).view(sizes);
    const at::Tensor keys_by_head = keys.transpose(1, 2).contiguous();
    const at::Tensor values_by_head = values.transpose(1, 2).contiguous();
    // FlashAttention wants [batch, keys, heads, dim] and cuDNN [batch, heads, keys, dim], either with any
    // strides. Both take fewer KV heads than query heads; FlashAttention then makes the heads of a group the
    // rows of one query block and splits the keys over the GPU by itself.
    const auto flash = [&s, longest](const at::Tensor& k, const at::Tensor& v) {
      return [&s, longest, k, v] {
        return std::get<0>(at::_flash_attention_forward(
            s.query.unsqueeze(1), k, v, std::nullopt, std::nullopt, 1, longest, 0.0, false, false, s.scale));
      };
    };
    const auto cudnn = [&s](const at::Tensor& k, const at::Tensor& v) {
      return [&s, k, v] {
        return std::get<0>(at::_scaled_dot_product_cudnn_attention(s.query.unsqueeze(2), k, v, std::nullopt,
                                                                   false, 0.0, false, false, s.scale));
      };
    };
    constexpr const char* kByHead = "[batch, heads, keys, dim]";
    constexpr const char* kByKey = "[batch, keys, heads, dim]";
    add("flash-attention", kByHead, flash(keys_by_head.transpose(1, 2), values_by_head.transpose(1, 2)));
    add("flash-attention", kByKey, flash(keys, values));
    add("cudnn", kByHead, cudnn(keys_by_head, values_by_head));
    add("cudnn", kByKey, cudnn(keys.transpose(1, 2), values.transpose(1, 2)));
    return peers;
  }

  const at::Tensor query_starts = starts_of(std::vector<int32_t>(s.lengths.size(), 1));
  const at::Tensor key_starts = starts_of(s.lengths);
  const auto flash = [&s, longest, query_starts, key_starts](const at::Tensor& k, const at::Tensor& v) {
    return [&s, longest, query_starts, key_starts, k, v] {
      return std::get<0>(at::_flash_attention_forward(s.query, k, v, query_starts, key_starts, 1, longest,
                                                      0.0, false, false, s.scale));
    };
  };
  const at::Tensor keys = s.tokens(s.keys);
  const at::Tensor values = s.tokens(s.values);
  add("flash-attention", "packed [keys, heads, dim]", flash(keys, values));
  const auto by_head = [](const at::Tensor& rows) {
    return rows.transpose(0, 1).contiguous().transpose(0, 1);
  };
  add("flash-attention", "packed [heads, keys, dim]", flash(by_head(keys), by_head(values)));

  // cuDNN on a padded batch needs a bias that hides the padding, and reads it all the same. Zeros, because a
  // weight of zero times NaN is NaN.
  const PagePlan plan = plan_contiguous(s.lengths, kPaddingMultiple);
  const at::Tensor padded_keys = s.gather(s.keys, plan, 0);
  const at::Tensor padded_values = s.gather(s.values, plan, 0);
  const at::Tensor bias = at::zeros({batch, 1, 1, plan.page_size}, s.options);
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = s.lengths[static_cast<size_t>(b)];
    if (length < plan.page_size) {
      bias.select(0, b)
          .narrow(-1, length, plan.page_size - length)
          .fill_(-std::numeric_limits<double>::infinity());
    }
  }
  add("cudnn", "padded [batch, heads, keys, dim]", [&s, padded_keys, padded_values, bias] {
    return std::get<0>(at::_scaled_dot_product_cudnn_attention(
        s.query.unsqueeze(2), padded_keys, padded_values, bias, false, 0.0, false, false, s.scale));
  });
  return peers;
}

}  // namespace allot::bench::attention
