// bfloat16: the upper half of a float32.
#pragma once

#include <bit>
#include <cstdint>

namespace allot::kernels {

constexpr float float_from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// Round to nearest, ties to even; NaN stays NaN.
constexpr uint16_t bfloat16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace allot::kernels
