#include "kernels/cuda/bernoulli_kernel.cuh"

namespace allot::kernels::cuda {

ScoreKernel bernoulli_kernel_float16(int32_t head_dim, int32_t column_tiles) {
  return bernoulli_kernel_of<__half>(head_dim, column_tiles);
}

}  // namespace allot::kernels::cuda
