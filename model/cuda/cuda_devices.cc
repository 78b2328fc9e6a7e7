#include "model/cuda_devices.h"

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace allot::model {

CudaDevices find_cuda_devices() {
  CudaDevices found;
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess || count == 0) {
    (void)cudaGetLastError();  // it would otherwise be blamed on the next launch
    found.reason = counted == cudaSuccess ? "the driver counts 0 devices" : cudaGetErrorString(counted);
    return found;
  }
  for (int index = 0; index < count; ++index) {
    cudaDeviceProp properties;
    const cudaError_t status = cudaGetDeviceProperties(&properties, index);
    if (status != cudaSuccess) {
      throw CudaError("cudaGetDeviceProperties of device " + std::to_string(index) + " of " +
                      std::to_string(count) + ": " + cudaGetErrorString(status));
    }
    found.devices.push_back({.index = index,
                             .product = properties.name,
                             .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return found;
}

}  // namespace allot::model
