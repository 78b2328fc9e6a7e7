#include "kernels/cuda/exact_decode_table.cuh"

namespace allot::kernels::cuda {

ScoreKernel split_exact_decode_kernel_float16(int32_t head_dim, int32_t column_tiles) {
  return split_exact_decode_kernel_of<__half>(head_dim, column_tiles);
}

}  // namespace allot::kernels::cuda
