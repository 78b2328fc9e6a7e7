#include "kernels/cuda/rows/launch.h"

#include <cuda_runtime.h>
#include <spdlog/fmt/fmt.h>

#include "base/error.h"

namespace allot::kernels::cuda {

namespace {

// A cluster of more blocks may not exist on every device.
constexpr uint32_t kPortableCluster = 8;

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw CudaError(fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
  }
}

}  // namespace

void launch_overlapped(const void* kernel, const RowGrid& grid, const DeviceLimits& limits, CudaStream stream,
                       void** arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (limits.compute_capability >= 90) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (grid.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {grid.cluster, 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.rows, grid.parts);
  config.blockDim = dim3(grid.threads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  if (grid.cluster > kPortableCluster) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          "cudaFuncSetAttribute");
  }
  check(cudaLaunchKernelExC(&config, kernel, arguments), "cudaLaunchKernelExC");
}

}  // namespace allot::kernels::cuda
