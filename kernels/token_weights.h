// The rule by which a token is chosen, shared by the CPU and the CUDA sampler so that both choose the same
// one. A token's weight is an integer, its probability relative to the most likely token's: sums of weights
// do not depend on their order, and the weights themselves follow from float products, sums and fused
// multiply-adds, each rounded once where it is written, so host and device agree to the bit.
//
// With the weights of a row, `total` their sum and u the 32 random bits of the row:
//   nucleus: the heaviest tokens until their mass reaches nucleus_mass(total, top_p), of equal weights the
//     lowest ids;
//   choice: the lowest id of the nucleus at which the mass of the nucleus up to and including that id exceeds
//     target_mass(mass of the nucleus, u).
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "base/philox.h"

namespace allot::kernels {

// Weight of the most likely token: as fine as the 32 random bits that a choice is made with.
inline constexpr uint32_t kLargestTokenWeight = 1u << 31;

namespace token_weights {

// A product and a sum that no compiler may fuse on the device. Host code that calls token_weight() is
// compiled with -ffp-contract=off where the baseline processor has fused operations.
ALLOT_HOST_DEVICE inline float product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
ALLOT_HOST_DEVICE inline float sum(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
// a b + c, rounded once.
ALLOT_HOST_DEVICE inline float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}
ALLOT_HOST_DEVICE inline uint32_t bits_of(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}

}  // namespace token_weights

// Logit of a seen token: Hugging Face's repetition penalty.
ALLOT_HOST_DEVICE inline float penalised(float logit, float penalty) {
  return logit > 0 ? logit / penalty : token_weights::product(logit, penalty);
}

// Factor of token_weight() for a temperature above 0; finite even for the smallest.
ALLOT_HOST_DEVICE inline float weight_scale(float temperature) {
  return fminf(1.4426950408889634f / temperature, FLT_MAX);
}

// 2^31 exp((logit - largest) / temperature), rounded down, with scale = weight_scale(temperature): exactly
// 2^31 for the largest logit, within 6e-6 of itself plus 1 elsewhere, 0 below 2^-31. logit <= largest,
// neither is NaN and largest is finite.
ALLOT_HOST_DEVICE inline uint32_t token_weight(float logit, float largest, float scale) {
  using token_weights::product, token_weights::sum, token_weights::fused;
  constexpr float kToInteger = 0x1.8p23f;  // adding it rounds to an integer, kept in the lowest bits
  const float y = product(sum(logit, -largest), scale);
  const float shifted = sum(y, kToInteger);
  const float r = sum(y, -sum(shifted, -kToInteger));
  // Minimax polynomial of 2^r on [-1/2, 1/2], relative error 2.9e-6 with the constant term fixed at 1.
  float power = 9.582853080e-03f;
  power = fused(power, r, 5.590642462e-02f);
  power = fused(power, r, 2.402409861e-01f);
  power = fused(power, r, 6.931241934e-01f);
  power = fused(power, r, 1.0f);
  const uint32_t exponent = token_weights::bits_of(shifted) - token_weights::bits_of(kToInteger);
  const uint32_t bits = token_weights::bits_of(power) + (exponent << 23);  // of 2^y
  const uint32_t fraction = (bits << 8) | 0x80000000u;
  // From -31 on the shift is at most 31; NaN and what is below give 0.
  return y >= -31.0f ? fraction >> ((127u - (bits >> 23)) & 31u) : 0;
}

// Least mass of the nucleus: top_p of the total, at least 1 so that the nucleus is never empty.
ALLOT_HOST_DEVICE inline uint64_t nucleus_mass(uint64_t total, float top_p) {
  const double mass = ceil(static_cast<double>(top_p) * static_cast<double>(total));
  const uint64_t least = mass >= 1 ? static_cast<uint64_t>(mass) : 1;
  return least < total ? least : total;
}

// Tokens of weight `threshold` that the nucleus takes, where the heavier ones have mass `above` < least.
ALLOT_HOST_DEVICE inline uint32_t nucleus_ties(uint64_t least, uint64_t above, uint32_t threshold) {
  return static_cast<uint32_t>((least - above + threshold - 1) / threshold);
}

// floor(mass * random / 2^32) for mass < 2^63.
ALLOT_HOST_DEVICE inline uint64_t target_mass(uint64_t mass, uint32_t random) {
  return (mass >> 32) * random + (((mass & 0xFFFFFFFFu) * random) >> 32);
}

}  // namespace allot::kernels
