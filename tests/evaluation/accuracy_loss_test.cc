#include "evaluation/accuracy_loss.h"

#include <gmock/gmock.h>

#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace allot::evaluation {
namespace {

// `questions` of which dense attention has all right, the learned schedule all but the first `lost`.
AccuracyLoss loss_of(size_t questions, size_t lost, double margin) {
  const std::vector<double> dense(questions, 1.0);
  std::vector<double> learned = dense;
  for (size_t i = 0; i < lost; ++i) learned[i] = 0;
  return accuracy_loss(learned, dense, margin);
}

TEST(AccuracyLoss, TheIntervalDecidesAndNotTheEstimate) {
  const AccuracyLoss within = loss_of(1000, 3, 0.01);
  EXPECT_NEAR(within.estimate(), 0.003, 1e-12);
  EXPECT_EQ(within.verdict(), MarginVerdict::kWithin);
  EXPECT_EQ(loss_of(1000, 8, 0.01).verdict(), MarginVerdict::kUndecided) << "0.8 points are less than one";
  EXPECT_EQ(loss_of(1000, 12, 0.01).verdict(), MarginVerdict::kUndecided);
  EXPECT_EQ(loss_of(1000, 25, 0.01).verdict(), MarginVerdict::kBeyond);
  EXPECT_EQ(name(loss_of(1000, 25, 0.01).verdict()), "beyond");
}

TEST(AccuracyLoss, AsManyGainedAsLostIsNoLossButItsIntervalIsWider) {
  std::vector<double> learned(1000, 1.0), dense(1000, 1.0);
  for (size_t i = 0; i < 20; ++i) learned[i] = dense[999 - i] = 0;
  const AccuracyLoss loss = accuracy_loss(learned, dense, 0.01);
  EXPECT_EQ(loss.estimate(), 0);
  EXPECT_EQ(loss.verdict(), MarginVerdict::kUndecided);
  EXPECT_GT(loss.loss.high, loss_of(1000, 0, 0.01).loss.high);
  EXPECT_NEAR(loss.loss.high, -loss.loss.low, 1e-12);
}

TEST(AccuracyLoss, OfFewQuestionsNoLossIsNoEvidence) {
  EXPECT_EQ(loss_of(20, 0, 0.01).verdict(), MarginVerdict::kUndecided);
  EXPECT_EQ(loss_of(20, 0, 0.01).loss.high, least_margin(20));
  for (const double margin : {0.001, 0.01, 0.05, 0.3}) {
    const int64_t questions = least_questions(margin);
    EXPECT_LE(least_margin(questions), margin);
    EXPECT_GT(least_margin(questions - 1), margin);
    EXPECT_EQ(loss_of(static_cast<size_t>(questions), 0, margin).verdict(), MarginVerdict::kWithin);
  }
  EXPECT_EQ(least_questions(0.01), 381);
}

TEST(AccuracyLoss, PartialCreditIsHeldToAtLeastTheIntervalOfNoLoss) {
  const std::vector<double> dense(100, 0.5);
  std::vector<double> learned = dense;
  const AccuracyLoss same = accuracy_loss(learned, dense, 0.01);
  EXPECT_EQ(same.loss.high, least_margin(100)) << "a bootstrap of equal scores has no width";
  EXPECT_EQ(same.verdict(), MarginVerdict::kUndecided);
  for (size_t i = 0; i < 50; ++i) learned[i] = 0.25;
  const AccuracyLoss worse = accuracy_loss(learned, dense, 0.01);
  EXPECT_NEAR(worse.estimate(), 0.125, 1e-12);
  EXPECT_EQ(worse.loss.low, -worse.paired.interval.high);
  EXPECT_EQ(worse.loss.high, -worse.paired.interval.low);
  EXPECT_EQ(worse.verdict(), MarginVerdict::kBeyond);
}

TEST(AccuracyLoss, ItsJsonHasBothSidesAndTheVerdict) {
  const AccuracyLoss loss = loss_of(400, 2, 0.02);
  const nlohmann::ordered_json json = to_json(loss);
  EXPECT_EQ(json["verdict"], "within");
  EXPECT_EQ(json["margin"], 0.02);
  EXPECT_EQ(json["loss"], loss.estimate());
  EXPECT_EQ(json["loss_interval_95"][1], loss.loss.high);
  EXPECT_EQ(json["learned"]["correct"], 398);
  EXPECT_EQ(json["dense"]["correct"], 400);
  EXPECT_EQ(json["paired"]["only_dense"], 2);
  EXPECT_EQ(text(loss), "loses 0.5 points (-0.5 to 1.8)");
}

TEST(AccuracyLoss, RefusesScoresOfOtherQuestions) {
  EXPECT_THROW(accuracy_loss(std::vector{1.0}, std::vector{1.0, 0.0}, 0.1), InvalidArgument);
}

}  // namespace
}  // namespace allot::evaluation
