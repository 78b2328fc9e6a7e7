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

TEST(SpecMethod, HasAUnitWhereBudgetsAreRowsAndSamplesWhereASpecSaysNothing) {
  const AttentionMethod method{.estimator = kernels::Estimator::kJoint, .unit = kernels::BudgetUnit::kRows};
  EXPECT_EQ(attention_spec(method).unit(), "rows");
  EXPECT_EQ(attention_method(attention_spec(method)), method);
  wire::AttentionSpec spec = attention_spec({.estimator = kernels::Estimator::kJoint});
  EXPECT_EQ(spec.unit(), "");
  EXPECT_EQ(attention_method(spec).unit, kernels::BudgetUnit::kSamples);
  spec.set_unit("pages");
  EXPECT_THROW(attention_method(spec), InvalidArgument);
}

TEST(SpecMethod, RefusesNamesThatThisBuildDoesNotKnow) {
  wire::AttentionSpec spec = attention_spec({});
  spec.set_estimator("newer");
  EXPECT_THROW(attention_method(spec), InvalidArgument);
  spec = attention_spec({});
  spec.set_prefill("later");
  EXPECT_THROW(attention_method(spec), InvalidArgument);
}

TEST(SpecMethod, HasParametersWhereTheyAreNotTheDefault) {
  AttentionMethod method{.estimator = kernels::Estimator::kJoint};
  EXPECT_EQ(attention_spec(method).parameters_size(), 0) << "the spec of a run from before the parameter";
  set_parameter(&method, "value-norms", 1);
  EXPECT_EQ(attention_spec(method).parameters_size(), 1);
  EXPECT_EQ(attention_method(attention_spec(method)), method);
}

TEST(SpecMethod, RefusesAParameterThatTheEstimatorDoesNotHave) {
  wire::AttentionSpec spec = attention_spec({});
  (*spec.mutable_parameters())["page-budget"] = 0.5;
  EXPECT_THROW(attention_method(spec), InvalidArgument);
}

}  // namespace
}  // namespace allot::worker
