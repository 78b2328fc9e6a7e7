// The CUDA devices of this machine: their names, their memory, and whether they work. Torch-free; a build
// without CUDA finds none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/memory_use.h"

namespace allot::model {

struct CudaDevice {
  int32_t index = 0;         // as the driver counts them, CUDA_VISIBLE_DEVICES applied
  std::string product;       // as the driver calls it: "NVIDIA H200"
  int64_t memory_bytes = 0;  // all of it, not only what is free
  // As its clock and the width of its bus give it, of which programs reach some nine tenths; 0 = not known.
  double memory_bytes_per_second = 0;
};

struct CudaDevices {
  std::vector<CudaDevice> devices;  // by index
  std::string reason;               // why there are none; empty where there are some
};

// Asks the driver; creates no context and uses no device memory. A machine without driver or GPU is not an
// error. Throws CudaError when the driver counts a device but does not describe it.
CudaDevices find_cuda_devices();

// What all processes use of the device's memory. Creates the process's context there, if it has none. Throws
// CudaError; Unsupported in a build without CUDA.
MemoryUse cuda_memory(int32_t index);

enum class CudaCheck {
  kWorks,  // the operation ran and its result was right
  kTaken,  // nothing could run: other processes have the device's memory, or the device to themselves
};

// Fills 64 KiB of the device's memory, on the device, and compares what comes back. Creates the process's
// context there, some hundreds of MiB. Throws CudaError, naming the call that failed or the first byte that
// is wrong; Unsupported in a build without CUDA.
CudaCheck check_cuda_device(int32_t index);

}  // namespace allot::model
