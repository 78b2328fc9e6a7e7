// Numbers of the items of a launch that a warp works on: first two of its own, then whichever is next.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// All lanes of warp `worker` of `workers` call its functions together. The number that follows is asked for
// an item earlier than it is needed, and not touched until then: all warps ask at once when a launch begins,
// and wait microseconds for their answers.
class ItemNumbers {
 public:
  // `counter` is zero before and after the launch, since take_next() is called once for each of its `items`.
  __device__ __forceinline__ ItemNumbers(int32_t* counter, int32_t items, int32_t worker, int32_t workers)
      : counter_(counter),
        items_(items),
        workers_(workers),
        is_first_lane_(threadIdx.x % 32 == 0),
        handed_out_(worker - 2 * workers) {}

  // The warp's item; from `items` on there is none.
  __device__ __forceinline__ int32_t number() const {
    return 2 * workers_ + __shfl_sync(kFullWarp, handed_out_, 0);
  }
  // After the first: the second of the warp's own.
  __device__ __forceinline__ void take_own() { handed_out_ += workers_; }
  // After any other, the last one's included.
  __device__ __forceinline__ void take_next() {
    if (items_ <= 2 * workers_) {
      handed_out_ = items_;  // nothing is left to hand out
    } else if (is_first_lane_) {
      handed_out_ = take_number(counter_, items_);
    }
  }

 private:
  int32_t* const counter_;
  const int32_t items_;
  const int32_t workers_;
  const bool is_first_lane_;
  int32_t handed_out_;  // of the first lane: by the counter, from 0 on; the warps' own are below 0
};

}  // namespace allot::kernels::cuda
