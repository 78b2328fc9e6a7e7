#include "kernels/cuda/select_dense.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

ValueKernel dense_kernel_bfloat16(int32_t head_dim, int32_t row_warps) {
  return value_kernel_of<DenseSelection, __nv_bfloat16>(head_dim, row_warps);
}

}  // namespace allot::kernels::cuda
