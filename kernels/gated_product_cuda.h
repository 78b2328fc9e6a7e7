// The first half of a layer's MLP on a CUDA GPU in one kernel: products with the weights of gate and up, and
// activation(gate) * up of what they give, for the many rows of a large batch or of a prompt. What matrix
// products alone would write and read once more, [rows, 2 * width], never leaves the multiprocessor.
//
// A call queues one kernel on `stream`. It allocates nothing, never waits for the device and may be captured
// in a CUDA graph. The kernel starts while its predecessors in the stream end and waits for them before it
// touches any array.
//
// Deterministic: a sum has its terms in ascending order, those of 16 in the tensor cores' own; so a row's
// result depends neither on the other rows nor on their number.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/attention_cuda.h"
#include "kernels/estimator.h"

namespace allot::kernels {

// out = activation(input * gate^T) * (input * up^T), where weight holds the rows of gate and behind them
// those of up.
struct GatedProductParams {
  int64_t rows = 0;         // >= 0
  int32_t width = 0;        // of gate, of up and of out: a multiple of 8, >= 8
  int32_t in_features = 0;  // a multiple of 8, >= 8
  // Of every array, bfloat16 or float16. Sums, the activation and its product are float32, rounded once.
  DType dtype = DType::kBFloat16;
  Activation activation = Activation::kSilu;
  const void* input = nullptr;   // [rows, in_features], contiguous, aligned to 16 bytes
  const void* weight = nullptr;  // [2 * width, in_features], contiguous, aligned to 16 bytes
  void* out = nullptr;           // [rows, width], contiguous, aligned to 16 bytes; no part of another array
};

// True when gated_product_cuda has a kernel for a product of these sizes on such a device: those of compute
// capability 9.0, where this build has machine code for them.
[[nodiscard]] bool gated_product_supports(int32_t width, int32_t in_features, DType dtype,
                                          const DeviceLimits& limits);

// Throws, before anything is queued, InvalidArgument naming the value unless `params` is as
// GatedProductParams says, Unsupported where there is no kernel; CudaError when the launch is refused.
void gated_product_cuda(const GatedProductParams& params, const DeviceLimits& limits, CudaStream stream);

}  // namespace allot::kernels
