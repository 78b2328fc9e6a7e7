#include "kernels/cuda/split_values.cuh"

namespace allot::kernels::cuda {

ValueKernel split_value_kernel_bfloat16(Estimator estimator, int32_t head_dim, Workers workers) {
  return split_value_kernel_of<__nv_bfloat16>(estimator, head_dim, workers);
}

}  // namespace allot::kernels::cuda
