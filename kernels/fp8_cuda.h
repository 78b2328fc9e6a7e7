// Matrix products with weights of 8 bits (fp8.h) on a CUDA GPU: what surrounds the library's products of
// 8-bit rows, and a kernel of its own for few rows, whose activations stay in 16 bits.
//
// A call queues one kernel on `stream`. It allocates nothing, never waits for the device and may be captured
// in a CUDA graph. On compute capability 9.0 and newer the kernel starts while its predecessors in the stream
// end (programmatic dependent launch). Deterministic: every row is computed by itself in a fixed order, and
// its result does not depend on the other rows; that of fp8_matvec_cuda depends on their number in so far as
// more than 8 are added up in another order.
//
// All functions throw InvalidArgument naming the value before anything is queued, CudaError when the launch
// is refused.
#pragma once

#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/fp8.h"
#include "kernels/rows.h"

namespace allot::kernels {

// Equal to the CPU's to the bit.
void quantize_rows_cuda(const QuantizeRowsParams& params, const DeviceLimits& limits, CudaStream stream);

// Where an operation leaves rows of 8 bits.
struct QuantizedRows {
  uint8_t* elements = nullptr;  // e4m3 [rows, width], aligned to 16 bytes; overlaps no other array
  float* scales = nullptr;      // [rows]
};

// Operations of rows_cuda.h whose `out`, rounded to bfloat16, goes to `out` as quantize_rows_cuda makes it,
// to the bit, and nowhere else: that of the parameters is not used. dtype is bfloat16, width a multiple of
// 16, arrays are aligned to 16 bytes, and int8_grid is not set.
void rms_norm_quantized_cuda(const RmsNormParams& params, const QuantizedRows& out,
                             const DeviceLimits& limits, CudaStream stream);
void activate_and_multiply_quantized_cuda(const ActivateAndMultiplyParams& params, const QuantizedRows& out,
                                          const DeviceLimits& limits, CudaStream stream);

inline constexpr int64_t kMaxFp8MatvecRows = 16;

// out = input * (weight_scales weight)^T + bias: the factors of a product are the input and the number
// that 8 bits stand for, exactly, sums are float32, and the scale and the bias come before the only rounding.
// Bound by reading the weights, a byte each, which begins while other kernels end and start, as in
// matvec_cuda.h.
struct Fp8MatvecParams {
  int64_t rows = 0;             // 0 to kMaxFp8MatvecRows
  int32_t out_features = 0;     // >= 1
  int32_t in_features = 0;      // a multiple of 16, >= 16
  const void* input = nullptr;  // bfloat16 [rows, in_features], contiguous, aligned to 16 bytes
  // e4m3 [out_features, in_features], contiguous, aligned to 16 bytes. Read before the kernels queued earlier
  // have ended: none of them may write it unless the stream, or an event after the write, has been waited for
  // since.
  const uint8_t* weight = nullptr;
  const float* weight_scales = nullptr;  // [out_features]
  const void* bias = nullptr;            // bfloat16 [out_features]; null = none
  void* out = nullptr;                   // bfloat16 [rows, out_stride]; no part of another array
  int64_t out_stride = 0;  // elements between rows of out, >= out_features; the gap is not written
};

// True when fp8_matvec_cuda has a kernel for a product of these sizes.
[[nodiscard]] bool fp8_matvec_supports(int64_t rows, int32_t in_features);

void fp8_matvec_cuda(const Fp8MatvecParams& params, const DeviceLimits& limits, CudaStream stream);

// out[row, feature] *= input_scales[row] weight_scales[feature], plus the bias, rounded once: what is left of
// a product of 8-bit numbers where the library took no scales.
struct ScaleProductParams {
  int64_t rows = 0;
  int32_t out_features = 0;              // >= 1
  const float* input_scales = nullptr;   // [rows]
  const float* weight_scales = nullptr;  // [out_features]
  const void* bias = nullptr;            // bfloat16 [out_features]; null = none
  void* out = nullptr;                   // bfloat16 [rows, out_stride]
  int64_t out_stride = 0;                // elements between rows of out, >= out_features
};
void scale_product_cuda(const ScaleProductParams& params, const DeviceLimits& limits, CudaStream stream);

}  // namespace allot::kernels
