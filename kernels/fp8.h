// Numbers of 8 bits (e4m3: a sign, 4 bits of exponent, 3 of fraction; no infinity) with a float32 scale for
// every row, and the conversion of rows to them. A row of weights is an output channel, a row of activations
// a token. The float32 arithmetic is the same on every processor and GPU, to the bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "kernels/estimator.h"

namespace allot::kernels {

inline constexpr float kMostE4m3 = 448;
inline constexpr uint8_t kE4m3Nan = 0x7F;

inline float float_from_e4m3(uint8_t bits) {
  const uint32_t exponent = (bits >> 3) & 15u, fraction = bits & 7u;
  float magnitude = std::ldexp(static_cast<float>(exponent == 0 ? fraction : 8 + fraction),
                               static_cast<int>(std::max(exponent, 1u)) - 10);
  if ((bits & 0x7Fu) == kE4m3Nan) magnitude = std::bit_cast<float>(0x7FC00000u);
  return (bits & 0x80u) != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even; what is beyond the largest, infinity too, becomes the largest. NaN stays
// NaN. As cvt.rn.satfinite.e4m3x2.f32 of PTX.
inline uint8_t e4m3_from_float(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | kE4m3Nan;
  const float limited = std::min(std::bit_cast<float>(magnitude), kMostE4m3);
  if (limited < 0x1p-6f) {  // a multiple of 2^-9
    // Of the sum, 2^-9 is the unit in the last place, so the addition rounds as wanted.
    const float aligned = limited + 0x1p14f;
    return sign | static_cast<uint8_t>(std::bit_cast<uint32_t>(aligned) - std::bit_cast<uint32_t>(0x1p14f));
  }
  const uint32_t wide = std::bit_cast<uint32_t>(limited);
  const uint32_t odd = (wide >> 20) & 1u;
  return sign | static_cast<uint8_t>((wide - (uint32_t{127 - 7} << 23) + 0x7FFFFu + odd) >> 20);
}

// Rows of smaller numbers than this are rounded as if it were the largest.
inline constexpr float kLeastFp8Range = 1e-30f;

struct Fp8Scale {
  float scale;    // an element is this times its 8 bits; NaN where an element of the row is not finite
  float inverse;  // elements times this are rounded to 8 bits; 0 there
};
// Of a row whose largest magnitude is `largest`; NaN where one is.
ALLOT_HOST_DEVICE inline Fp8Scale fp8_scale(float largest) {
  if (!(largest <= 3.4028234e38f)) return {NAN, 0};
  const float range = largest < kLeastFp8Range ? kLeastFp8Range : largest;
  return {range / kMostE4m3, kMostE4m3 / range};
}

// out = e4m3(input * inverse), with a scale for each row by its largest magnitude. Where an element is not
// finite the row's scale is NaN and its bits are 0, so that products with it are NaN.
struct QuantizeRowsParams {
  int64_t rows = 0;
  int32_t width = 0;              // >= 1
  DType dtype = DType::kFloat32;  // of input
  const void* input = nullptr;    // [rows, width]
  uint8_t* out = nullptr;         // [rows, width]; must not overlap input
  float* scales = nullptr;        // [rows]
};
// Throws InvalidArgument as in rows.h.
void quantize_rows(const QuantizeRowsParams& params, int num_threads);

}  // namespace allot::kernels
