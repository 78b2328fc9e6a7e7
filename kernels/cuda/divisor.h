// Division by a number the host knows: a multiplication and a shift, where a division by a variable is a call
// of some twenty instructions.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace allot::kernels::cuda {

class Divisor {
 public:
  Divisor() = default;
  // `value` in [1, 2^31).
  explicit constexpr Divisor(int32_t value) : value_(value) {
    while ((int64_t{1} << shift_) < value) ++shift_;
    // Rounded up, so that the error of a quotient stays below 1 / value for every dividend below 2^31.
    multiplier_ = static_cast<uint32_t>(((uint64_t{1} << (31 + shift_)) + value - 1) / value);
  }

  ALLOT_HOST_DEVICE constexpr int32_t value() const { return value_; }

  // x / value for 0 <= x < 2^31.
  ALLOT_HOST_DEVICE constexpr int32_t quotient(int32_t x) const {
    const uint32_t twice = 2 * static_cast<uint32_t>(x);
#ifdef __CUDA_ARCH__
    return static_cast<int32_t>(__umulhi(twice, multiplier_) >> shift_);
#else
    return static_cast<int32_t>((uint64_t{twice} * multiplier_ >> 32) >> shift_);
#endif
  }

 private:
  int32_t value_ = 1;
  int32_t shift_ = 0;
  uint32_t multiplier_ = 0x80000000u;
};

}  // namespace allot::kernels::cuda
