#include "evaluation/statistics.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/philox.h"

namespace allot::evaluation {
namespace {

constexpr double kNormalQuantile = 1.959963984540054;  // of 0.975
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

}  // namespace

Interval wilson_interval(int64_t correct, int64_t questions) {
  check_proportion(correct, questions);
  if (questions == 0) return {0, 1};
  const auto n = static_cast<double>(questions);
  const double p = static_cast<double>(correct) / n;
  const double z2 = kNormalQuantile * kNormalQuantile;
  const double center = p + z2 / (2 * n);
  const double half = kNormalQuantile * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  // Rounding must not push the bounds of 0 of n and n of n off 0 and 1.
  const double low = correct == 0 ? 0 : (center - half) / (1 + z2 / n);
  const double high = correct == questions ? 1 : (center + half) / (1 + z2 / n);
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
  // A question drawn from [0, questions): the first only_first are the first schedule's, the next only_second
  // the second's.
  const auto first_end = static_cast<uint64_t>(only_first);
  const auto second_end = static_cast<uint64_t>(only_first + only_second);
  const auto count = static_cast<uint64_t>(questions);
  std::vector<int64_t> differences(kResamples);
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
    differences[resample] = difference;
  }
  std::sort(differences.begin(), differences.end());
  const auto percentile = [&](double share) {
    const auto rank = static_cast<size_t>(std::lround(share * (kResamples - 1)));
    return static_cast<double>(differences[rank]) / static_cast<double>(questions);
  };
  return {percentile(0.025), percentile(0.975)};
}

}  // namespace allot::evaluation
