#include "kernels/cuda/select_dense.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

ValueKernel dense_kernel_float16(int32_t head_dim, int32_t row_warps) {
  return value_kernel_of<DenseSelection, __half>(head_dim, row_warps);
}

}  // namespace allot::kernels::cuda
