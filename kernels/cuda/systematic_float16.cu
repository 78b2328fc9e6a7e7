#include "kernels/cuda/select_systematic.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

ValueKernel systematic_kernel_float16(int32_t head_dim, int32_t row_warps) {
  return value_kernel_of<SystematicSelection, __half>(head_dim, row_warps);
}

}  // namespace allot::kernels::cuda
