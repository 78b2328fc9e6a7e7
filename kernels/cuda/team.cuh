// The threads that work on one row where they know of each other's findings: those of a RowGroup, or of
// several blocks, a cluster, which tell each other through shared memory.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/row_group.cuh"

namespace allot::kernels::cuda {

template <int kWarps>
class Team {
  static constexpr bool kMayBeCluster = kWarps == 8;

 public:
  // Block `rank` of `size`, more than one only where a row has eight warps of a block. All of them must have
  // called arrive_at_cluster(); none ends before the last sync(), after which nothing is told.
  __device__ __forceinline__ Team(const RowGroup<kWarps>& group, int32_t rank, int32_t size)
      : group_(group), rank_(rank), size_(size) {
    if (kMayBeCluster && size_ > 1) wait_for_cluster();  // until all have started
  }

  __device__ __forceinline__ int32_t rank() const { return kMayBeCluster ? rank_ : 0; }
  __device__ __forceinline__ int32_t size() const { return kMayBeCluster ? size_ : 1; }

  // The threads of all blocks meet, and see what was told before.
  __device__ __forceinline__ void sync() const {
    if (size() == 1) return group_.sync();
    arrive_at_cluster();
    wait_for_cluster();
  }

  // Where block `rank` has what this one has at `own`, in shared memory.
  template <class T>
  __device__ __forceinline__ T* there(T* own, int32_t rank) const {
    return size() == 1 ? own : in_block_of_cluster(own, rank);
  }

  // Calls tell(i, block), i < count, for each of the blocks, on a thread of its own as far as there are.
  template <class Tell>
  __device__ __forceinline__ void tell_all(int32_t count, Tell tell) const {
#pragma unroll 1
    for (int32_t i = group_.thread(); i < count * size(); i += group_.kThreads) {
      const int32_t block = size() == 1 ? 0 : i / count;
      tell(i - block * count, block);
    }
  }

 private:
  const RowGroup<kWarps>& group_;
  const int32_t rank_;
  const int32_t size_;
};

}  // namespace allot::kernels::cuda
