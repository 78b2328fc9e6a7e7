#include "kernels/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

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
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_estimator("systematic"); }),
              Names("systematic", "exact", "iid", "strat", "sys", "prop", "flash", "threshold", "topk"));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_score_stage("Bernoulli"); }),
              Names("Bernoulli", "exact", "bernoulli", "bernoulli-strat"));
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_dtype("float8"); }),
              Names("float8", "float32", "bfloat16", "float16"));
}

}  // namespace
}  // namespace allot::kernels
