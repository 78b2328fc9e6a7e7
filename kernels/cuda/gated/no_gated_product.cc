// For builds that have no machine code for compute capability 9.0.
#include "kernels/cuda/gated/layout.h"

namespace allot::kernels {

void gated_product_cuda(const GatedProductParams& params, const DeviceLimits& limits, CudaStream) {
  cuda::check(params, limits);  // says that there is no kernel
}

}  // namespace allot::kernels
