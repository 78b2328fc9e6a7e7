#include "kernels/cuda/shared_kernel.cuh"

namespace allot::kernels::cuda {

ValueKernel shared_kernel_bfloat16(int32_t head_dim, int32_t row_warps) {
  return shared_kernel_of<__nv_bfloat16>(head_dim, row_warps);
}

}  // namespace allot::kernels::cuda
