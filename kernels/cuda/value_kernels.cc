// The CUDA value kernels of the estimators, as their rows name them.
#include "kernels/cuda/kernel_table.h"

namespace allot::kernels::methods {
namespace {

using Kernel = cuda::ValueKernel (*)(int32_t head_dim, int32_t row_warps);

Kernel of_dtype(DType dtype, Kernel bfloat16, Kernel float16) {
  return dtype == DType::kBFloat16 ? bfloat16 : float16;
}
Kernel targets(DType dtype) {
  return of_dtype(dtype, cuda::targets_kernel_bfloat16, cuda::targets_kernel_float16);
}
Kernel tiled(DType dtype) {
  return of_dtype(dtype, cuda::tiled_kernel_bfloat16, cuda::tiled_kernel_float16);
}

}  // namespace

cuda::ValueKernel Exact::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return of_dtype(dtype, cuda::dense_kernel_bfloat16, cuda::dense_kernel_float16)(head_dim, row_warps);
}
cuda::ValueKernel Iid::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return targets(dtype)(head_dim, row_warps);
}
cuda::ValueKernel Strat::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return targets(dtype)(head_dim, row_warps);
}
cuda::ValueKernel Sys::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return targets(dtype)(head_dim, row_warps);
}
cuda::ValueKernel Prop::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return tiled(dtype)(head_dim, row_warps);
}
cuda::ValueKernel Flash::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return tiled(dtype)(head_dim, row_warps);
}
cuda::ValueKernel Joint::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return of_dtype(dtype, cuda::shared_kernel_bfloat16, cuda::shared_kernel_float16)(head_dim, row_warps);
}
cuda::ValueKernel Pooled::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return of_dtype(dtype, cuda::shared_kernel_bfloat16, cuda::shared_kernel_float16)(head_dim, row_warps);
}
cuda::ValueKernel Level::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return of_dtype(dtype, cuda::shared_kernel_bfloat16, cuda::shared_kernel_float16)(head_dim, row_warps);
}
cuda::ValueKernel Threshold::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return of_dtype(dtype, cuda::threshold_kernel_bfloat16, cuda::threshold_kernel_float16)(head_dim,
                                                                                          row_warps);
}
cuda::ValueKernel Topk::cuda_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return of_dtype(dtype, cuda::topk_kernel_bfloat16, cuda::topk_kernel_float16)(head_dim, row_warps);
}

}  // namespace allot::kernels::methods
