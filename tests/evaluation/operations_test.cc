#include "evaluation/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::ThrowsMessage;

// The S2ANTA paper, table 12: n_q = 7, n_k = 1000, d_k = 64, k = S = 16, each entry by its formula there.
constexpr AttentionShape kPrefill{.queries = 7, .keys = 1000, .head_dim = 64};
constexpr int64_t kSamples = 16;

TEST(Operations, AreThoseOfTableTwelve) {
  EXPECT_EQ(score_operations(kPrefill),
            (Operations{7 * 1000 * 64, 7 * 1000 * 64, (7 + 1000) * 64, 7 * 1000}));
  EXPECT_EQ(value_operations(kPrefill, ValueStage::kExact, kSamples),
            (Operations{7 * 1000 * 64, 7 * 1000 * 64, 7 * 1000 * 64, 7 * 64}));
  EXPECT_EQ(value_operations(kPrefill, ValueStage::kTopK, kSamples),
            (Operations{7 * 16 * 64, 7 * 16 * 64, 7 * 16 * 64, 7 * 64}));
  EXPECT_EQ(value_operations(kPrefill, ValueStage::kCounted, kSamples),
            (Operations{7 * 16 * 64, 7 * 64, 7 * 16 * 64, 7 * 64}));
}

TEST(Operations, OfOneQueryAreThoseOfTableTen) {
  constexpr AttentionShape decode{.queries = 1, .keys = 8192, .head_dim = 128};
  EXPECT_EQ(value_operations(decode, ValueStage::kExact, 1),
            (Operations{8192 * 128, 8192 * 128, 8192 * 128, 128}));
  EXPECT_EQ(value_operations(decode, ValueStage::kCounted, 32), (Operations{32 * 128, 128, 32 * 128, 128}));
}

TEST(Operations, OfAGroupReadEachRowOnceAndWeighItInEveryHead) {
  const AttentionShape shape{.queries = 1, .keys = 1000, .head_dim = 128, .group = 4};
  EXPECT_EQ(value_operations(shape, ValueStage::kWeighted, 8),
            (Operations{32 * 128, 32 * 128, 8 * 128, 128}));
  // More rows than keys are all keys: exact attention, read once for the group.
  EXPECT_EQ(value_operations(shape, ValueStage::kWeighted, 500),
            (Operations{1000 * 128, 1000 * 128, 250 * 128, 128}));
  EXPECT_EQ(value_operations(shape, ValueStage::kTopK, 2000), value_operations(shape, ValueStage::kExact, 1));
}

// "4.6 k pJ per element for top-k, 0.9 S for SANTA", but for its one division.
TEST(Operations, CostTheEnergyOfAppendixH) {
  const AttentionShape shape{.queries = 1, .keys = 1000, .head_dim = 100};
  EXPECT_DOUBLE_EQ(picojoules(value_operations(shape, ValueStage::kTopK, 16)), 4.6 * 16 * 100);
  EXPECT_DOUBLE_EQ(picojoules(value_operations(shape, ValueStage::kCounted, 16)), (0.9 * 16 + 3.7) * 100);
}

TEST(Operations, RefuseWhatIsNoShape) {
  EXPECT_THAT([] { (void)score_operations({.keys = 0}); }, ThrowsMessage<InvalidArgument>(Names("keys", 0)));
  EXPECT_THAT([] { (void)value_operations({.keys = 8}, ValueStage::kCounted, 0); },
              ThrowsMessage<InvalidArgument>(Names("samples", 0)));
  EXPECT_THAT([] { (void)score_operations({.queries = int64_t{1} << 40, .keys = int64_t{1} << 40}); },
              ThrowsMessage<InvalidArgument>(Names("64 bits", int64_t{1} << 40)));
}

}  // namespace
}  // namespace allot::evaluation
