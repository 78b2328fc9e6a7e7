#include "cuda_launch.h"
#include "device.h"

namespace allot::kernels::testing {

void DeviceTest::SetUp() {
  skip_without_gpu();
}

size_t device_repeats(size_t wanted) {
  return wanted;
}

bool device_has_clusters() {
  return gpu_limits().compute_capability >= 90;
}

std::vector<double> run_on_device(Launch& launch, KernelsOf kernels) {
  CudaLaunch on_gpu(launch);
  if (kernels == KernelsOf::kOlderDevices) on_gpu.limits.compute_capability = 80;
  if (kernels == KernelsOf::kOneMultiprocessor) on_gpu.limits.multiprocessors = 1;
  return on_gpu.run();
}

}  // namespace allot::kernels::testing
