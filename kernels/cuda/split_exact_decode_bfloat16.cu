#include "kernels/cuda/exact_decode_table.cuh"

namespace allot::kernels::cuda {

ScoreKernel split_exact_decode_kernel_bfloat16(int32_t head_dim, int32_t column_tiles) {
  return split_exact_decode_kernel_of<__nv_bfloat16>(head_dim, column_tiles);
}

}  // namespace allot::kernels::cuda
