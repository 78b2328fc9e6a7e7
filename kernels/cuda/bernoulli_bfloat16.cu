#include "kernels/cuda/bernoulli_kernel.cuh"

namespace allot::kernels::cuda {

ScoreKernel bernoulli_kernel_bfloat16(int32_t head_dim, int32_t column_tiles) {
  return bernoulli_kernel_of<__nv_bfloat16>(head_dim, column_tiles);
}

}  // namespace allot::kernels::cuda
