#include "kernels/torch/cuda_tensors.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include "base/error.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace {

using at::Tensor;

// Makes a tensor's device current for PyTorch and for the CUDA runtime linked into this library, which has
// its own current device, and finds PyTorch's stream there.
class CudaContext {
 public:
  explicit CudaContext(const Tensor& tensor) : guard_(tensor.device()), device_(tensor.device().index()) {
    const cudaError_t status = cudaSetDevice(device_);
    if (status != cudaSuccess) {
      throw CudaError("attention: CUDA device " + std::to_string(device_) +
                      " cannot be made current: " + cudaGetErrorString(status));
    }
    stream_ = static_cast<CudaStream>(
        c10::impl::getDeviceGuardImpl(at::kCUDA)->getStream(tensor.device()).native_handle());
  }
  CudaStream stream() const { return stream_; }

  // The driver is asked once per device.
  const DeviceLimits& limits() const {
    static std::mutex mutex;
    static std::map<int, DeviceLimits> known;
    const std::lock_guard lock(mutex);
    const auto found = known.find(device_);
    return found != known.end() ? found->second
                                : known.emplace(device_, device_limits(device_)).first->second;
  }

 private:
  c10::DeviceGuard guard_;
  int device_;
  CudaStream stream_ = nullptr;
};

CudaWorkspace workspace_of(const Tensor& workspace) {
  return {.data = workspace.mutable_data_ptr(), .bytes = static_cast<size_t>(workspace.numel())};
}

}  // namespace

void launch_cuda(const AttentionParams& params, const LaunchBounds& bounds, const Tensor& query,
                 const Tensor& workspace) {
  const CudaContext context(query);
  attend_cuda(params, bounds, context.limits(), workspace_of(workspace), context.stream());
}

int64_t workspace_bytes_cuda(const AttentionParams& params, const LaunchBounds& bounds, const Tensor& query) {
  const CudaContext context(query);
  return static_cast<int64_t>(cuda_workspace_bytes(params, bounds, context.limits()));
}

void store_value_norms_cuda(const ValueNormsParams& params, const Tensor& values) {
  const CudaContext context(values);
  store_value_norms_cuda(params, context.limits(), context.stream());
}

void reset_workspace_cuda(const Tensor& workspace) {
  reset_cuda_workspace(workspace_of(workspace), CudaContext(workspace).stream());
}

void check_workspace_cuda(const Tensor& workspace) {
  check_cuda(workspace_of(workspace), CudaContext(workspace).stream());
}

}  // namespace allot::kernels
