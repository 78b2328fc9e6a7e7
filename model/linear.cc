#include "model/linear.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <thread>

namespace allot::model {
namespace {

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
  at::Tensor weight;
  std::optional<at::Tensor> bias;
  kernels::DType dtype;
};

Linear::Linear(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
               int64_t in_features, kernels::DType dtype)
    : tensors_(std::make_unique<Tensors>()), out_features_(out_features), in_features_(in_features) {
  const c10::InferenceMode no_autograd;
  tensors_->weight = matrix(weight->data(), {out_features, in_features}, dtype);
  if (bias) tensors_->bias = matrix(bias->data(), {out_features}, dtype);
  tensors_->weight_memory = std::move(weight);
  tensors_->bias_memory = std::move(bias);
  tensors_->dtype = dtype;
}

Linear::~Linear() = default;
Linear::Linear(Linear&&) noexcept = default;
Linear& Linear::operator=(Linear&&) noexcept = default;

void Linear::apply(const void* input, int64_t rows, void* out) const {
  if (rows == 0) return;
  const c10::InferenceMode no_autograd;  // per thread
  at::Tensor result = matrix(out, {rows, out_features_}, tensors_->dtype);
  at::linear_out(result, matrix(input, {rows, in_features_}, tensors_->dtype), tensors_->weight,
                 tensors_->bias);
}

int set_threads(int threads) {
  if (threads == 0) threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
  return threads;
}

void run_parallel(int64_t count, int threads, const std::function<void(int64_t index, int worker)>& task) {
  const int64_t workers = std::min<int64_t>(count, threads);
  if (workers <= 1) {
    for (int64_t index = 0; index < count; ++index) task(index, 0);
    return;
  }
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, workers, 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t index = next++; index < count; index = next++) task(index, static_cast<int>(worker));
    }
  });
}

}  // namespace allot::model
