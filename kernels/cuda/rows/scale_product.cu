// One block a row: not for speed, since products whose scales the library does not take are those of GPUs
// that allot is not tuned for.
#include <algorithm>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/fp8_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

__global__ void __launch_bounds__(512) scale_product(ScaleProductParams p) {
  begin_overlapped();
  auto* const out = static_cast<__nv_bfloat16*>(p.out) + int64_t{blockIdx.x} * p.out_stride;
  const float of_row = p.input_scales[blockIdx.x];
  for (auto i = static_cast<int32_t>(threadIdx.x); i < p.out_features;
       i += static_cast<int32_t>(blockDim.x)) {
    float x = as_float(out[i]) * (of_row * p.weight_scales[i]);
    if (p.bias != nullptr) x += as_float(static_cast<const __nv_bfloat16*>(p.bias)[i]);
    out[i] = rounded<__nv_bfloat16>(x);
  }
}

}  // namespace
}  // namespace cuda

void scale_product_cuda(const ScaleProductParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  const uint32_t threads = std::min(512u, (static_cast<uint32_t>(p.out_features) + 31) / 32 * 32);
  cuda::launch_overlapped(cuda::scale_product, {.rows = static_cast<uint32_t>(p.rows), .threads = threads},
                          limits, stream, p);
}

}  // namespace allot::kernels
