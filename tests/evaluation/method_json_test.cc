#include "evaluation/method_json.h"

#include <gmock/gmock.h>

#include "tests/names.h"

namespace allot::evaluation {
namespace {

using kernels::AttentionMethod;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

AttentionMethod read(const nlohmann::ordered_json& json, std::vector<std::string>* faults) {
  return read_method({json, "attention", faults});
}

TEST(MethodJson, HasTheBytesOfTheFilesBefore) {
  EXPECT_EQ(method_json({}).dump(),
            R"({"estimator":"sys","prefill":"sampled","tile":256,"score_stage":"exact","score_budget":0,)"
            R"("mean_group_query":false})");
}

TEST(MethodJson, ReadsBackWhatItWrites) {
  const AttentionMethod method{.estimator = kernels::Estimator::kFlash,
                               .prefill = kernels::Prefill::kDense,
                               .tile = 64,
                               .score_stage = kernels::ScoreStage::kBernoulliStrat,
                               .score_budget = 12,
                               .mean_group_query = true};
  std::vector<std::string> faults;
  EXPECT_EQ(read(method_json(method), &faults), method);
  EXPECT_THAT(faults, IsEmpty());
}

TEST(MethodJson, NamesEveryFaultAtOnce) {
  nlohmann::ordered_json json = method_json({});
  json["estimator"] = "guess";
  json["tile"] = 0;
  json["colour"] = "red";
  std::vector<std::string> faults;
  read(json, &faults);
  EXPECT_THAT(faults,
              ElementsAre(Names("attention.estimator"), Names("attention.tile"), Names("attention.colour")));
}

TEST(MethodJson, ReadsBackEveryEstimatorOfTheTable) {
  for (int number = 0; number < kernels::kEstimators; ++number) {
    const AttentionMethod method{.estimator = static_cast<kernels::Estimator>(number)};
    std::vector<std::string> faults;
    EXPECT_EQ(read(method_json(method), &faults), method);
    EXPECT_THAT(faults, IsEmpty());
  }
}

TEST(MethodJson, SaysTheUnitOfBudgetsWhereItIsRowsAndReadsSamplesWhereItIsAbsent) {
  const AttentionMethod method{.estimator = kernels::Estimator::kLevel, .unit = kernels::BudgetUnit::kRows};
  std::vector<std::string> faults;
  EXPECT_EQ(method_json(method).at("unit"), "rows");
  EXPECT_EQ(read(method_json(method), &faults), method);
  nlohmann::ordered_json json = method_json({.estimator = kernels::Estimator::kLevel});
  EXPECT_FALSE(json.contains("unit"));
  EXPECT_EQ(read(json, &faults).unit, kernels::BudgetUnit::kSamples);
  json["unit"] = "samples";
  EXPECT_EQ(read(json, &faults), AttentionMethod{.estimator = kernels::Estimator::kLevel});
  EXPECT_THAT(faults, IsEmpty());
  json["unit"] = "keys";
  read(json, &faults);
  json["unit"] = "rows";
  json["estimator"] = "sys";
  read(json, &faults);
  EXPECT_THAT(faults, ElementsAre(Names("attention.unit", "keys", "samples", "rows"),
                                  Names("attention.unit", "rows", "sys", "joint", "pooled", "level")));
}

// A file from before the parameter says nothing of it.
TEST(MethodJson, SaysParametersWhereTheyAreNotTheDefault) {
  AttentionMethod method{.estimator = kernels::Estimator::kJoint};
  EXPECT_FALSE(method_json(method).contains("parameters"));
  set_parameter(&method, "value-norms", 1);
  std::vector<std::string> faults;
  nlohmann::ordered_json json = method_json(method);
  EXPECT_EQ(json.at("parameters"), nlohmann::ordered_json({{"value-norms", 1}}));
  EXPECT_EQ(read(json, &faults), method);
  EXPECT_THAT(faults, IsEmpty());
  json["parameters"]["value-norms"] = 0.5;
  read(json, &faults);
  EXPECT_THAT(faults, ElementsAre(Names("attention.parameters", "value-norms", 0.5)));
}

TEST(MethodJson, RefusesParametersThatTheEstimatorDoesNotHave) {
  nlohmann::ordered_json json = method_json({});
  json["parameters"]["page-budget"] = 0.5;
  std::vector<std::string> faults;
  read(json, &faults);
  EXPECT_THAT(faults, ElementsAre(Names("attention.parameters")));
}

TEST(MethodJson, RefusesAScoreBudgetWithoutAScoreStage) {
  nlohmann::ordered_json json = method_json({});
  json["score_budget"] = 4;
  std::vector<std::string> faults;
  read(json, &faults);
  EXPECT_THAT(faults, ElementsAre(Names("attention.score_budget")));
}

}  // namespace
}  // namespace allot::evaluation
