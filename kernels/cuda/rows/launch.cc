#include "kernels/cuda/rows/launch.h"

#include <cuda_runtime.h>
#include <spdlog/fmt/fmt.h>

#include <map>
#include <mutex>
#include <tuple>

#include "base/error.h"
#include "kernels/cuda/code_capability.h"

namespace allot::kernels::cuda {

namespace {

// Every device with clusters has those of so many blocks; larger ones need that many multiprocessors side by
// side, which smaller GPUs and parts of large ones may lack.
constexpr uint32_t kPortableCluster = 8;

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw CudaError(fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
  }
}

// Blocks of a cluster of this kernel that the current device can have, up to those wanted. Asked once each.
uint32_t most_cluster(const void* kernel, const RowGrid& grid) {
  if (grid.cluster <= kPortableCluster) return grid.cluster;
  static std::mutex mutex;
  static std::map<std::tuple<const void*, int, uint32_t>, uint32_t> known;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({kernel, device, grid.cluster}, kPortableCluster);
  if (!is_new) return found->second;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "cudaFuncSetAttribute");
  found->second = fitting_cluster(grid.cluster, [&](uint32_t blocks) {
    if (blocks <= kPortableCluster) return true;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {blocks, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(grid.threads);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    const bool asked = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) == cudaSuccess;
    if (!asked) (void)cudaGetLastError();  // a size that the device does not know at all
    return asked && clusters > 0;
  });
  return found->second;
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
  if (grid.shared_bytes > 0) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)),
          "cudaFuncSetAttribute");
  }
  const uint32_t cluster = most_cluster(kernel, grid);
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid.rows / grid.cluster * cluster, grid.parts);
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  check(cudaLaunchKernelExC(&config, kernel, arguments), "cudaLaunchKernelExC");
}

}  // namespace allot::kernels::cuda
