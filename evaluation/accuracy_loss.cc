#include "evaluation/accuracy_loss.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/proportion.h"

namespace allot::evaluation {
namespace {

constexpr double kSquaredQuantile = kNormalQuantile975 * kNormalQuantile975;

}  // namespace

std::string_view name(MarginVerdict verdict) {
  switch (verdict) {
    case MarginVerdict::kWithin:
      return "within";
    case MarginVerdict::kBeyond:
      return "beyond";
    case MarginVerdict::kUndecided:
      break;
  }
  return "undecided";
}

MarginVerdict AccuracyLoss::verdict() const {
  if (loss.high <= margin) return MarginVerdict::kWithin;
  return loss.low > margin ? MarginVerdict::kBeyond : MarginVerdict::kUndecided;
}

AccuracyLoss accuracy_loss(std::span<const double> learned, std::span<const double> dense, double margin) {
  AccuracyLoss made{.margin = margin,
                    .dense = accuracy_of(dense),
                    .learned = accuracy_of(learned),
                    .paired = compare_scores(learned, dense)};
  const PairedTest& paired = made.paired;
  if (paired.graded) {
    made.loss = {-paired.interval.high,
                 std::max(-paired.interval.low, paired_score_interval(0, 0, paired.questions).high)};
  } else {
    made.loss = paired_score_interval(paired.pairs.only_second, paired.pairs.only_first, paired.questions);
  }
  return made;
}

// Both from the upper end of the score interval where no question is lost, z^2 / (n + z^2).
int64_t least_questions(double margin) {
  auto questions = static_cast<int64_t>(std::ceil(kSquaredQuantile * (1 / margin - 1)));
  // Rounding must not promise what the interval then denies.
  while (paired_score_interval(0, 0, questions).high > margin) ++questions;
  return questions;
}

double least_margin(int64_t questions) {
  return paired_score_interval(0, 0, questions).high;
}

std::string text(const AccuracyLoss& loss) {
  return fmt::format("loses {:.1f} points ({:.1f} to {:.1f})", 100 * loss.estimate(), 100 * loss.loss.low,
                     100 * loss.loss.high);
}

nlohmann::ordered_json to_json(const AccuracyLoss& loss) {
  return {{"margin", loss.margin},
          {"verdict", name(loss.verdict())},
          {"loss", loss.estimate()},
          {"loss_interval_95", to_json(loss.loss)},
          {"dense", to_json(loss.dense)},
          {"learned", to_json(loss.learned)},
          {"paired", to_json(loss.paired, "learned", "dense")}};
}

}  // namespace allot::evaluation
