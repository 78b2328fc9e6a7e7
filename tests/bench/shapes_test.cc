#include "bench/attention/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::bench::attention {
namespace {

using kernels::Estimator;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;

Shape shape_called(const std::string& name) {
  return select_shapes(name).front();
}

TEST(StandardShapes, NamesAreUniqueAndHeadsMakeWholeGroups) {
  std::set<std::string> names;
  for (const Shape& shape : standard_shapes()) {
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
    EXPECT_EQ(shape.num_q_heads % shape.num_kv_heads, 0) << shape.name;
    EXPECT_LE(shape.shortest, shape.longest) << shape.name;
    EXPECT_LE(shape.fewest_samples, shape.most_samples) << shape.name;
  }
  EXPECT_EQ(names.size(), 13u);
}

TEST(StandardShapes, OneHasSevenQueryHeadsAKvHead) {
  const Shape shape = shape_called("1x32k-28q4kv");
  EXPECT_EQ(shape.num_q_heads, 28);
  EXPECT_EQ(shape.num_kv_heads, 4);
}

TEST(SelectShapes, NoNameIsEveryShape) {
  EXPECT_EQ(select_shapes("").size(), standard_shapes().size());
}

TEST(SelectShapes, KeepsTheOrderOfTheNames) {
  const auto shapes = select_shapes("64x2k,1x8k");
  ASSERT_EQ(shapes.size(), 2u);
  EXPECT_EQ(shapes[0].name, "64x2k");
  EXPECT_EQ(shapes[1].name, "1x8k");
}

TEST(SelectShapes, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(message_of<UsageError>([] { select_shapes("1x8k,2x8k"); }),
              Names("2x8k", "1x8k", "1x32k", "512-ragged"));
  EXPECT_THAT(message_of<UsageError>([] { select_shapes("1x8k,"); }), Names("\"\""));
}

TEST(SelectEstimators, ReadsNamesInOrder) {
  EXPECT_THAT(select_estimators("sys,exact"), ElementsAre(Estimator::kSys, Estimator::kExact));
}

TEST(SelectEstimators, UnknownNamesAreRefused) {
  EXPECT_THAT(message_of<UsageError>([] { select_estimators("sis"); }), Names("sis"));
}

TEST(Lengths, AreEqualWhereTheShapeIsNotRagged) {
  EXPECT_THAT(lengths_of(shape_called("6x32k")), ElementsAre(32768, 32768, 32768, 32768, 32768, 32768));
  EXPECT_THAT(budgets_of(shape_called("64x2k")), Each(8));
}

TEST(Lengths, OfTheRaggedShapeFillTheirRangeAndRepeat) {
  const Shape shape = shape_called("512-ragged");
  const auto lengths = lengths_of(shape);
  ASSERT_EQ(lengths.size(), 512u);
  EXPECT_THAT(lengths, Each(AllOf(Ge(64), Le(2048))));
  // The mean of 512 numbers uniform on 64..2048 has standard deviation 573 / sqrt(512) = 25.3; the bound is 4
  // of them.
  const double mean = std::accumulate(lengths.begin(), lengths.end(), 0.0) / 512;
  EXPECT_NEAR(mean, 1056, 102);
  EXPECT_EQ(lengths, lengths_of(shape));
}

TEST(Budgets, OfTheRaggedShapeTakeEveryValueOfTheirRange) {
  const auto budgets = budgets_of(shape_called("512-ragged"));
  EXPECT_THAT(std::set<int32_t>(budgets.begin(), budgets.end()), ElementsAre(4, 5, 6, 7, 8, 9, 10, 11, 12));
}

TEST(WhyUnsuitable, FlashNeedsASampleATile) {
  EXPECT_THAT(why_unsuitable({.estimator = Estimator::kFlash}, {32768}, {128}), IsEmpty());
  EXPECT_THAT(why_unsuitable({.estimator = Estimator::kFlash}, {256, 32769}, {1, 128}),
              Names("sequence 1", 32769, 129, 256, 128));
  EXPECT_THAT(why_unsuitable({.estimator = Estimator::kSys}, {32769}, {1}), IsEmpty());
  const auto rows = kernels::BudgetUnit::kRows;
  EXPECT_THAT(why_unsuitable({.estimator = Estimator::kJoint, .unit = rows}, {32769}, {1}), IsEmpty());
  EXPECT_THAT(why_unsuitable({.estimator = Estimator::kSys, .unit = rows}, {32769}, {1}),
              Names("rows", "sys"));
}

TEST(KeyBytes, CountEverySequencesOwnKeys) {
  Shape shape;
  shape.num_kv_heads = 2;
  shape.head_dim = 64;
  EXPECT_EQ(key_bytes(shape, {3, 5}, 2), 8 * 2 * 64 * 2);
  EXPECT_EQ(key_bytes(shape_called("16x32k"), lengths_of(shape_called("16x32k")), 2), 1073741824);
}

}  // namespace
}  // namespace allot::bench::attention
