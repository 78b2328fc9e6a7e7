#include "cuda_launch.h"
#include "device.h"

namespace allot::kernels::testing {

void DeviceTest::SetUp() {
  skip_without_gpu();
}

size_t device_repeats(size_t wanted) {
  return wanted;
}

std::vector<double> run_on_device(Launch& launch) {
  return run_cuda(launch);
}

}  // namespace allot::kernels::testing
