#include "kernels/cuda/score_table.cuh"

namespace allot::kernels::cuda {

ScoreKernel score_kernel_bfloat16(int32_t head_dim, int32_t column_tiles, ScoreUse use) {
  return score_kernel_of<__nv_bfloat16>(head_dim, column_tiles, use);
}

}  // namespace allot::kernels::cuda
