#include "kernels/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/message_of.h"

namespace allot::kernels {
namespace {

using ::testing::HasSubstr;

TEST(EstimatorName, EveryNameReadsBackAsItself) {
  for (const char* text : {"exact", "iid", "strat", "sys", "prop", "flash", "threshold", "topk"}) {
    EXPECT_EQ(name(parse_estimator(text)), text);
  }
  for (const char* text : {"exact", "bernoulli", "bernoulli-strat"}) {
    EXPECT_EQ(name(parse_score_stage(text)), text);
  }
  for (const char* text : {"float32", "bfloat16", "float16"}) EXPECT_EQ(name(parse_dtype(text)), text);
}

TEST(EstimatorName, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_EQ(message_of<InvalidArgument>([] { parse_estimator("systematic"); }),
            "unknown estimator \"systematic\"; expected one of exact, iid, strat, sys, prop, flash, "
            "threshold, topk");
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_score_stage("Bernoulli"); }),
              HasSubstr("exact, bernoulli, bernoulli-strat"));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_dtype("float8"); }),
              HasSubstr("float32, bfloat16, float16"));
}

}  // namespace
}  // namespace allot::kernels
