#include "kernels/cuda/select_topk.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

ValueKernel topk_kernel_float16(int32_t head_dim, int32_t /*row_warps*/) {
  return value_kernel_of<TopkSelection, __half, 8>(head_dim);
}

}  // namespace allot::kernels::cuda
