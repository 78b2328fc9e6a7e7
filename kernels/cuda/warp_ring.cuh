// A ring of stages in shared memory that one warp keeps full of keys. Every warp has its own, so warps never
// wait for one another and tens of kilobytes are in flight on each multiprocessor, which is what it takes to
// read at the memory's full rate. From compute capability 9.0 on one bulk copy a stage fills it; before,
// 16-byte copies by all lanes.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

template <int kStageBytes, int kStages>
class WarpRing {
 public:
  static constexpr int kBytes = kStageBytes * kStages;
  static constexpr int kBarrierBytes = 8 * kStages;

  // `data` is kBytes of shared memory aligned to 128, `barriers` kBarrierBytes aligned to 8. All lanes call;
  // needs a block barrier before the first fill.
  __device__ __forceinline__ WarpRing(char* data, uint64_t* barriers, int lane) : lane_(lane) {
    data_address_ = static_cast<uint32_t>(__cvta_generic_to_shared(data));
    barrier_address_ = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      for (int i = 0; i < kStages; ++i) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier_address_ + 8 * i) : "memory");
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncwarp();
    // Keys are read once: they must not push the weights out of L2.
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
#endif
  }

  // Starts the copy of kStageBytes from `source` (aligned to 16 bytes) into the next free stage.
  __device__ __forceinline__ void fill(const char* source) {
#if __CUDA_ARCH__ >= 900
    if (lane_ == 0) fill_slot(fill_slot_, source);
#else
    const uint32_t target = data_address_ + fill_slot_ * kStageBytes;
    for (int offset = lane_ * 16; offset < kStageBytes; offset += 512) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + offset), "l"(source + offset)
                   : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
    fill_slot_ = fill_slot_ + 1 == kStages ? 0 : fill_slot_ + 1;
    ++in_flight_;
  }

  // Stages filled and not given back: at most kStages.
  __device__ __forceinline__ int32_t in_flight() const {
    return in_flight_;
  }

  // The first fills of a run of `stages`: lane i brings the source of stage i, and lanes fill as many as fit
  // at once. Returns how many stages are filled; the ring must be empty.
  __device__ __forceinline__ int32_t fill_first(const char* source, int32_t stages) {
    const int32_t count = min(stages, kStages);
#if __CUDA_ARCH__ >= 900
    if (lane_ < count) {
      const int32_t slot = fill_slot_ + lane_ < kStages ? fill_slot_ + lane_ : fill_slot_ + lane_ - kStages;
      fill_slot(slot, source);
    }
    fill_slot_ = fill_slot_ + count < kStages ? fill_slot_ + count : fill_slot_ + count - kStages;
    in_flight_ += count;
#else
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      fill(reinterpret_cast<const char*>(__shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(source), i)));
    }
#endif
    return count;
  }

  // Waits for the oldest stage in flight and returns its address in shared memory.
  __device__ __forceinline__ uint32_t wait() {
#if __CUDA_ARCH__ >= 900
    const uint32_t barrier = barrier_address_ + 8 * read_slot_;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra ready;\n"
        "bra again;\n"
        "ready:\n"
        "}\n" ::"r"(barrier),
        "r"(phase_)
        : "memory");
#else
    // The count of groups that may stay in flight is a constant: a ring that is not full is waited for whole.
    if (in_flight_ == kStages) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 1) : "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncwarp();
#endif
    return data_address_ + read_slot_ * kStageBytes;
  }

  // Gives the stage returned by wait() back; the next fill may overwrite it.
  __device__ __forceinline__ void advance() {
    __syncwarp();
    --in_flight_;
    if (++read_slot_ == kStages) {
      read_slot_ = 0;
      phase_ ^= 1;
    }
  }

 private:
#if __CUDA_ARCH__ >= 900
  __device__ __forceinline__ void fill_slot(int32_t slot, const char* source) const {
    const uint32_t target = data_address_ + slot * kStageBytes;
    const uint32_t barrier = barrier_address_ + 8 * slot;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kStageBytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(target),
        "l"(source), "r"(kStageBytes), "r"(barrier), "l"(policy_)
        : "memory");
  }
#endif

  uint32_t data_address_;
  uint32_t barrier_address_;
  int lane_;
  int fill_slot_ = 0;
  int read_slot_ = 0;
  int in_flight_ = 0;
  uint32_t phase_ = 0;
  uint64_t policy_ = 0;
};

}  // namespace allot::kernels::cuda
