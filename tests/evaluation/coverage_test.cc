#include "evaluation/coverage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

CoverageSetting small(int64_t keys, int64_t heads) {
  return {.keys = keys, .head_dim = 16, .samples = {1, 4, 16}, .heads = heads};
}

// The first row of table 11 of the S2ANTA paper: 49.90, 79.95, 88.92, 94.07 %, here with fewer elements.
TEST(Coverage, IsThatOfTableElevenWithinChance) {
  CoverageSetting setting = small(512, 24);
  setting.head_dim = 128;
  setting.samples = {1, 4, 8, 16};
  const std::vector<Coverage> measured = measure_coverage(setting);
  const double published[] = {.4990, .7995, .8892, .9407};
  ASSERT_EQ(measured.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(measured[i].share, published[i], 4 * measured[i].standard_error + .003) << i;
    EXPECT_NEAR(measured[i].share, expected_coverage(measured[i].samples), .015);
    EXPECT_LT(measured[i].standard_error, .01);
    EXPECT_GT(measured[i].standard_error, 0);
  }
}

// The first query sees one key, so it reads row 0 whatever it draws; every other row may be missed.
TEST(Coverage, OfOneKeyIsWhole) {
  for (const Coverage& measured : measure_coverage(small(1, 2))) {
    EXPECT_EQ(measured.share, 1);
    EXPECT_EQ(measured.standard_error, 0);
  }
}

TEST(Coverage, GrowsWithSamplesInEachSpacing) {
  for (const Spacing spacing : {Spacing::kIndependent, Spacing::kStratified, Spacing::kSystematic}) {
    CoverageSetting setting = small(128, 8);
    setting.spacing = spacing;
    const std::vector<Coverage> measured = measure_coverage(setting);
    EXPECT_LT(measured[0].share, measured[1].share) << name(spacing);
    EXPECT_LT(measured[1].share, measured[2].share) << name(spacing);
  }
}

// A query's draws differ, but over all queries a row is drawn as often.
TEST(Coverage, DoesNotDependOnHowAQuerySpacesItsDraws) {
  CoverageSetting setting = small(256, 64);
  setting.samples = {8};
  const Coverage independent = measure_coverage(setting).front();
  for (const Spacing spacing : {Spacing::kStratified, Spacing::kSystematic}) {
    setting.spacing = spacing;
    const Coverage spread = measure_coverage(setting).front();
    EXPECT_NEAR(spread.share, independent.share, 4 * (spread.standard_error + independent.standard_error))
        << name(spacing);
    EXPECT_NE(spread.share, independent.share) << "drawn in another way";
  }
}

TEST(Coverage, DependsOnTheSeedAndNotOnThreads) {
  CoverageSetting setting = small(100, 6);
  setting.threads = 1;
  const std::vector<Coverage> one = measure_coverage(setting);
  setting.threads = 3;
  const std::vector<Coverage> three = measure_coverage(setting);
  setting.seed = 1;
  const std::vector<Coverage> other = measure_coverage(setting);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_EQ(one[i].share, three[i].share);
    EXPECT_NE(one[i].share, other[i].share);
  }
}

TEST(Coverage, StopsWhenAsked) {
  const std::atomic<bool> stop = true;
  EXPECT_THAT(measure_coverage(small(64, 4), {}, &stop), IsEmpty());
}

TEST(Coverage, RefusesWhatIsNoSetting) {
  EXPECT_THAT([] { (void)measure_coverage(small(0, 4)); }, ThrowsMessage<InvalidArgument>(Names("keys", 0)));
  EXPECT_THAT([] { (void)measure_coverage(small(8, 1)); }, ThrowsMessage<InvalidArgument>(Names("heads", 1)));
  EXPECT_THAT([] { (void)parse_spacing("prop"); }, ThrowsMessage<InvalidArgument>(Names("prop", "iid")));
}

}  // namespace
}  // namespace allot::evaluation
