// How much accuracy a schedule loses against dense attention, and whether the questions tell that it is
// within a margin. The interval decides, not the estimate: of few questions an estimate of no loss says
// little.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "evaluation/accuracy.h"

namespace allot::evaluation {

enum class MarginVerdict : uint8_t {
  kWithin,     // the whole interval of the loss is within the margin
  kBeyond,     // no part of it is
  kUndecided,  // the margin lies in it: more questions would tell
};
std::string_view name(MarginVerdict verdict);  // "within", "beyond", "undecided"

struct AccuracyLoss {
  double margin = 0;  // of accuracy, 0.01 is a point
  Accuracy dense = {};
  Accuracy learned = {};
  PairedTest paired = {};  // learned against dense, on the same questions with the same draws
  // Of dense less learned, 95 %. Where all scores are 0 or 1 the score interval (paired_score_interval);
  // else the bootstrap's, and at least as far up as the score interval where no question is lost.
  Interval loss = {};

  double estimate() const { return 0 - paired.difference; }  // never -0
  MarginVerdict verdict() const;
  friend bool operator==(const AccuracyLoss&, const AccuracyLoss&) = default;
};

// Of scores in [0, 1] of the same questions in the same order. Throws InvalidArgument where their numbers
// differ.
AccuracyLoss accuracy_loss(std::span<const double> learned, std::span<const double> dense, double margin);

// The least number of questions with which a schedule that loses none of them is seen to be within `margin`,
// which is above 0.
int64_t least_questions(double margin);
// The least margin that so many questions can tell of.
double least_margin(int64_t questions);

// "loses 0.8 points (-0.4 to 2.9)".
std::string text(const AccuracyLoss& loss);
// {"margin", "verdict", "loss", "loss_interval_95", "dense": {accuracy}, "learned": {accuracy}, "paired"};
// losses and margin are shares of 1, as accuracies are.
nlohmann::ordered_json to_json(const AccuracyLoss& loss);

}  // namespace allot::evaluation
