#include "model/cuda_devices.h"

namespace allot::model {

CudaDevices find_cuda_devices() {
  return {.devices = {}, .reason = "this build has no CUDA; configure with the preset gpu"};
}

}  // namespace allot::model
