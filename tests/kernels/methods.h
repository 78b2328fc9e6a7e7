// Every attention method as the parameter of a test suite.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/method.h"

namespace allot::kernels::testing {

// Every estimator of the table, in its order.
inline std::vector<Estimator> every_estimator() {
  std::vector<Estimator> estimators;
  for (int number = 0; number < kEstimators; ++number) estimators.push_back(static_cast<Estimator>(number));
  return estimators;
}

// Every estimator of the table with every score stage, in tiles that short rows have several of.
inline std::vector<AttentionMethod> every_method() {
  std::vector<AttentionMethod> methods;
  for (const Estimator estimator : every_estimator()) {
    methods.push_back({.estimator = estimator, .tile = 64});
    for (const ScoreStage stage : {ScoreStage::kBernoulli, ScoreStage::kBernoulliStrat}) {
      for (const bool mean_group_query : {false, true}) {
        methods.push_back({.estimator = estimator,
                           .tile = 64,
                           .score_stage = stage,
                           .score_budget = 2,
                           .mean_group_query = mean_group_query});
      }
    }
  }
  return methods;
}

inline std::string method_name(const ::testing::TestParamInfo<AttentionMethod>& info) {
  const AttentionMethod& method = info.param;
  std::string text(name(method.estimator));
  if (method.score_stage == ScoreStage::kBernoulli) text += "_bernoulli";
  if (method.score_stage == ScoreStage::kBernoulliStrat) text += "_bernoulli_strat";
  return text + (method.mean_group_query ? "_mean_group_query" : "");
}

}  // namespace allot::kernels::testing
