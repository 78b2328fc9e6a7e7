#include "model/linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <optional>

#include "base/instructions.h"
#include "model/parallel.h"

namespace allot::model {
namespace {

// How many columns of a product are worth a thread of their own.
constexpr int64_t kMinSharedColumns = 256;

// LibTorch, oneDNN and MKL keep a number of threads for each calling thread; it is 1, because the loops
// around them are ours.
void use_one_thread() {
  thread_local bool done = false;
  if (!done) at::set_num_threads(1);
  done = true;
}

at::TensorOptions options_of(kernels::DType dtype) {
  return at::TensorOptions().dtype(dtype == kernels::DType::kFloat32 ? at::kFloat : at::kBFloat16);
}

at::Tensor matrix(const void* data, at::IntArrayRef shape, kernels::DType dtype) {
  return at::from_blob(const_cast<void*>(data), shape, options_of(dtype));
}

}  // namespace

struct Linear::Tensors {
  std::shared_ptr<const Buffer> weight_memory;
  std::shared_ptr<const Buffer> bias_memory;
  at::Tensor transposed_weight;  // [in_features, out_features], a view
  std::optional<at::Tensor> bias;
  kernels::DType dtype;
  bool widened;
};

Bfloat16Products bfloat16_products() {
#if defined(__x86_64__)
  static const bool has_vectors = has_avx512();
  return has_vectors ? Bfloat16Products::kNative : Bfloat16Products::kWidened;
#else
  return Bfloat16Products::kNative;
#endif
}

kernels::DType Linear::held_dtype(kernels::DType dtype, Bfloat16Products products) {
  const bool widened = dtype == kernels::DType::kBFloat16 && products == Bfloat16Products::kWidened;
  return widened ? kernels::DType::kFloat32 : dtype;
}

Linear::Linear(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
               int64_t in_features, kernels::DType dtype, Bfloat16Products products)
    : tensors_(std::make_unique<Tensors>()), out_features_(out_features), in_features_(in_features) {
  const c10::InferenceMode no_autograd;
  tensors_->transposed_weight = matrix(weight->data(), {out_features, in_features}, dtype).t();
  if (bias) tensors_->bias = matrix(bias->data(), {out_features}, dtype);
  tensors_->dtype = dtype;
  tensors_->widened = held_dtype(dtype, products) != dtype;
  if (tensors_->widened) {
    tensors_->transposed_weight = tensors_->transposed_weight.to(at::kFloat);
    if (tensors_->bias) tensors_->bias = tensors_->bias->to(at::kFloat);
    return;  // the copies are all that is read
  }
  tensors_->weight_memory = std::move(weight);
  tensors_->bias_memory = std::move(bias);
}

Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

void Linear::apply(const void* input, int64_t rows, void* out, int threads) const {
  if (rows == 0) return;
  const int64_t parts = std::clamp<int64_t>(out_features_ / kMinSharedColumns, 1, threads);
  const int64_t part_columns = (out_features_ + parts - 1) / parts;
  run_parallel(parts, threads, [&](int64_t part, int) {
    const int64_t begin = part * part_columns;
    const int64_t end = std::min(begin + part_columns, out_features_);
    apply_columns(input, rows, out, begin, end);
  });
}

void Linear::apply_columns(const void* input, int64_t rows, void* out, int64_t begin, int64_t end) const {
  const c10::InferenceMode no_autograd;  // per thread
  use_one_thread();
  const at::Tensor x = matrix(input, {rows, in_features_}, tensors_->dtype);
  at::Tensor result = matrix(out, {rows, out_features_}, tensors_->dtype);
  at::Tensor weight = tensors_->transposed_weight;
  std::optional<at::Tensor> bias = tensors_->bias;
  if (end - begin < out_features_) {
    result = result.slice(1, begin, end);
    weight = weight.slice(1, begin, end);
    if (bias) bias = bias->slice(0, begin, end);
  }
  if (tensors_->widened) {
    const at::Tensor wide = x.to(at::kFloat);
    result.copy_(bias ? at::addmm(*bias, wide, weight) : at::mm(wide, weight));
  } else if (bias) {
    at::addmm_out(result, *bias, x, weight);
  } else {
    at::mm_out(result, x, weight);
  }
}

}  // namespace allot::model
