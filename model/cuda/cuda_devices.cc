#include "model/cuda_devices.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace allot::model {
namespace {

constexpr size_t kCheckedBytes = 64 << 10;
constexpr unsigned char kPattern = 0xA5;

// False where another process holds the memory or the device that the call needs.
bool got(cudaError_t status, const char* call, int32_t index) {
  if (status == cudaSuccess) return true;
  (void)cudaGetLastError();  // else the next call would report it
  if (status == cudaErrorMemoryAllocation || status == cudaErrorDevicesUnavailable) return false;
  throw CudaError("device cuda:" + std::to_string(index) + ": " + call + ": " + cudaGetErrorString(status) +
                  "; look for Xid lines in the kernel's log and drain the node");
}

// Bytes a second that the memory's clock and the width of its bus allow, with two transfers a cycle.
double memory_rate(int32_t index) {
  int kilohertz = 0, bits = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, index) != cudaSuccess) {
    (void)cudaGetLastError();  // else the next launch would report it
    return 0;
  }
  return 2e3 * kilohertz * bits / 8;
}

// Why the runtime counts no devices.
std::string reason_of(cudaError_t counted) {
  if (counted == cudaSuccess) return "the driver counts 0 devices";
  // Without a driver the runtime itself would say that the driver is too old.
  int version = 0;
  if (counted == cudaErrorInsufficientDriver && cudaDriverGetVersion(&version) == cudaSuccess && version == 0)
    return "there is no NVIDIA driver: libcuda.so.1 cannot be loaded";
  return cudaGetErrorString(counted);
}

}  // namespace

CudaDevices find_cuda_devices() {
  CudaDevices found;
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess || count == 0) {
    (void)cudaGetLastError();  // else the next launch would report it
    found.reason = reason_of(counted);
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
                             .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                             .memory_bytes_per_second = memory_rate(index)});
  }
  return found;
}

MemoryUse cuda_memory(int32_t index) {
  size_t free = 0, total = 0;
  cudaError_t status = cudaSetDevice(index);
  if (status == cudaSuccess) status = cudaMemGetInfo(&free, &total);
  if (status != cudaSuccess) {
    throw CudaError("device cuda:" + std::to_string(index) +
                    ": cudaMemGetInfo: " + cudaGetErrorString(status));
  }
  return {.used = static_cast<int64_t>(total - free), .total = static_cast<int64_t>(total)};
}

CudaCheck check_cuda_device(int32_t index) {
  if (!got(cudaSetDevice(index), "cudaSetDevice", index)) return CudaCheck::kTaken;
  void* memory = nullptr;
  if (!got(cudaMalloc(&memory, kCheckedBytes), "cudaMalloc", index)) return CudaCheck::kTaken;
  std::vector<unsigned char> back(kCheckedBytes, 0);
  const bool ran =
      got(cudaMemset(memory, kPattern, kCheckedBytes), "cudaMemset", index) &&
      got(cudaMemcpy(back.data(), memory, kCheckedBytes, cudaMemcpyDeviceToHost), "cudaMemcpy", index);
  (void)cudaFree(memory);
  if (!ran) return CudaCheck::kTaken;
  const auto wrong = std::ranges::find_if(back, [](unsigned char byte) { return byte != kPattern; });
  if (wrong != back.end()) {
    throw CudaError("device cuda:" + std::to_string(index) + " computes wrongly: byte " +
                    std::to_string(wrong - back.begin()) + " of " + std::to_string(kCheckedBytes) + " is " +
                    std::to_string(*wrong) + " after a fill with " + std::to_string(kPattern) +
                    "; drain the node and have the GPU tested");
  }
  return CudaCheck::kWorks;
}

}  // namespace allot::model
