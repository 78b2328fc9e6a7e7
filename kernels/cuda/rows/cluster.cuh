// The blocks of a cluster, or one block alone where a device has no clusters.
#pragma once

#include <cstdint>

namespace allot::kernels::cuda {

__device__ __forceinline__ uint32_t cluster_rank() {
#if __CUDA_ARCH__ >= 900
  return __clusterRelativeBlockRank();
#else
  return 0;
#endif
}

__device__ __forceinline__ uint32_t cluster_blocks() {
#if __CUDA_ARCH__ >= 900
  return __clusterSizeInBlocks();
#else
  return 1;
#endif
}

// A barrier of all threads of the cluster; shared memory written before it is visible to all after it.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
#else
  __syncthreads();
#endif
}

// The same variable in the shared memory of another block of the cluster.
template <class T>
__device__ __forceinline__ T* of_block(T* shared, [[maybe_unused]] uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  return static_cast<T*>(__cluster_map_shared_rank(shared, rank));
#else
  return shared;
#endif
}

}  // namespace allot::kernels::cuda
