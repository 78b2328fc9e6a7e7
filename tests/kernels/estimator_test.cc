#include "kernels/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

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
  EXPECT_THAT(refusal, Names("systematic"));
  for (const EstimatorRow& row : kEstimatorRows) EXPECT_THAT(refusal, Names(row.name));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_score_stage("Bernoulli"); }),
              Names("Bernoulli", "exact", "bernoulli", "bernoulli-strat"));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_dtype("float8"); }),
              Names("float8", "float32", "bfloat16", "float16"));
}

}  // namespace
}  // namespace allot::kernels
