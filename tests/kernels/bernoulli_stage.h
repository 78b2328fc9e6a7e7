// The Bernoulli score stages as the parameter of a test suite.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "kernels/estimator.h"

namespace allot::kernels::testing {

struct BernoulliStage {
  ScoreStage stage;
  bool mean_group_query;
};

inline auto bernoulli_stages() {
  return ::testing::Values(
      BernoulliStage{ScoreStage::kBernoulli, false}, BernoulliStage{ScoreStage::kBernoulli, true},
      BernoulliStage{ScoreStage::kBernoulliStrat, false}, BernoulliStage{ScoreStage::kBernoulliStrat, true});
}

inline std::string stage_name(const ::testing::TestParamInfo<BernoulliStage>& stage) {
  return std::string(stage.param.stage == ScoreStage::kBernoulli ? "iid" : "strat") +
         (stage.param.mean_group_query ? "_mean_group_query" : "");
}

}  // namespace allot::kernels::testing
