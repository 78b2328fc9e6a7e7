// A ring of stages in shared memory that one warp keeps full of keys. Every warp has its own, so warps never
// wait for one another and tens of kilobytes are in flight on each multiprocessor, which is what it takes to
// read at the memory's full rate. From compute capability 9.0 on one bulk copy a stage fills it; before,
// 16-byte copies by all lanes.
#pragma once

#include <cstdint>

#include "base/round_up.h"
#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// A stage that lies in one place.
template <int kBytes>
struct OneSource {
  const char* from = nullptr;

  __device__ __forceinline__ int32_t bytes() const { return kBytes; }
  // copy(offset in the stage, from, bytes) for each of its pieces.
  template <class Copy>
  __device__ __forceinline__ void each(const Copy& copy) const {
    copy(0, from, kBytes);
  }
  // What a lane of the warp has.
  __device__ __forceinline__ OneSource of_lane(int lane) const {
    return {reinterpret_cast<const char*>(__shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(from), lane))};
  }
};

// One with a second piece in another place, if it has any; that comes to lie at kSecondOffset. Both are whole
// sixteens of bytes.
template <int kSecondOffset>
struct TwoSources {
  const char* first = nullptr;
  const char* second = nullptr;
  int32_t first_bytes = 0;
  int32_t second_bytes = 0;

  __device__ __forceinline__ int32_t bytes() const { return first_bytes + second_bytes; }
  template <class Copy>
  __device__ __forceinline__ void each(const Copy& copy) const {
    copy(0, first, first_bytes);
    if (second_bytes > 0) copy(kSecondOffset, second, second_bytes);
  }
  __device__ __forceinline__ TwoSources of_lane(int lane) const {
    return {reinterpret_cast<const char*>(__shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(first), lane)),
            reinterpret_cast<const char*>(__shfl_sync(kFullWarp, reinterpret_cast<uint64_t>(second), lane)),
            __shfl_sync(kFullWarp, first_bytes, lane), __shfl_sync(kFullWarp, second_bytes, lane)};
  }
};

// kStageBytes are those of the largest stage, whole sixteens.
template <int kStageBytes, int kStages>
class WarpRing {
  static_assert((kStages & (kStages - 1)) == 0, "slots follow from the number of a stage by masking");

 public:
  // From a stage to the next: copies to places that lie in a line of 128 bytes as their source does are
  // faster.
  static constexpr int kSlotBytes = static_cast<int>(round_up(kStageBytes, 128));
  static constexpr int kBytes = kSlotBytes * kStages;
  static constexpr int kBarrierBytes = 8 * kStages;

  // `data` is kBytes of shared memory aligned to 128, `barriers` kBarrierBytes aligned to 8. What the copies
  // bring to L2 leaves it first, for the sake of all else there, or else in its turn. All lanes must call it.
  __device__ __forceinline__ WarpRing(char* data, uint64_t* barriers, int lane,
                                      [[maybe_unused]] bool leaves_first = true)
      : lane_(lane) {
    data_address_ = shared_address(data);
    barrier_address_ = shared_address(barriers);
#if __CUDA_ARCH__ >= 900
    if (lane < kStages) init_barrier(barrier_address_ + 8 * lane, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    if (leaves_first) {
      asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
    } else {
      asm volatile("createpolicy.fractional.L2::evict_unchanged.b64 %0, 1.0;" : "=l"(policy_));
    }
#endif
  }

  // Stages filled and read since the ring was made.
  __device__ __forceinline__ int32_t filled() const {
    return filled_;
  }
  __device__ __forceinline__ int32_t read() const {
    return read_;
  }

  // Starts the copies of as many stages as are free, up to number `known`. Lane i brings the source, aligned
  // to 16 bytes, of the next stage whose number is i modulo 32.
  __device__ __forceinline__ void fill(int32_t known, const char* source) {
    fill(known, OneSource<kStageBytes>{source});
  }
  template <class Source>
  __device__ __forceinline__ void fill(int32_t known, const Source& source) {
    const int32_t end = min(known, read_ + kStages);
#if __CUDA_ARCH__ >= 900
    if (const int32_t ahead = (lane_ - filled_) & 31; ahead < end - filled_) {
      const int32_t slot = (filled_ + ahead) & (kStages - 1);
      const uint32_t barrier = barrier_address_ + 8 * slot;
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                   "r"(source.bytes())
                   : "memory");
      source.each([&](int32_t offset, const char* from, int32_t bytes) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(data_address_ + slot * kSlotBytes + offset),
            "l"(from), "r"(bytes), "r"(barrier), "l"(policy_)
            : "memory");
      });
    }
    filled_ = end;
#else
#pragma unroll 1
    for (; filled_ < end; ++filled_) {
      const uint32_t target = data_address_ + (filled_ & (kStages - 1)) * kSlotBytes;
      source.of_lane(filled_ & 31).each([&](int32_t start, const char* from, int32_t bytes) {
        for (int offset = lane_ * 16; offset < bytes; offset += 512)
          copy_to_shared(target + start + offset, reinterpret_cast<uint64_t>(from) + offset);
      });
      end_group_of_copies();
    }
#endif
  }

  // Waits for the oldest stage that was filled and not read; its address in shared memory.
  __device__ __forceinline__ uint32_t wait() {
    const int32_t slot = read_ & (kStages - 1);
#if __CUDA_ARCH__ >= 900
    wait_at(barrier_address_ + 8 * slot, static_cast<uint32_t>(read_) / kStages);
#else
    // The count of groups that may stay in flight is a constant: a ring that is not full is waited for whole.
    if (filled_ - read_ == kStages) {
      wait_for_copies<kStages - 1>();
    } else {
      wait_for_copies<0>();
    }
    __syncwarp();
#endif
    return data_address_ + slot * kSlotBytes;
  }

  // Gives that stage back; the next fill may overwrite it.
  __device__ __forceinline__ void advance() {
    __syncwarp();
    ++read_;
  }

 private:
  uint32_t data_address_;
  uint32_t barrier_address_;
  int lane_;
  int32_t filled_ = 0;
  int32_t read_ = 0;
  uint64_t policy_ = 0;
};

}  // namespace allot::kernels::cuda
