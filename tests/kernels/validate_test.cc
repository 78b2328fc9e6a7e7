// Every contract of AttentionParams is checked on the host, with the values in the message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/attention.h"
#include "kernels/sampling.h"
#include "launch.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using testing::Launch;

// A launch that passes; each test breaks one thing.
class Validate : public ::testing::Test {
 protected:
  AttentionParams& p() { return launch_.params; }
  std::string message() {
    try {
      validate(p());
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  }

  Launch launch_{{.sequences = {{1, 40, 8}, {3, 200, 8}},
                  .num_q_heads = 4,
                  .num_kv_heads = 2,
                  .head_dim = 32,
                  .page_size = 16,
                  .estimator = Estimator::kSys}};
};

TEST_F(Validate, AWholeLaunchIsAccepted) {
  EXPECT_EQ(message(), "accepted");
}

TEST_F(Validate, AnEmptyBatchNeedsNoPointers) {
  AttentionParams empty = p();
  empty.batch = 0;
  empty.query = empty.key_pages = empty.value_pages = nullptr;
  empty.query_start = nullptr;
  empty.lengths = nullptr;
  empty.out = nullptr;
  EXPECT_NO_THROW(validate(empty));
}

TEST_F(Validate, ALengthBeyondThePageTableNamesSequencePagesAndRoom) {
  p().max_pages = 12;
  EXPECT_THAT(message(), Names("sequence 1", 200, 13, 16, 12));
}

TEST_F(Validate, APageOutsideThePoolIsNamed) {
  p().num_pages = 1;
  EXPECT_THAT(message(), Names("page", 0, 0));
}

TEST_F(Validate, MoreQueriesThanKeysAreRefused) {
  std::vector<int32_t> lengths = {40, 2};
  p().lengths = lengths.data();
  EXPECT_THAT(message(), Names("sequence 1", "queries", 3, "length", 2));
}

TEST_F(Validate, HeadsThatDoNotDivideAreRefused) {
  p().num_q_heads = 5;
  EXPECT_THAT(message(), Names("query heads", 5, "KV heads", 2));
}

TEST_F(Validate, TheFirstHeadIsThatOfAKvHead) {
  for (const int32_t bad : {-2, 1, 3, 65534}) {  // of 4 query heads over 2 KV heads
    p().first_head = bad;
    EXPECT_THAT(message(), Names("first_head", bad, 2, 65532));
  }
  p().first_head = 65532;
  EXPECT_EQ(message(), "accepted");
}

TEST_F(Validate, HeadDimIsAMultipleOfEightUpTo256) {
  for (const int32_t bad : {0, 4, 36, 264}) {
    p().head_dim = bad;
    EXPECT_THAT(message(), Names("head_dim", bad));
  }
}

TEST_F(Validate, AShortStrideIsRefused) {
  p().query_stride = 127;
  EXPECT_THAT(message(), Names("query_stride", 127, "num_q_heads", "head_dim", 128));
}

TEST_F(Validate, AScaleOfZeroIsRefused) {
  p().scale = 0;
  EXPECT_THAT(message(), Names("scale", 0));
}

TEST_F(Validate, FallingQueryStartsAreRefused) {
  std::vector<int64_t> starts = {0, 3, 1};
  p().query_start = starts.data();
  EXPECT_THAT(message(), Names("query_start[2]", 1, "query_start[1]", 3));
}

TEST_F(Validate, BudgetsAreDenseOrFromZeroToTheLargest) {
  for (const int32_t bad : {-2, kMaxBudget + 1}) {
    launch_.budgets[1] = bad;
    EXPECT_THAT(message(), Names("sequence 1", "budget", bad));
  }
  for (const int32_t good : {kDenseBudget, 0, 1, kMaxBudget}) {
    launch_.budgets[1] = good;
    EXPECT_EQ(message(), "accepted");
  }
}

TEST_F(Validate, ABudgetOfRowsNeedsAnEstimatorWhoseHeadsChooseTogether) {
  p().method.unit = BudgetUnit::kRows;
  for (const Estimator estimator : {Estimator::kSys, Estimator::kExact, Estimator::kTopk}) {
    p().method.estimator = estimator;
    EXPECT_THAT(message(), Names(name(estimator), "rows", "joint", "pooled", "level"));
  }
  p().method.estimator = Estimator::kJoint;
  EXPECT_EQ(message(), "accepted");
}

TEST_F(Validate, ValueNormsAreThereWhereTheMethodUsesThem) {
  p().value_norms = nullptr;
  p().method.estimator = Estimator::kJoint;
  EXPECT_EQ(message(), "accepted");
  set_parameter(&p().method, "value-norms", 1);
  EXPECT_THAT(message(), Names("value_norms", "null"));
  set_parameter(&p().method, "value-norms", 0.5);
  EXPECT_THAT(message(), Names("joint", "value-norms", 0.5, 0, 1));
}

TEST_F(Validate, FlashNeedsASampleInEveryTile) {
  p().method.estimator = Estimator::kFlash;
  p().method.tile = 16;
  EXPECT_THAT(message(), Names("sequence 1", 200, 13, 16, "budget", 8));
  launch_.budgets = {3, 12};
  EXPECT_THAT(message(), Names("sequence 1", 13, 16, "budget", 12));
  launch_.budgets = {3, 13};
  EXPECT_EQ(message(), "accepted");
}

TEST_F(Validate, ATileOfNoKeysIsRefused) {
  p().method.estimator = Estimator::kProp;
  p().method.tile = 0;
  EXPECT_THAT(message(), Names("prop", "tiles", 0));
}

TEST_F(Validate, ABernoulliStageNeedsABudget) {
  p().method.score_stage = ScoreStage::kBernoulli;
  EXPECT_THAT(message(), Names("bernoulli", "budget", 0));
  p().method.score_budget = kMaxBudget + 1;
  EXPECT_THAT(message(), Names("bernoulli", "budget", kMaxBudget + 1));
  p().method.score_budget = kMaxBudget;
  EXPECT_EQ(message(), "accepted");
}

TEST_F(Validate, AMeanGroupQueryNeedsABernoulliStage) {
  p().method.mean_group_query = true;
  EXPECT_THAT(message(), Names("mean_group_query", "exact"));
}

TEST_F(Validate, NullPointersAreNamed) {
  p().value_pages = nullptr;
  EXPECT_THAT(message(), Names("value_pages", "null"));
}

TEST_F(Validate, SampledEstimatorsNeedBudgetsAndDraws) {
  p().draws = nullptr;
  EXPECT_THAT(message(), Names("draws", "null"));
  p().method.estimator = Estimator::kTopk;
  EXPECT_EQ(message(), "accepted");
  p().budgets = nullptr;
  EXPECT_THAT(message(), Names("budgets", "null"));
  p().method.estimator = Estimator::kExact;
  EXPECT_EQ(message(), "accepted");
}

}  // namespace
}  // namespace allot::kernels
