#include "episode/reward_kind.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/error.h"
#include "episode/question_result.h"
#include "tests/names.h"

namespace allot {
namespace {

using testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(RewardKind, EveryKindIsFoundByItsName) {
  for (const RewardKindRow& row : reward_kinds()) {
    EXPECT_EQ(parse_reward_kind(row.name), row.kind);
    EXPECT_EQ(&row_of(row.kind), &row);
    EXPECT_LT(row.low, row.high);
  }
  EXPECT_EQ(reward_kinds().size(), 2u);
}

TEST(RewardKind, SpecsFromBeforeThereWereKindsMeanAnswers) {
  EXPECT_EQ(parse_reward_kind(""), RewardKind::kAnswers);
  EXPECT_EQ(find_reward_kind("")->kind, RewardKind::kAnswers);
}

TEST(RewardKind, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT([] { parse_reward_kind("speed"); },
              ThrowsMessage<InvalidArgument>(Names("speed", "answers", "divergence")));
  EXPECT_EQ(find_reward_kind("speed"), nullptr);
}

TEST(RewardKind, AScoreIsWrittenInItsUnit) {
  EXPECT_EQ(row_of(RewardKind::kAnswers).format(0.984), "98.4%");
  EXPECT_EQ(row_of(RewardKind::kAnswers).format(1), "100.0%");
  EXPECT_EQ(row_of(RewardKind::kDivergence).format(0.0312), "0.031 nats");
  EXPECT_EQ(row_of(RewardKind::kAnswers).format_amount(0.0314), "3.1 points");
  EXPECT_EQ(row_of(RewardKind::kDivergence).format_amount(0.0312), "0.031 nats");
  EXPECT_EQ(row_of(RewardKind::kAnswers).format_difference(0.031, 0.01, 0.052), "+3.1 points (+1.0 to +5.2)");
  EXPECT_EQ(row_of(RewardKind::kDivergence).format_difference(-0.03, -0.04, 0.01),
            "-0.030 nats (-0.040 to +0.010)");
}

TEST(RewardKind, AnswersEndAtOneAndDivergencesDoNot) {
  const RewardKindRow& answers = row_of(RewardKind::kAnswers);
  EXPECT_EQ(answers.clamp(-0.1), 0);
  EXPECT_EQ(answers.clamp(0.5), 0.5);
  EXPECT_EQ(answers.clamp(1.1), 1);
  EXPECT_TRUE(answers.holds(0) && answers.holds(0.25) && answers.holds(1));
  EXPECT_FALSE(answers.holds(1.01) || answers.holds(-0.01) || answers.holds(kNan));
  const RewardKindRow& divergence = row_of(RewardKind::kDivergence);
  EXPECT_EQ(divergence.clamp(17.5), 17.5);
  EXPECT_EQ(divergence.clamp(-0.1), 0);
  EXPECT_TRUE(divergence.holds(17.5));
  EXPECT_FALSE(divergence.holds(-0.1) || divergence.holds(kNan));
  EXPECT_EQ(divergence.high, kInfinity);
}

TEST(RewardKind, LearnersClimbAnAccuracyItselfAndMinusTheLogOfADivergence) {
  EXPECT_EQ(row_of(RewardKind::kAnswers).utility(0.25), 0.25);
  const RewardKindRow& divergence = row_of(RewardKind::kDivergence);
  EXPECT_GT(divergence.utility(0.01), divergence.utility(0.02)) << "less is better";
  EXPECT_NEAR(divergence.utility(0.01) - divergence.utility(0.02), std::log(2), 1e-12);
  EXPECT_NEAR(divergence.utility(1) - divergence.utility(2), std::log(2), 1e-12) << "wherever it begins";
  EXPECT_TRUE(std::isfinite(divergence.utility(0))) << "of the exact model";
}

TEST(RewardKind, AGoalIsReachedFromTheSideThatIsWorse) {
  EXPECT_TRUE(row_of(RewardKind::kAnswers).reaches(0.7, 0.65));
  EXPECT_FALSE(row_of(RewardKind::kAnswers).reaches(0.6, 0.65));
  EXPECT_TRUE(row_of(RewardKind::kDivergence).reaches(0.02, 0.03));
  EXPECT_FALSE(row_of(RewardKind::kDivergence).reaches(0.04, 0.03));
}

TEST(QuestionResult, ARewardIsTheMeanOfTheScores) {
  const QuestionResult results[] = {{.question = 3, .score = 1}, {.question = 4, .score = 0.25}};
  EXPECT_EQ(mean_score(results), 0.625);
}

}  // namespace
}  // namespace allot
