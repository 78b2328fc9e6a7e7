#include "policy/multinomial.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace allot::policy {

std::vector<double> softmax(std::span<const double> logits) {
  const double largest = *std::ranges::max_element(logits);
  std::vector<double> shares(logits.size());
  double sum = 0;
  for (size_t layer = 0; layer < logits.size(); ++layer) {
    shares[layer] = std::exp(logits[layer] - largest);
    sum += shares[layer];
  }
  for (double& share : shares) share /= sum;
  return shares;
}

std::vector<int32_t> draw_multinomial(std::span<const double> logits, int64_t draws, DrawStream stream) {
  std::vector<double> cumulative = softmax(logits);
  std::partial_sum(cumulative.begin(), cumulative.end(), cumulative.begin());
  std::vector<int32_t> counts(logits.size());
  for (int64_t draw = 0; draw < draws; ++draw) {
    // The product stays below the last entry: uniform() is at most 1 - 2^-53, so the layer found exists and
    // has a share.
    const auto layer = std::ranges::upper_bound(cumulative, stream.uniform() * cumulative.back());
    ++counts[static_cast<size_t>(std::min(layer, cumulative.end() - 1) - cumulative.begin())];
  }
  return counts;
}

double multinomial_log_prob(std::span<const int32_t> counts, std::span<const double> logits) {
  const double largest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  double draws = 0;
  double log_prob = 0;
  for (size_t layer = 0; layer < counts.size(); ++layer) {
    draws += counts[layer];
    log_prob += counts[layer] * (logits[layer] - log_sum) - std::lgamma(counts[layer] + 1.0);
  }
  return log_prob + std::lgamma(draws + 1);
}

std::vector<double> multinomial_score(std::span<const int32_t> counts, std::span<const double> logits) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  std::vector<double> score = softmax(logits);
  for (size_t layer = 0; layer < score.size(); ++layer) score[layer] = counts[layer] - draws * score[layer];
  return score;
}

}  // namespace allot::policy
