#include "worker/spec_method.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "wire/messages.pb.h"

namespace allot::worker {
namespace {

using kernels::AttentionMethod;

TEST(SpecMethod, ComesBackFromTheWireAsItWas) {
  const AttentionMethod method{.estimator = kernels::Estimator::kProp,
                               .prefill = kernels::Prefill::kDense,
                               .tile = 64,
                               .score_stage = kernels::ScoreStage::kBernoulli,
                               .score_budget = 7,
                               .mean_group_query = true};
  EXPECT_EQ(attention_method(attention_spec(method)), method);
  EXPECT_EQ(attention_method(attention_spec({})), AttentionMethod{});
}

TEST(SpecMethod, RefusesNamesThatThisBuildDoesNotKnow) {
  wire::AttentionSpec spec = attention_spec({});
  spec.set_estimator("newer");
  EXPECT_THROW(attention_method(spec), InvalidArgument);
  spec = attention_spec({});
  spec.set_prefill("later");
  EXPECT_THROW(attention_method(spec), InvalidArgument);
}

}  // namespace
}  // namespace allot::worker
