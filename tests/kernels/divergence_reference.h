// The divergence of rows of logits by its definition, in double precision, and rows to compute it of.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "launch.h"

namespace allot::kernels::testing {

struct ReferenceDivergence {
  double divergence = 0;
  bool same_top = false;
};

// Of the `width` logits from `first` on in both.
inline ReferenceDivergence reference_divergence(const Elements& dense, const Elements& sampled, int64_t first,
                                                int32_t width) {
  const auto log_softmax = [&](const Elements& logits, int32_t* top) {
    *top = 0;
    for (int32_t i = 1; i < width; ++i) {
      if (logits.get(first + i) > logits.get(first + *top)) *top = i;
    }
    const double largest = logits.get(first + *top);
    double sum = 0;
    for (int32_t i = 0; i < width; ++i) sum += std::exp(logits.get(first + i) - largest);
    std::vector<double> logs;
    for (int32_t i = 0; i < width; ++i) logs.push_back(logits.get(first + i) - largest - std::log(sum));
    return logs;
  };
  int32_t dense_top = 0, sampled_top = 0;
  const std::vector<double> p = log_softmax(dense, &dense_top), q = log_softmax(sampled, &sampled_top);
  ReferenceDivergence reference{.same_top = dense_top == sampled_top};
  for (int32_t i = 0; i < width; ++i) reference.divergence += std::exp(p[i]) * (p[i] - q[i]);
  return reference;
}

// Pairs of rows from equal over nearly equal to wholly different; those of the last pair differ by a
// constant, which changes no probability. What lies between rows is no logit.
struct DivergingRows {
  static constexpr int64_t kRows = 7;

  DivergingRows(DType dtype, int32_t width_, int64_t stride_)
      : width(width_), stride(stride_), dense(dtype, kRows * stride, 77), sampled(dtype, kRows * stride, 77) {
    std::mt19937 random(21);
    std::normal_distribution<float> normal;
    constexpr float kScales[kRows] = {0, 1e-3f, 0.03f, 0.5f, 3, 20, 0};
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t at = row * stride; at < row * stride + width; ++at) {
        dense.set(at, 3 * normal(random));
        sampled.set(at, dense.get(at) + kScales[row] * normal(random) + (row + 1 == kRows ? 8.0f : 0.0f));
      }
    }
  }
  ReferenceDivergence expected(int64_t row) const {
    return reference_divergence(dense, sampled, row * stride, width);
  }

  int32_t width;
  int64_t stride;
  Elements dense;
  Elements sampled;
};

}  // namespace allot::kernels::testing
