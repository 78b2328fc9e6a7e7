#include "model/cuda/dense_prefill.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <algorithm>
#include <optional>
#include <string>

#include "base/error.h"
#include "model/cuda/torch_cuda.h"

namespace allot::model::cuda {
namespace {

using kernels::DType;

constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kVector = 8;  // elements of 16 bytes

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("dense prefill: " + what);
}

void check_range(const char* field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  refuse(std::string(field) + " is " + std::to_string(value) + "; expected " + std::to_string(least) +
         " to " + std::to_string(most));
}

void check_array(const char* field, const void* pointer, size_t alignment) {
  if (pointer == nullptr) refuse(std::string(field) + " is null; it must point to device memory");
  if (reinterpret_cast<uintptr_t>(pointer) % alignment != 0) {
    refuse(std::string(field) + " is at address " + std::to_string(reinterpret_cast<uintptr_t>(pointer)) +
           "; expected a multiple of " + std::to_string(alignment));
  }
}

at::ScalarType scalar_type(DType dtype) {
  return dtype == DType::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

// Makes a stream LibTorch's current one on this thread.
class CurrentStream {
 public:
  // LibTorch names a stream that it did not make by its handle, and the default stream by
  // 0 (c10/cuda/CUDAStream.h, getStreamFromExternal).
  CurrentStream(at::Device device, kernels::CudaStream stream)
      : previous_(guard_.exchangeStream(c10::Stream(
            c10::Stream::UNSAFE, device, static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(stream))))) {}
  ~CurrentStream() { guard_.exchangeStream(previous_); }
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  c10::impl::VirtualGuardImpl guard_{at::kCUDA};
  c10::Stream previous_;
};

// Device memory as tensors. LibTorch is told the device, because it would otherwise ask its own CUDA
// runtime for it.
class Views {
 public:
  Views(at::Device device, DType dtype)
      : device_(device), options_(at::TensorOptions(device)), dtype_(dtype) {}

  // [rows, heads, head_dim]
  at::Tensor rows(const void* data, at::IntArrayRef sizes, int64_t row_stride) const {
    return at::for_blob(const_cast<void*>(data), sizes)
        .strides({row_stride, sizes[2], 1})
        .options(options_.dtype(scalar_type(dtype_)))
        .target_device(device_)
        .make_tensor();
  }
  at::Tensor integers(const int32_t* data, int64_t count) const {
    return at::for_blob(const_cast<int32_t*>(data), {count})
        .options(options_.dtype(at::kInt))
        .target_device(device_)
        .make_tensor();
  }

 private:
  at::Device device_;
  at::TensorOptions options_;
  DType dtype_;
};

at::Device device_of(int ordinal) {
  return {at::kCUDA, static_cast<c10::DeviceIndex>(ordinal)};
}

}  // namespace

void validate(const DensePrefillParams& p) {
  if (p.dtype == DType::kFloat32) {
    throw Unsupported("dense prefill: dtype is float32; supported are bfloat16 and float16");
  }
  if (p.head_dim < kVector || p.head_dim > kMaxHeadDim || p.head_dim % kVector != 0) {
    throw Unsupported("dense prefill: head_dim is " + std::to_string(p.head_dim) +
                      "; supported are the multiples of 8 from 8 to 256");
  }
  check_range("sequences", p.sequences, 1, INT32_MAX - 1);
  check_range("tokens", p.tokens, 1, INT32_MAX);
  check_range("total_keys", p.total_keys, p.tokens, INT32_MAX);
  check_range("max_queries", p.max_queries, (p.tokens + p.sequences - 1) / p.sequences, p.tokens);
  check_range("max_keys", p.max_keys, p.max_queries, p.total_keys);
  check_range("num_kv_heads", p.num_kv_heads, 1, INT32_MAX);
  if (p.num_q_heads < 1 || p.num_q_heads % p.num_kv_heads != 0) {
    refuse("num_q_heads is " + std::to_string(p.num_q_heads) +
           "; expected a multiple of num_kv_heads = " + std::to_string(p.num_kv_heads));
  }
  const int64_t width = int64_t{p.num_q_heads} * p.head_dim;
  if (p.query_stride < width || p.query_stride % kVector != 0) {
    refuse("query_stride is " + std::to_string(p.query_stride) +
           " elements; expected a multiple of 8, at least num_q_heads * head_dim = " + std::to_string(width));
  }
  check_array("query", p.query, 16);
  check_array("keys", p.keys, 16);
  check_array("values", p.values, 16);
  check_array("cum_queries", p.cum_queries, alignof(int32_t));
  check_array("cum_keys", p.cum_keys, alignof(int32_t));
  check_array("out", p.out, 16);
}

std::unique_ptr<DensePrefill> DensePrefill::load(int device) {
  load_torch_cuda();
  const int devices =
      at::globalContext().hasCUDA() ? c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() : 0;
  if (device < 0 || device >= devices) {
    throw CudaError("LibTorch " TORCH_VERSION " finds " + std::to_string(devices) +
                    " usable CUDA devices and device " + std::to_string(device) +
                    " is not among them; nvidia-smi shows devices and driver");
  }
  try {
    at::globalContext().lazyInitDevice(at::kCUDA);
  } catch (const c10::Error& error) {
    throw CudaError(std::string("LibTorch " TORCH_VERSION " cannot use CUDA: ") +
                    error.what_without_backtrace());
  }
  return std::unique_ptr<DensePrefill>(new DensePrefill(device));
}

// FlashAttention aligns the causal mask to the last key, as attention.h does: query i of n sees the keys up
// to i + (keys - n) (mask.h of the version in LibTorch, as of its release 2.1).
void DensePrefill::attend(const DensePrefillParams& p, kernels::CudaStream stream) const {
  validate(p);
  const at::Device device = device_of(device_);
  try {
    const c10::InferenceMode no_gradients;
    const CurrentStream current(device, stream);
    const Views views(device, p.dtype);
    const int64_t q_width = int64_t{p.num_q_heads} * p.head_dim;
    const int64_t kv_width = int64_t{p.num_kv_heads} * p.head_dim;
    const at::Tensor query = views.rows(p.query, {p.tokens, p.num_q_heads, p.head_dim}, p.query_stride);
    const at::Tensor keys = views.rows(p.keys, {p.total_keys, p.num_kv_heads, p.head_dim}, kv_width);
    const at::Tensor values = views.rows(p.values, {p.total_keys, p.num_kv_heads, p.head_dim}, kv_width);
    // An upper bound of 1 would select LibTorch's path for decode, which needs exactly one query a sequence.
    const int64_t max_queries = std::max(p.max_queries, 2);
    const at::Tensor attended = std::get<0>(at::_flash_attention_forward(
        query, keys, values, views.integers(p.cum_queries, p.sequences + 1),
        views.integers(p.cum_keys, p.sequences + 1), max_queries, p.max_keys, /*dropout_p=*/0.0,
        /*is_causal=*/true, /*return_debug_mask=*/false, static_cast<double>(p.scale)));
    views.rows(p.out, {p.tokens, p.num_q_heads, p.head_dim}, q_width).copy_(attended);
  } catch (const c10::Error& error) {
    throw CudaError(std::string("dense prefill by LibTorch " TORCH_VERSION ": ") +
                    error.what_without_backtrace());
  }
}

void DensePrefill::release_memory() const {
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
}

}  // namespace allot::model::cuda
