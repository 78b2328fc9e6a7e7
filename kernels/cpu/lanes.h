// How many floats the kernels take at a time, whatever the width of the processor's registers.
#pragma once

namespace allot::kernels::cpu {

inline constexpr int kLanes = 16;

}  // namespace allot::kernels::cpu
