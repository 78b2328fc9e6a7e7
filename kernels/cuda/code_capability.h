// What launches may use of a device: its machine code may be that of an older one.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace allot::kernels::cuda {

// DeviceLimits::compute_capability of a device of this compute capability (90 for 9.0) whose kernels were
// compiled for that of `code` (cudaFuncAttributes::ptxVersion): the driver translates code of 8.0 for any
// newer device, but does not put in what __CUDA_ARCH__ has left out of it. Such a kernel never waits for its
// predecessor, so it must not be launched to overlap it, and it takes itself for a block without a cluster.
constexpr int32_t usable_capability(int32_t device, int32_t code) {
  return std::min(device, code);
}

// Blocks of a cluster of which `fits(blocks)` says that the device has room for one: as many as wanted, or
// half, or half of that and so on. One block needs no cluster.
template <class Fits>
constexpr uint32_t fitting_cluster(uint32_t wanted, const Fits& fits) {
  uint32_t blocks = std::bit_floor(std::max(wanted, 1u));
  while (blocks > 1 && !fits(blocks)) blocks /= 2;
  return blocks;
}

}  // namespace allot::kernels::cuda
