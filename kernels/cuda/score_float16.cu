#include "kernels/cuda/score_table.cuh"

namespace allot::kernels::cuda {

ScoreKernel score_kernel_float16(int32_t head_dim, int32_t column_tiles, ScoreUse use) {
  return score_kernel_of<__half>(head_dim, column_tiles, use);
}

}  // namespace allot::kernels::cuda
