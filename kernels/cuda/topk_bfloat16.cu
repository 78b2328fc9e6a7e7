#include "kernels/cuda/select_topk.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

ValueKernel topk_kernel_bfloat16(int32_t head_dim, int32_t /*row_warps*/) {
  return value_kernel_of<TopkSelection, __nv_bfloat16, 8>(head_dim);
}

}  // namespace allot::kernels::cuda
