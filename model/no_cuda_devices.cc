#include "base/error.h"
#include "model/cuda_devices.h"

namespace allot::model {

namespace {

constexpr const char* kReason = "this build has no CUDA; configure with the preset gpu";

}  // namespace

CudaDevices find_cuda_devices() {
  return {.devices = {}, .reason = kReason};
}

MemoryUse cuda_memory(int32_t index) {
  throw Unsupported("device cuda:" + std::to_string(index) + " has no memory to ask for: " + kReason);
}

CudaCheck check_cuda_device(int32_t index) {
  throw Unsupported("device cuda:" + std::to_string(index) + " cannot be checked: " + kReason);
}

}  // namespace allot::model
