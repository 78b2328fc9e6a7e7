// How the row kernels and the token sampler are queued: overlapping their predecessor, in clusters where a
// row is shared by several blocks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/attention_cuda.h"

namespace allot::kernels::cuda {

struct RowGrid {
  uint32_t rows = 0;   // blocks along x
  uint32_t parts = 1;  // blocks along y
  uint32_t threads = 0;
  uint32_t cluster = 1;  // blocks of a cluster along x, less and fewer in all where the device has no room
  uint32_t shared_bytes = 0;  // of dynamic shared memory
};

// Throws CudaError when the launch is refused.
void launch_overlapped(const void* kernel, const RowGrid& grid, const DeviceLimits& limits, CudaStream stream,
                       void** arguments);

// All threads of `kernel` call begin_overlapped() first, or else wait_for_predecessor() before they touch
// what other kernels write or read.
template <class... Args>
void launch_overlapped(void (*kernel)(Args...), const RowGrid& grid, const DeviceLimits& limits,
                       CudaStream stream, std::type_identity_t<Args>... args) {
  void* arguments[] = {&args...};
  launch_overlapped(reinterpret_cast<const void*>(kernel), grid, limits, stream, arguments);
}

}  // namespace allot::kernels::cuda
