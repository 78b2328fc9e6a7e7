#include "evaluation/statistics.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "base/proportion.h"
#include "base/quantile.h"

namespace allot::evaluation {
namespace {

constexpr uint32_t kResamples = 10'000;

void check_proportion(int64_t correct, int64_t questions) {
  if (correct < 0 || correct > questions)
    throw InvalidArgument(fmt::format("{} right answers among {} questions; expected 0 <= right <= questions",
                                      correct, questions));
}

void check_pairs(int64_t only_first, int64_t only_second) {
  if (only_first < 0 || only_second < 0)
    throw InvalidArgument(
        fmt::format("{} and {} questions that one schedule alone got right; expected numbers >= 0",
                    only_first, only_second));
}

// The middle 95 % of resampled means of `values`: each resample draws as many values as there
// are, with replacement.
Interval bootstrap_mean(std::span<const double> values, uint32_t seed) {
  const auto count = static_cast<uint64_t>(values.size());
  std::vector<double> means(kResamples);
  for (uint32_t resample = 0; resample < kResamples; ++resample) {
    double sum = 0;
    for (uint64_t drawn = 0; drawn < count;) {
      const PhiloxBlock block = philox4x32_10(
          {{resample, static_cast<uint32_t>(drawn / 4), static_cast<uint32_t>(drawn >> 34), 0}}, seed, 0);
      for (int word = 0; word < 4 && drawn < count; ++word, ++drawn)
        sum += values[(uint64_t{block.word[word]} * count) >> 32];
    }
    means[resample] = sum / static_cast<double>(count);
  }
  return {quantile(means, 0.025), quantile(means, 0.975)};
}

// p-value of the sum of `differences` when each has either sign with probability 1/2.
double permutation_test(std::span<const double> differences, uint32_t seed) {
  constexpr uint32_t kSignKey = 1;  // a key apart from that of the bootstrap's draws
  double observed = 0, scale = 0;
  for (const double one : differences) observed += one, scale += std::abs(one);
  if (scale == 0) return 1;
  // Allows for rounding: equal sums that were added with other signs may differ in their last bits.
  const double least = std::abs(observed) - 1e-12 * scale;
  int64_t as_large = 1;
  for (uint32_t draw = 0; draw < kResamples; ++draw) {
    double sum = 0;
    PhiloxBlock block{};
    for (size_t i = 0; i < differences.size(); ++i) {
      const size_t bit = i % 128;
      if (bit == 0)
        block = philox4x32_10({{draw, static_cast<uint32_t>(i / 128), static_cast<uint32_t>(i >> 39), 0}},
                              seed, kSignKey);
      sum += (block.word[bit / 32] >> (bit % 32)) & 1 ? differences[i] : -differences[i];
    }
    as_large += std::abs(sum) >= least;
  }
  return static_cast<double>(as_large) / (kResamples + 1);
}

bool right_or_wrong(std::span<const double> scores) {
  return std::ranges::all_of(scores, [](double score) { return score == 0 || score == 1; });
}

void check_finite(std::span<const double> scores) {
  for (const double score : scores)
    if (!std::isfinite(score))
      throw InvalidArgument(fmt::format("a score is {}; a number is expected", score));
}

double mean_of(std::span<const double> scores) {
  if (scores.empty()) return 0;
  return std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(scores.size());
}

}  // namespace

Interval wilson_interval(int64_t correct, int64_t questions) {
  check_proportion(correct, questions);
  const auto [low, high] = wilson_bounds(correct, questions);
  return {low, high};
}

double standard_error(int64_t correct, int64_t questions) {
  check_proportion(correct, questions);
  if (questions == 0) return 0;
  const double p = static_cast<double>(correct) / static_cast<double>(questions);
  return std::sqrt(p * (1 - p) / static_cast<double>(questions));
}

Pairs count_pairs(std::span<const uint8_t> first, std::span<const uint8_t> second) {
  if (first.size() != second.size())
    throw InvalidArgument(fmt::format("paired answers to {} and to {} questions; expected the same questions",
                                      first.size(), second.size()));
  Pairs pairs{.only_first = 0, .only_second = 0, .questions = static_cast<int64_t>(first.size())};
  for (size_t i = 0; i < first.size(); ++i) {
    pairs.only_first += first[i] && !second[i];
    pairs.only_second += second[i] && !first[i];
  }
  return pairs;
}

double mcnemar_exact(int64_t only_first, int64_t only_second) {
  check_pairs(only_first, only_second);
  const int64_t trials = only_first + only_second;
  if (trials == 0) return 1;
  const boost::math::binomial_distribution<double> fair(static_cast<double>(trials), 0.5);
  const auto fewer = static_cast<double>(std::min(only_first, only_second));
  return std::min(1.0, 2 * boost::math::cdf(fair, fewer));
}

Interval paired_difference_interval(int64_t only_first, int64_t only_second, int64_t questions,
                                    uint32_t seed) {
  check_pairs(only_first, only_second);
  check_proportion(only_first + only_second, questions);
  if (questions == 0) return {-1, 1};
  // A question drawn from [0, questions): the first only_first are the first schedule's, the next
  // only_second the second's.
  const auto first_end = static_cast<uint64_t>(only_first);
  const auto second_end = static_cast<uint64_t>(only_first + only_second);
  const auto count = static_cast<uint64_t>(questions);
  std::vector<double> differences(kResamples);
  for (uint32_t resample = 0; resample < kResamples; ++resample) {
    int64_t difference = 0;
    for (uint64_t drawn = 0; drawn < count;) {
      const PhiloxBlock block = philox4x32_10(
          {{resample, static_cast<uint32_t>(drawn / 4), static_cast<uint32_t>(drawn >> 34), 0}}, seed, 0);
      for (int word = 0; word < 4 && drawn < count; ++word, ++drawn) {
        const uint64_t question = (uint64_t{block.word[word]} * count) >> 32;
        difference += question < first_end;
        difference -= question >= first_end && question < second_end;
      }
    }
    differences[resample] = static_cast<double>(difference) / static_cast<double>(questions);
  }
  return {quantile(differences, 0.025), quantile(differences, 0.975)};
}

Interval paired_score_interval(int64_t only_first, int64_t only_second, int64_t questions) {
  check_pairs(only_first, only_second);
  check_proportion(only_first + only_second, questions);
  if (questions == 0) return {-1, 1};
  const auto n = static_cast<double>(questions);
  // Whether the test of a difference below the observed one accepts it. `gained` and `lost` are of the side
  // that is ahead by `delta`.
  const auto accepts = [n](double gained, double lost, double delta) {
    // The likeliest chance of a loss where the difference is delta.
    const double b = -gained - lost + (2 * n - gained + lost) * delta;
    const double c = -lost * delta * (1 - delta);
    const double loss = (std::sqrt(std::max(b * b - 8 * n * c, 0.0)) - b) / (4 * n);
    const double variance = n * (2 * loss + delta * (1 - delta));
    const double off = gained - lost - n * delta;
    return off * off <= kNormalQuantile975 * kNormalQuantile975 * variance;
  };
  // The statistic grows with the distance from the observed difference.
  const auto upper = [&](double gained, double lost) {
    double within = (gained - lost) / n, beyond = 1;
    if (within >= 1) return 1.0;
    for (int halving = 0; halving < 60; ++halving) {
      const double middle = 0.5 * (within + beyond);
      (accepts(gained, lost, middle) ? within : beyond) = middle;
    }
    return within;
  };
  const auto first = static_cast<double>(only_first), second = static_cast<double>(only_second);
  return {-upper(second, first), upper(first, second)};
}

MeanScore mean_of_scores(std::span<const double> scores, uint32_t seed) {
  check_finite(scores);
  const auto count = static_cast<int64_t>(scores.size());
  if (right_or_wrong(scores))
    return {mean_of(scores), wilson_interval(std::ranges::count(scores, 1.0), count)};
  return {mean_of(scores), bootstrap_mean(scores, seed)};
}

Interval bootstrap_interval(std::span<const double> scores, uint32_t seed) {
  check_finite(scores);
  return scores.empty() ? Interval{0, 1} : bootstrap_mean(scores, seed);
}

double standard_error(std::span<const double> scores) {
  check_finite(scores);
  const auto count = static_cast<int64_t>(scores.size());
  if (right_or_wrong(scores)) return standard_error(std::ranges::count(scores, 1.0), count);
  const double mean = mean_of(scores);
  double squares = 0;
  for (const double score : scores) squares += (score - mean) * (score - mean);
  return std::sqrt(squares) / static_cast<double>(count);
}

PairedTest compare_scores(std::span<const double> first, std::span<const double> second, uint32_t seed) {
  if (first.size() != second.size())
    throw InvalidArgument(fmt::format("paired scores of {} and of {} questions; expected the same questions",
                                      first.size(), second.size()));
  check_finite(first);
  check_finite(second);
  PairedTest test;
  test.questions = static_cast<int64_t>(first.size());
  test.graded = !right_or_wrong(first) || !right_or_wrong(second);
  test.pairs.questions = test.questions;
  std::vector<double> differences(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    differences[i] = first[i] - second[i];
    test.pairs.only_first += first[i] > second[i];
    test.pairs.only_second += second[i] > first[i];
  }
  if (!test.graded) {
    test.difference = test.pairs.difference();
    test.interval =
        paired_difference_interval(test.pairs.only_first, test.pairs.only_second, test.questions, seed);
    test.p_value = mcnemar_exact(test.pairs.only_first, test.pairs.only_second);
    return test;
  }
  test.difference =
      std::accumulate(differences.begin(), differences.end(), 0.0) / static_cast<double>(test.questions);
  test.interval = bootstrap_mean(differences, seed);
  test.p_value = permutation_test(differences, seed);
  return test;
}

}  // namespace allot::evaluation
