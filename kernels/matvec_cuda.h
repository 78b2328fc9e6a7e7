// Products of a few rows with a weight matrix on a CUDA GPU, which take most of a decode step of few
// sequences. They are bound by reading the weights, so the reads continue while other kernels end and start.
//
// A call queues one kernel on `stream`. It allocates nothing, never waits for the device and may be captured
// in a CUDA graph. On compute capability 9.0 and newer the kernel starts while its predecessors in the stream
// end (programmatic dependent launch), begins to read the weights at once, and waits for the predecessors
// before it touches any other array.
//
// Deterministic: sums, those of tensor cores, have a fixed order, which depends on in_features, on whether
// there are 65536 features or more and then on whether there are more than 8 rows: so a row's result does not
// depend on the other rows.
#pragma once

#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/estimator.h"

namespace allot::kernels {

inline constexpr int64_t kMaxMatvecRows = 16;

// out = input * weight^T + bias.
struct MatvecParams {
  int64_t rows = 0;          // 0 to kMaxMatvecRows
  int32_t out_features = 0;  // >= 1
  int32_t in_features = 0;   // a multiple of 8, >= 8
  // Of every array, bfloat16 or float16. Sums are float32; the bias is added before the only rounding.
  DType dtype = DType::kBFloat16;
  const void* input = nullptr;  // [rows, in_features], contiguous, aligned to 16 bytes
  // [out_features, in_features], contiguous, aligned to 16 bytes. Read before the kernels queued earlier
  // have ended: none of them may write it unless the stream, or an event after the write, has been
  // waited for since.
  const void* weight = nullptr;
  const void* bias = nullptr;  // [out_features]; null = none
  void* out = nullptr;         // [rows, out_stride]; no part of another array
  int64_t out_stride = 0;      // elements between rows of out, >= out_features; the gap is not written
};

// True when matvec_cuda has a kernel for a product of these sizes.
[[nodiscard]] bool matvec_supports(int64_t rows, int32_t in_features, DType dtype);

// Throws InvalidArgument naming the value, before anything is queued, unless `params` is as MatvecParams
// says; CudaError when the launch is refused.
void matvec_cuda(const MatvecParams& params, const DeviceLimits& limits, CudaStream stream);

}  // namespace allot::kernels
