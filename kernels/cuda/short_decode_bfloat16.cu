#include "kernels/cuda/short_decode_table.cuh"

namespace allot::kernels::cuda {

ShortDecodeKernel short_decode_kernel_bfloat16(Estimator estimator, int32_t head_dim) {
  return short_decode_kernel_of<__nv_bfloat16>(estimator, head_dim);
}

}  // namespace allot::kernels::cuda
