// The query of a row as float32 after the score stage: as it is, or its Bernoulli estimate (S2ANTA
// paper, Appendix C).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/bfloat16.h"
#include "kernels/cpu/item_data.h"
#include "kernels/cpu/vec_generic.h"
#include "kernels/sampling.h"

namespace allot::kernels::cpu {

constexpr float to_float(float x) {
  return x;
}
constexpr float to_float(uint16_t x) {
  return float_from_bfloat16(x);
}

// Successes among B Bernoulli variables of probability `probability`, for element i of the query.
template <class V>
int32_t bernoulli_successes(const AttentionParams& p, const DrawRow& draws, int32_t i, float probability) {
  if (p.method.score_stage == ScoreStage::kBernoulliStrat) {
    // The uniform of sample b lies in [b/B, (b + 1)/B): samples below floor(B * probability) always succeed,
    // the one at it with the fraction left, those above never. So one draw decides.
    const float expected = static_cast<float>(p.method.score_budget) * probability;
    const auto sure = static_cast<int32_t>(expected);
    if (sure >= p.method.score_budget) return p.method.score_budget;
    const float u = draw_uniform(draws, bernoulli_draw(sure, i, p.head_dim));
    return sure + (u < expected - static_cast<float>(sure) ? 1 : 0);
  }
  int32_t successes = 0;
  for (int32_t b = 0; b < p.method.score_budget; ++b) {
    successes += draw_uniform(draws, bernoulli_draw(b, i, p.head_dim)) < probability ? 1 : 0;
  }
  return successes;
}

// Writes the query's head_dim elements to `result`.
template <class V, class T>
void score_query(const ItemData<V, T>& data, int64_t query, int32_t head, float* result) {
  const AttentionParams& p = data.p;
  const T* exact = data.query(query, head);
  if (data.exact_scores) {
    int32_t i = 0;
    for (; i + kLanes <= p.head_dim; i += kLanes) V::store(result + i, V::load(exact + i));
    if (i < p.head_dim)
      V::store_partial(result + i, V::load_partial(exact + i, p.head_dim - i), p.head_dim - i);
    return;
  }
  // Not the item's first head: one item may hold several head groups.
  const int32_t first_head = p.method.mean_group_query ? head - head % data.group : head;
  const int32_t heads = p.method.mean_group_query ? data.group : 1;
  float magnitude[256];  // largest head_dim
  float norm = 0;
  for (int32_t i = 0; i < p.head_dim; ++i) {
    float sum = 0;
    for (int32_t h = first_head; h < first_head + heads; ++h)
      sum += std::fabs(to_float(data.query(query, h)[i]));
    magnitude[i] = sum / static_cast<float>(heads);
    norm = std::max(norm, magnitude[i]);
  }
  const DrawRow draws = data.draws(query, first_head);
  for (int32_t i = 0; i < p.head_dim; ++i) {
    result[i] = 0;
    if (magnitude[i] == 0) continue;
    const float probability = magnitude[i] / norm;
    const auto successes = static_cast<float>(bernoulli_successes<V>(p, draws, i, probability));
    // Equation 13; for a single head q / m is the sign, which makes it equation 9.
    result[i] = to_float(exact[i]) * (successes / (probability * static_cast<float>(p.method.score_budget)));
  }
}

}  // namespace allot::kernels::cpu
