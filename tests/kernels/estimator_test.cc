#include "kernels/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "tests/message_of.h"

namespace allot::kernels {
namespace {

using ::testing::HasSubstr;

TEST(EstimatorName, EveryNameReadsBackAsItself) {
  for (int i = 0; i < kEstimators; ++i) {
    const auto estimator = static_cast<Estimator>(i);
    EXPECT_EQ(name(estimator), kEstimatorRows[static_cast<size_t>(i)].name);
    EXPECT_EQ(parse_estimator(name(estimator)), estimator) << name(estimator);
  }
  for (const char* text : {"exact", "bernoulli", "bernoulli-strat"}) {
    EXPECT_EQ(name(parse_score_stage(text)), text);
  }
  for (const char* text : {"float32", "bfloat16", "float16"}) EXPECT_EQ(name(parse_dtype(text)), text);
}

TEST(EstimatorName, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const std::string refusal = message_of<InvalidArgument>([] { parse_estimator("systematic"); });
  EXPECT_THAT(refusal, HasSubstr("\"systematic\""));
  // Each name between separators, since "sys" is a part of what was given.
  for (const EstimatorRow& row : kEstimatorRows)
    EXPECT_THAT(refusal + ",", HasSubstr(" " + std::string(row.name) + ",")) << row.name;
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_score_stage("Bernoulli"); }),
              HasSubstr("exact, bernoulli, bernoulli-strat"));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_dtype("float8"); }),
              HasSubstr("float32, bfloat16, float16"));
}

}  // namespace
}  // namespace allot::kernels
