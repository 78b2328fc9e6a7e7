// The rules of a Bernoulli query (S2ANTA paper, Appendix C) for one element at a time, on host and device:
// how likely a sample succeeds, which draws do, and what the estimate is. Probabilities are double as in
// reference.h, so that both count the same successes.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/philox.h"
#include "kernels/sampling.h"

namespace allot::kernels {

// An element of a query, or of a head group's mean query, as Bernoulli variables.
struct BernoulliElement {
  float gain = 0;          // one success of B adds element * gain to the estimate of a query's element
  uint32_t threshold = 0;  // an independent sample succeeds when the 24 bits of its draw are below
  int32_t successes = 0;
};

// `magnitude` is |q_i|, or the head group's mean of it; `norm` the largest magnitude of the query.
ALLOT_HOST_DEVICE inline BernoulliElement bernoulli_element(double magnitude, double norm, int32_t budget) {
  if (magnitude == 0) return {};
  const double probability = magnitude / norm;
  // An element that is infinite or NaN makes every score of the query NaN, as exact scores would be.
  if (!std::isfinite(magnitude)) return {.gain = NAN, .threshold = 0, .successes = 1};
  return {.gain = static_cast<float>(norm / (budget * magnitude)),
          .threshold = static_cast<uint32_t>(std::ceil(probability * 0x1p24)),
          .successes = 0};
}

// Estimate of element `q` of a query: norm * sign(q) * successes / B for a single head (equation 9), q / m
// times the mean query's estimate for a head group (equation 13).
ALLOT_HOST_DEVICE inline float bernoulli_estimate(float q, const BernoulliElement& element) {
  if (element.successes == 0) return 0;
  return q * element.gain * static_cast<float>(element.successes);
}

// Draws of one Bernoulli query.
struct BernoulliDraws {
  DrawRow row;
  int32_t head_dim;
  int32_t budget;  // B

  // Successes of element `i` with stratified samples. The uniform number of sample b lies in
  // [b/B, (b + 1)/B): samples below floor(B * probability) always succeed, those above it never, so one draw
  // decides (none where all B succeed).
  ALLOT_HOST_DEVICE int32_t stratified(int32_t i, double probability) const {
    const auto sure = static_cast<int32_t>(budget * probability);
    const double u = draw_uniform(row, bernoulli_draw(sure, i, head_dim));
    return sure + ((sure + u) / budget < probability ? 1 : 0);
  }

  // Successes of elements i to i + 3 in sample `b`, added to `successes`. i is a multiple of 4, so that the
  // four draws are the words of one Philox block.
  ALLOT_HOST_DEVICE void count(int32_t b, int32_t i, const uint32_t (&threshold)[4],
                               int32_t (&successes)[4]) const {
    const PhiloxBlock block = philox4x32_10(
        {{row.question, (row.layer << 16) | row.head, row.position, bernoulli_draw(b, i, head_dim) / 4}},
        row.key.run_seed, row.key.sampling_seed);
    for (int k = 0; k < 4; ++k) successes[k] += (block.word[k] >> 8) < threshold[k] ? 1 : 0;
  }
};

}  // namespace allot::kernels
