#include "repeated_row.h"

#include <cmath>

namespace allot::kernels::testing {

LaunchSpec repeated_row(const Sequence& row, int32_t repeats, int32_t head_dim, double score_deviation,
                        uint32_t seed) {
  return {.sequences = std::vector<Sequence>(static_cast<size_t>(repeats), row),
          .num_q_heads = 1,
          .num_kv_heads = 1,
          .head_dim = head_dim,
          .page_size = 16,
          .score_deviation = score_deviation,
          .seed = seed,
          .repeat_first = true};
}

std::vector<double> exact_output(const AttentionParams& p) {
  const std::vector<double> probabilities = reference::softmax(reference::scores(p, kFirstRow));
  const std::vector<double> values = reference::values(p, kFirstRow);
  const auto head_dim = static_cast<size_t>(p.head_dim);
  std::vector<double> result(head_dim, 0.0);
  for (size_t n = 0; n < probabilities.size(); ++n) {
    for (size_t i = 0; i < head_dim; ++i) result[i] += probabilities[n] * values[n * head_dim + i];
  }
  return result;
}

Estimates estimates_of(const AttentionParams& p, const std::vector<double>& outputs) {
  const auto head_dim = static_cast<size_t>(p.head_dim);
  Estimates result{exact_output(p), MeanEstimate(head_dim), MeanEstimate(1)};
  for (size_t first = 0; first < outputs.size(); first += head_dim) {
    result.output.add(&outputs[first]);
    double error = 0;
    for (size_t i = 0; i < head_dim; ++i) error += std::pow(outputs[first + i] - result.exact[i], 2);
    result.squared_error.add(&error);
  }
  return result;
}

}  // namespace allot::kernels::testing
