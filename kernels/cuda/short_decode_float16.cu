#include "kernels/cuda/short_decode_table.cuh"

namespace allot::kernels::cuda {

ShortDecodeKernel short_decode_kernel_float16(Estimator estimator, int32_t head_dim) {
  return short_decode_kernel_of<__half>(estimator, head_dim);
}

}  // namespace allot::kernels::cuda
