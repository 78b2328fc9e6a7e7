// Matrix products on a CUDA device through cuBLASLt, each with the algorithm that was fastest when it was
// measured on this device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "kernels/estimator.h"

namespace allot::model::cuda {

// out = input * weight^T, and += the bias where there is one.
struct MatmulParams {
  int64_t rows = 0;          // >= 1
  int32_t out_features = 0;  // >= 1
  int32_t in_features = 0;   // >= 1
  // Of every array. Sums are float32 (never TF32), rounded once when stored.
  kernels::DType dtype = kernels::DType::kBFloat16;
  const void* input = nullptr;   // [rows, in_features], contiguous, aligned to 16 bytes
  const void* weight = nullptr;  // [out_features, in_features], contiguous, aligned to 16 bytes
  const void* bias = nullptr;    // [out_features]; null = none
  void* out = nullptr;           // [rows, out_stride], aligned to 16 bytes
  int64_t out_stride = 0;        // elements between rows of out, >= out_features
};

// Not for use by several threads at once, nor on several streams at once: products share a workspace.
class Matmul {
 public:
  // For the current device. Throws CudaError when the library cannot be set up.
  Matmul();
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Measures the candidates for this product on `stream` and keeps the fastest for all later products of the
  // same sizes, dtype, stride and presence of a bias. Overwrites `out`; waits for the stream; not while it is
  // being captured. The arrays need not hold numbers. Repeated calls for the same product measure nothing.
  void tune(const MatmulParams& params, cudaStream_t stream);

  // Queues the product. One that was not tuned runs with the library's first choice. Allocates no device
  // memory and may be captured. Throws InvalidArgument naming the value for sizes, alignment or strides that
  // are out of range, CudaError when the library refuses.
  void run(const MatmulParams& params, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::model::cuda
