// The inner loops of row_divergence (kernels/rows.h) for rows [begin, end), as templates over the vector
// type. Three passes over a pair of rows: the largest logits, the sums of exponentials, the terms of the
// divergence. Arguments are checked by the caller.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/cpu/row_kernels.h"

namespace allot::kernels::cpu {

// Logits at p; lanes beyond the row's end have no probability in either row.
template <class V, class T>
ALLOT_INLINE typename V::F load_logits(const T* p, int lanes) {
  if (lanes == kLanes) return V::load(p);
  float copy[kLanes];
  V::store(copy, V::load_partial(p, lanes));
  for (int i = lanes; i < kLanes; ++i) copy[i] = std::numeric_limits<float>::lowest();
  return V::load(copy);
}

// Sum of term(i, lanes) over a row: float32 within 1024 elements, double beyond.
template <class V, class Term>
ALLOT_INLINE double sum_of_row(int64_t width, const Term& term) {
  constexpr int64_t kFloatElements = 64 * kLanes;
  double sum = 0;
  for (int64_t begin = 0; begin < width; begin += kFloatElements) {
    typename V::F part = V::zero();
    const int64_t left = width - begin;
    for_lanes<V>(left < kFloatElements ? left : kFloatElements,
                 [&](int64_t i, int lanes) { part = part + term(begin + i, lanes); });
    sum += V::reduce_add(part);
  }
  return sum;
}

// What the softmax of a row needs.
struct RowSoftmax {
  float largest;
  int64_t top;       // where it is, the first on a tie
  float inverse;     // of the sum of exp(logit - largest)
  double log_total;  // log of the sum of exp(logit)
};

template <class V, class T>
ALLOT_INLINE RowSoftmax softmax_of(const T* row, int64_t width) {
  using F = typename V::F;
  F highest = V::set1(std::numeric_limits<float>::lowest());
  for_lanes<V>(width,
               [&](int64_t i, int lanes) { highest = V::max(highest, load_logits<V>(row + i, lanes)); });
  RowSoftmax softmax{};
  softmax.largest = V::reduce_max(highest);
  const F largest = V::set1(softmax.largest);
  constexpr uint32_t kAllLess = (1u << kLanes) - 1;
  for (int64_t i = 0; i < width; i += kLanes) {
    const int lanes = width - i < kLanes ? static_cast<int>(width - i) : kLanes;
    const uint32_t less = V::less_bits(load_logits<V>(row + i, lanes), largest);
    if (less == kAllLess) continue;
    softmax.top = i + __builtin_ctz(~less);
    break;
  }
  const double sum = sum_of_row<V>(width, [&](int64_t i, int lanes) {
    return exp2<V>((load_logits<V>(row + i, lanes) - largest) * V::set1(kLog2E));
  });
  softmax.inverse = static_cast<float>(1 / sum);
  softmax.log_total = softmax.largest + std::log(sum);
  return softmax;
}

// (exp(-t) - 1 + t) / t^2 for |t| <= 1: its Taylor polynomial, relative error below 1e-7.
template <class V>
ALLOT_INLINE typename V::F divergence_series(typename V::F t) {
  using F = typename V::F;
  F series = V::set1(1.0f / 3628800);  // 1 / 10!
  series = V::fma(series, t, V::set1(-1.0f / 362880));
  series = V::fma(series, t, V::set1(1.0f / 40320));
  series = V::fma(series, t, V::set1(-1.0f / 5040));
  series = V::fma(series, t, V::set1(1.0f / 720));
  series = V::fma(series, t, V::set1(-1.0f / 120));
  series = V::fma(series, t, V::set1(1.0f / 24));
  series = V::fma(series, t, V::set1(-1.0f / 6));
  return V::fma(series, t, V::set1(0.5f));
}

template <class V, class T>
void divergence_rows(const DivergenceParams& params, int64_t begin, int64_t end) {
  using F = typename V::F;
  const int64_t width = params.vocab_size;
  for (int64_t row = begin; row < end; ++row) {
    const T* dense = static_cast<const T*>(params.dense) + row * params.stride;
    const T* sampled = static_cast<const T*>(params.sampled) + row * params.stride;
    const RowSoftmax of_dense = softmax_of<V>(dense, width);
    const RowSoftmax of_sampled = softmax_of<V>(sampled, width);
    const F shift = V::set1(static_cast<float>(of_dense.log_total - of_sampled.log_total));
    const auto probability = [](F logit, const RowSoftmax& softmax) {
      return exp2<V>((logit - V::set1(softmax.largest)) * V::set1(kLog2E)) * V::set1(softmax.inverse);
    };
    const double divergence = sum_of_row<V>(width, [&](int64_t i, int lanes) {
      const F a = load_logits<V>(dense + i, lanes);
      const F b = load_logits<V>(sampled + i, lanes);
      const F t = a - b - shift;
      const F p = probability(a, of_dense);
      const F q = probability(b, of_sampled);
      // Of large |t| exp(-t) may overflow where p exp(-t) = q does not.
      const F far = V::fma(p, t, q - p);
      const F near = p * t * t * divergence_series<V>(t);
      return V::select_less(V::max(t, V::zero() - t), V::set1(1.0f), near, far);
    });
    const bool finite = divergence == divergence;
    params.out[row] = {.divergence = static_cast<float>(divergence),
                       .same_top = finite && of_dense.top == of_sampled.top};
  }
}

}  // namespace allot::kernels::cpu
