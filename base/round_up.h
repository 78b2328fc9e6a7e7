#pragma once

#include <cstdint>

namespace allot {

// The smallest multiple of `step` > 0 that is not below `value` >= 0.
constexpr int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace allot
