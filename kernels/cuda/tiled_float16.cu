#include "kernels/cuda/select_tiled.cuh"
#include "kernels/cuda/value_table.cuh"

namespace allot::kernels::cuda {

ValueKernel tiled_kernel_float16(int32_t head_dim, int32_t row_warps) {
  return value_kernel_of<TiledSelection, __half>(head_dim, row_warps);
}

}  // namespace allot::kernels::cuda
