// The keys that sixteen rows of a prompt take, as lane_select.h finds them: lane i is row i.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/lanes.h"
#include "kernels/cpu/workspace.h"

namespace allot::kernels::cpu {

// What sixteen rows choose from.
struct LaneSizes {
  const float* sizes;  // [keys, 16], proportional to what makes a key likely; none below 0
  int32_t keys;
  int32_t lanes;  // rows; nothing is chosen in the lanes behind them
};

// The keys of each row in their order. The weight of a pick is 1 / the probability that the key is taken.
class LanePicks {
 public:
  LanePicks(const LaneSizes& rows, Workspace& work)
      : stride_(int64_t{rows.keys} +
                kLanes),  // lists a power of two apart would share their place in a cache
        lists_(work.pick_lists.reserve(kLanes * stride_)) {}

  void add(int32_t lane, const Pick& pick) { lists_[lane * stride_ + counts_[lane]++] = pick; }
  std::span<Pick> of(int32_t lane) const {
    return {lists_ + lane * stride_, static_cast<size_t>(counts_[lane])};
  }

 private:
  int64_t stride_;
  Pick* lists_;
  int32_t counts_[kLanes] = {};
};

}  // namespace allot::kernels::cpu
