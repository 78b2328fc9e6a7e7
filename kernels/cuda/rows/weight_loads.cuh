// How the products of few rows read their weights.
#pragma once

#include <cstdint>

namespace allot::kernels::cuda {

// Weights are read once: they bypass L1 and must not push activations and keys out of L2.
__device__ __forceinline__ uint64_t read_once() {
  uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A lane's 16 bytes. A warp takes 64 in a row of each weight at a time: L2 fetches the 256 around them at
// once, which the warp's next loads find there, since memory is faster in longer pieces.
__device__ __forceinline__ uint4 load_weights(const uint4* global, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global), "l"(policy));
  return v;
}

}  // namespace allot::kernels::cuda
