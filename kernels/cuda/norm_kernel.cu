#include "kernels/cuda/norm_kernel.cuh"

namespace allot::kernels::cuda {

NormKernel norm_kernel() {
  return make_norm_kernel();
}

}  // namespace allot::kernels::cuda
