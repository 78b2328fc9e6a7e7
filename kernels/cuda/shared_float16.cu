#include "kernels/cuda/shared_kernel.cuh"

namespace allot::kernels::cuda {

ValueKernel shared_kernel_float16(int32_t head_dim, int32_t row_warps) {
  return shared_kernel_of<__half>(head_dim, row_warps);
}

}  // namespace allot::kernels::cuda
