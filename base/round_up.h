#pragma once

#include <cstdint>

namespace allot {

// The smallest multiple of `step` that is at least `value`; `step` > 0 and `value` >= 0.
constexpr int64_t round_up(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

}  // namespace allot
