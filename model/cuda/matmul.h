// Matrix products on a CUDA device through cuBLASLt, each with the library's first choice of algorithm or
// with the one that was measured to be fastest on this device: one of the library's algorithms or, for a few
// rows, a kernel of its own (kernels/matvec_cuda.h, kernels/fp8_cuda.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "kernels/activation.h"
#include "kernels/estimator.h"
#include "kernels/fp8_cuda.h"

namespace allot::model::cuda {

// out = input * weight^T, plus the bias where there is one.
struct MatmulParams {
  int64_t rows = 0;          // >= 1
  int32_t out_features = 0;  // >= 1
  int32_t in_features = 0;   // >= 1
  // Of every array. Sums are float32 (never TF32), rounded once when stored. With a bias cuBLASLt may round
  // twice: the product to the dtype, then its sum with the bias. matvec_cuda rounds once.
  kernels::DType dtype = kernels::DType::kBFloat16;
  const void* input = nullptr;  // [rows, in_features], contiguous, aligned to 16 bytes
  // The input is not read: its 8 bits are where Matmul::quantized_input() says.
  bool quantized = false;
  // [out_features, in_features], contiguous, aligned to 16 bytes. A tuned product may read it before the
  // kernels queued earlier have ended: wait for the stream after writing it.
  const void* weight = nullptr;
  // Not null: weight is e4m3 (kernels/fp8.h) and these are the scales of its rows [out_features] float32;
  // dtype is bfloat16 and in_features a multiple of 16.
  const float* weight_scales = nullptr;
  const void* bias = nullptr;  // [out_features], aligned to 16 bytes; null = none
  // [rows, out_stride], aligned to 16 bytes; no part of another array. Elements from out_features on
  // are not written.
  void* out = nullptr;
  int64_t out_stride = 0;  // elements between rows of out, >= out_features
  // Not null: the weights are those of gate and, behind them, of up, and activation(gate) * up of the product
  // comes here, [rows, out_features / 2], contiguous, aligned to 16 bytes, as activate_and_multiply_cuda has
  // it. What `out` holds afterwards is undefined; out_stride is out_features. gated_product_cuda, where it is
  // chosen, does not round the product before the activation.
  void* activated = nullptr;
  kernels::Activation activation = kernels::Activation::kSilu;
};

// Throws InvalidArgument naming the value unless the sizes, the stride and the addresses are as MatmulParams
// says; sizes and the stride are at most 2147483647. Calls nothing of CUDA.
void validate_matmul(const MatmulParams& params);

// Determinism: the same product with the same algorithm gives the same bits in every run on the same model of
// GPU and version of cuBLASLt. Algorithms that split in_features are used only where the partial sums are
// kept in float32 in the workspace and added by a step of its own (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
// those that add into `out` or keep partial sums in its dtype would round the product more than once.
// Algorithms, of which matvec_cuda and gated_product_cuda count as two, differ in the order of a sum and in
// the rounding before a bias, and so in the last bits:
//   - a row's result may depend on the number of rows, since another number has another algorithm;
//   - tune() chooses by time, so two processes may choose differently. Only products that are not tuned
//     repeat from process to process.
//
// Weights of 8 bits have two kinds of products, which differ by more than rounding:
//   - up to kMaxFp8MatvecRows rows, fp8_matvec_cuda: the input stays in 16 bits. It is also the first choice
//     without tuning, and computes products of more rows, 16 at a time, which the library has no algorithm
//     for;
//   - the library's, of tensor cores for 8 bits: the input is quantised as the weights are, with a scale for
//     every row (quantize_rows_cuda). Sums are those of the tensor cores, of some 14 bits. Where the library
//     does not take scales of rows and channels in a product (before 12.9, and on compute capabilities other
//     than 9.0) they are applied in a second step, which rounds once more.
//
// Not for use by several threads at once, nor on several streams at once: products share a workspace.
class Matmul {
 public:
  // What tune() chooses from.
  enum class Candidates { kAll, kLibrary };  // kLibrary: cuBLASLt's algorithms only, where it has any
  // Where the library's products with weights of 8 bits are scaled.
  enum class Fp8Scaling { kInProduct, kAfterwards };  // kInProduct: where the library can

  // For the current device, 64 MiB of which become the workspace. Throws Error when that does not fit,
  // CudaError when the library cannot be set up.
  explicit Matmul(Candidates candidates = Candidates::kAll, Fp8Scaling scaling = Fp8Scaling::kInProduct);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // Makes memory for the quantised inputs of products with weights of 8 bits, of up to `rows` rows of
  // `in_features` elements. Graphs that were captured before are stale.
  void reserve_fp8(int64_t rows, int32_t in_features);

  // Measures up to 32 algorithms for this product on `stream` and keeps the fastest for all later products of
  // the same sizes, dtype, stride and presence of a bias. Overwrites `out`; waits for the stream. The arrays
  // need not hold numbers. Repeated calls for the same product measure nothing.
  //
  // Where a kernel of few rows supports the product, it is measured as well and kept unless an algorithm of
  // the library takes less than 95 % of its time: the measurement does not show that it starts to read
  // weights while the small kernels before it in a decode step end, which the library's kernels wait for.
  // With `activated`, the activation is part of what is measured, and so is gated_product_cuda beyond few
  // rows. From 512 rows on that one is taken without measuring, and only loaded here: such products
  // draw all the power that a GPU has, and the few milliseconds of a measurement, at a higher clock, favour
  // the library (one H100, 1,536 rows, width 18,944 of 3,584 features: 655 us against 614; under load 625
  // against 683).
  //
  // Each algorithm runs in CUDA graphs of 5 to 32 products in a row, as in a captured decode step, which read
  // copies of the weights in turn: of matrices of an eighth of the L2 cache and more the copies are together
  // four times as large as the cache, so that they are read from memory, as they are between the other
  // matrices of a large model. Smaller ones come in part from the cache. The copies take up to four times the
  // cache's size of device memory while it runs.
  //
  // Throws InvalidArgument as run() does and for a stream that is being captured, Error when the copies do
  // not fit, CudaError when no algorithm runs.
  void tune(const MatmulParams& params, cudaStream_t stream);

  // Where the operation that makes the input of this product may leave it as 8 bits instead
  // (rms_norm_quantized_cuda and others), just before run() with `quantized`: every product has the same
  // place. Null where the product takes its input in 16 bits, or reserve_fp8() made no room. Throws as run().
  kernels::QuantizedRows quantized_input(const MatmulParams& params);

  // Queues the product. One that was not tuned runs with the library's first choice, or with
  // gated_product_cuda where it has `activated` and 512 rows or more. Allocates no device
  // memory of its own and may be captured; the first product of its sizes makes the driver load a kernel,
  // which should happen before a capture. Throws as validate_matmul does, InvalidArgument for a quantised
  // input that reserve_fp8() made no room for or that the product does not take, CudaError when the library
  // refuses.
  void run(const MatmulParams& params, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::model::cuda
