#include "kernels/cuda/pool_kernel.cuh"

namespace allot::kernels::cuda {

PoolKernel pool_kernel() {
  return make_pool_kernel();
}

}  // namespace allot::kernels::cuda
