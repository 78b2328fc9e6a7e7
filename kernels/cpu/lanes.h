// How many floats the kernels take at a time, whatever the width of the processor's registers.
#pragma once

namespace allot::kernels::cpu {

inline constexpr int kLanes = 16;

// The smallest multiple of kLanes that is at least `count` >= 0.
template <class T>
constexpr T whole_lanes(T count) {
  return (count + kLanes - 1) / kLanes * kLanes;
}

}  // namespace allot::kernels::cpu
