// IEEE 754 half precision in memory; arithmetic is float32 or double.
#pragma once

#include <bit>
#include <cstdint>

namespace allot::kernels {

inline float float_from_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112;  // 127 - 15
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

// Rounds to nearest, ties to even; overflow gives infinity.
inline uint16_t float16_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;   // NaN
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // 65520 and above
  if (magnitude < 0x38800000u) {                        // below 2^-14: a multiple of 2^-24
    // Adding 0.5 leaves one unit of 2^-24 in the last place, so the addition rounds as wanted.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(aligned) - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return sign | static_cast<uint16_t>((magnitude - 0x38000000u + 0xFFFu + odd) >> 13);
}

}  // namespace allot::kernels
