#include "evaluation/detectable.h"

#include <fmt/format.h>

#include <boost/math/distributions/binomial.hpp>

#include "base/error.h"
#include "evaluation/statistics.h"

namespace allot::evaluation {
namespace {

using Binomial = boost::math::binomial_distribution<double>;

constexpr double kSignificance = 0.05;
constexpr double kPower = 0.8;
constexpr double kNegligible = 1e-12;

// Fewest of `telling` questions that the better schedule must win for a p-value below 5 %; telling + 1 where
// even all are not enough.
int64_t wins_needed(int64_t telling) {
  int64_t low = telling / 2 + 1, high = telling + 1;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (mcnemar_exact(middle, telling - middle) < kSignificance)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace

double power_of_paired_test(int64_t questions, double telling, double difference) {
  if (questions < 0 || !(difference >= 0 && difference <= telling && telling <= 1))
    throw InvalidArgument(fmt::format(
        "{} questions, a share of {} that tells and a difference of {}; expected questions >= 0 and "
        "0 <= difference <= share <= 1",
        questions, telling, difference));
  if (questions == 0 || telling == 0) return 0;
  const Binomial tells(static_cast<double>(questions), telling);
  const double win = (1 + difference / telling) / 2;
  double power = 0;
  for (int64_t count = 0; count <= questions; ++count) {
    const double chance = boost::math::pdf(tells, static_cast<double>(count));
    if (chance < kNegligible) continue;
    const int64_t needed = wins_needed(count);
    if (needed > count) continue;
    const Binomial wins(static_cast<double>(count), win);
    power += chance * boost::math::cdf(boost::math::complement(wins, static_cast<double>(needed - 1)));
  }
  return power;
}

std::optional<double> detectable_difference(int64_t questions, double telling) {
  if (power_of_paired_test(questions, telling, telling) < kPower) return std::nullopt;
  double low = 0, high = telling;
  while (high - low > 1e-4) {
    const double middle = (low + high) / 2;
    (power_of_paired_test(questions, telling, middle) < kPower ? low : high) = middle;
  }
  return high;
}

}  // namespace allot::evaluation
