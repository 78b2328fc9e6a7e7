// Matrix products through LibTorch, behind an interface without its headers: linear.cc is the only file that
// compiles against ATen. LibTorch picks oneDNN or MKL and with them AMX and AVX-512 where the processor has
// them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "kernels/estimator.h"
#include "model/buffer.h"

namespace allot::model {

// out = input * weight^T + bias. The weight is shared because a tied embedding is also the table of the first
// layer.
class Linear {
 public:
  // weight [out_features, in_features] and bias [out_features], or null for none, both of `dtype`.
  Linear(std::shared_ptr<const Buffer> weight, std::shared_ptr<const Buffer> bias, int64_t out_features,
         int64_t in_features, kernels::DType dtype);
  ~Linear();
  Linear(Linear&&) noexcept;
  Linear& operator=(Linear&&) noexcept;

  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }

  // input [rows, in_features] and out [rows, out_features] of `dtype`, contiguous. Inside run_parallel it
  // runs on the calling thread, outside on all threads. Sums are float32, rounded once when stored.
  void apply(const void* input, int64_t rows, void* out) const;

 private:
  struct Tensors;
  std::unique_ptr<Tensors> tensors_;
  int64_t out_features_;
  int64_t in_features_;
};

// Threads of LibTorch's pool, which all parallel work of this folder shares: a second pool would fight it for
// the cores. `threads` 0 = all cores. Returns the number in use.
int set_threads(int threads);

// Runs task(index, worker) for every index in [0, count), each once, on up to `threads` threads that take the
// next index when they are free; `worker` < threads names the thread's scratch memory. Returns when all are
// done. Rethrows the first exception.
void run_parallel(int64_t count, int threads, const std::function<void(int64_t index, int worker)>& task);

}  // namespace allot::model
