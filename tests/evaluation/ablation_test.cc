#include "evaluation/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "tests/evaluation/document.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

Conditions conditions() {
  Conditions made;
  made.model = example_model();
  made.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  made.measured_on = {.sha256 = std::string(64, 'e'), .questions = 4};
  made.seed = 7;
  return made;
}

const std::vector<double> kBaseScores = {1, 1, 1, 0};

Ablation example_ablation() {
  Ablation ablation = make_ablation(conditions(), {{16, 8}}, kBaseScores, {{0, 0, 1, 0}, {1, 1, 1, 1}});
  ablation.tool_version = "0.1.0";
  return ablation;
}

std::string error_after(const std::function<void(Json*)>& change) {
  return error_of_changed(format_ablation(example_ablation()), change,
                          [](const std::string& text) { return parse_ablation(text, "file"); });
}

TEST(OneHot, LeavesOneSampleInOneLayer) {
  EXPECT_EQ(one_hot({{16, 16, 16}}, 1).samples, (std::vector<int32_t>{16, 1, 16}));
  EXPECT_THROW(one_hot({{16, 16}}, 2), InvalidArgument);
  EXPECT_THROW(one_hot({{16, 16}}, -1), InvalidArgument);
}

TEST(OneHot, LeavesOneSampleForOneKvHead) {
  EXPECT_EQ(one_hot_head({{16, kExactLayer}}, 0, 1, 3).samples,
            (std::vector<int32_t>{16, 1, 16, kExactLayer, kExactLayer, kExactLayer}));
  EXPECT_EQ(one_hot_head({{16, 8}}, 1, 0, 2).samples, (std::vector<int32_t>{16, 16, 1, 8}));
  EXPECT_THROW(one_hot_head({{16, 16}}, 2, 0, 2), InvalidArgument);
  EXPECT_THROW(one_hot_head({{16, 16}}, 0, 2, 2), InvalidArgument);
  EXPECT_THROW(one_hot_head({{16, 16}}, 0, -1, 2), InvalidArgument);
}

TEST(MakeAblation, ComparesEachLayerWithTheBase) {
  const Ablation ablation = example_ablation();
  EXPECT_EQ(ablation.base_accuracy, accuracy_of(kBaseScores));
  ASSERT_EQ(ablation.layers.size(), 2u);
  EXPECT_EQ(ablation.layers[0].layer, 0);
  EXPECT_EQ(ablation.layers[0].accuracy.correct, 1);
  EXPECT_DOUBLE_EQ(ablation.layers[0].drop, 0.5);
  EXPECT_DOUBLE_EQ(ablation.layers[0].p_value, 0.5);  // 2 to 0: 2 / 2^2
  EXPECT_EQ(ablation.layers[0].accuracy.interval, wilson_interval(1, 4));
  EXPECT_EQ(ablation.layers[0].drop_interval, paired_difference_interval(2, 0, 4));
  EXPECT_DOUBLE_EQ(ablation.layers[1].drop, -0.25);
}

TEST(MakeAblation, PartialCreditCounts) {
  const std::vector<double> base = {1, 0.75, 0.5, 1};
  const std::vector<double> layer = {0.5, 0.75, 0, 1};
  const Ablation ablation = make_ablation(conditions(), {{16}}, base, {layer});
  const PairedTest drop = compare_scores(base, layer);
  EXPECT_DOUBLE_EQ(ablation.base_accuracy.value, 0.8125);
  EXPECT_DOUBLE_EQ(ablation.layers[0].drop, 0.25);
  EXPECT_EQ(ablation.layers[0].drop_interval, drop.interval);
  EXPECT_EQ(ablation.layers[0].p_value, drop.p_value);
}

TEST(MakeAblation, ScoresThatDoNotFitAreRefused) {
  EXPECT_THROW(make_ablation({}, {{16, 16}}, kBaseScores, {{1, 1, 1, 0}}), InvalidArgument);
  EXPECT_THROW(make_ablation({}, {{16}}, kBaseScores, {{1}}), InvalidArgument);
}

TEST(AblationFile, IsReadAsItWasWritten) {
  const std::string text = format_ablation(example_ablation());
  EXPECT_EQ(parse_ablation(text, "file"), example_ablation());
  EXPECT_EQ(format_ablation(parse_ablation(text, "file")), text);
}

TEST(AblationFile, WhatIsWrongIsNamed) {
  EXPECT_THROW(parse_ablation("{", "file"), CorruptFile);
  EXPECT_THROW(parse_ablation("[]", "file"), CorruptFile);
  EXPECT_THAT(error_after([](Json* json) { (*json)["schema_version"] = 5; }),
              Names("file", "schema_version", 5, 1, 4));
  EXPECT_THAT(error_after([](Json* json) { json->erase("conditions"); }),
              Names("file", "conditions", "missing"));
  EXPECT_THAT(error_after([](Json* json) { (*json)["conditions"]["model"].erase("id"); }),
              Names("file", "conditions.model.id", "missing"));
  EXPECT_THAT(error_after([](Json* json) { (*json)["layers"].erase(1); }), Names("layers", 1, 2));
  EXPECT_THAT(error_after([](Json* json) { (*json)["layers"][1]["layer"] = 0; }),
              Names("layers[1].layer", 0, 1));
  EXPECT_THAT(error_after([](Json* json) { (*json)["layers"][0]["correct"] = 9; }),
              Names("layers[0].correct", 9, 0, 4));
  EXPECT_THAT(error_after([](Json* json) { (*json)["layers"][0]["drop"] = 1.5; }),
              Names("layers[0].drop", 1.5));
  EXPECT_THAT(error_after([](Json* json) { (*json)["layers"][0]["interval_95"] = {0}; }),
              Names("layers[0].interval_95", "[0]"));
  EXPECT_THAT(error_after([](Json* json) {
                (*json)["base"]["samples"] = {16, -1};
              }),
              Names("base.samples[1]", -1));
}

TEST(AblationFile, ABaseWithExactLayersIsVersion3) {
  Ablation ablation = example_ablation();
  EXPECT_EQ(Json::parse(format_ablation(ablation)).at("schema_version"), 2);
  ablation.base.samples.front() = kExactLayer;
  const std::string text = format_ablation(ablation);
  EXPECT_EQ(Json::parse(text).at("schema_version"), 3);
  EXPECT_EQ(Json::parse(text).at("base").at("samples").at(0), "exact");
  EXPECT_EQ(parse_ablation(text, "file"), ablation);
}

// Two layers of two KV heads.
Ablation example_of_heads() {
  Ablation ablation = make_ablation(conditions(), {{16, 8}}, kBaseScores,
                                    {{0, 0, 1, 0}, {1, 1, 1, 1}, {1, 1, 1, 0}, {0, 0, 0, 0}}, 2);
  ablation.tool_version = "0.1.0";
  return ablation;
}

TEST(AblationFile, OfKvHeadsIsVersion4) {
  const Ablation ablation = example_of_heads();
  ASSERT_EQ(ablation.layers.size(), 4u);
  for (int32_t place = 0; place < 4; ++place) {
    EXPECT_EQ(ablation.layers[place].layer, place / 2);
    EXPECT_EQ(ablation.layers[place].kv_head, place % 2);
  }
  EXPECT_DOUBLE_EQ(ablation.layers[3].drop, 0.75);
  const std::string text = format_ablation(ablation);
  EXPECT_EQ(Json::parse(text).at("schema_version"), 4);
  EXPECT_EQ(Json::parse(text).at("kv_heads"), 2);
  EXPECT_EQ(Json::parse(text).at("layers").at(3).at("kv_head"), 1);
  EXPECT_EQ(parse_ablation(text, "file"), ablation);
  EXPECT_THROW(make_ablation({}, {{16, 8}}, kBaseScores, {kBaseScores, kBaseScores}, 2), InvalidArgument);
  const auto error = [&](const std::function<void(Json*)>& change) {
    return error_of_changed(text, change,
                            [](const std::string& changed) { return parse_ablation(changed, "file"); });
  };
  EXPECT_THAT(error([](Json* json) { (*json)["layers"].erase(3); }), Names("layers", 3, 2));
  EXPECT_THAT(error([](Json* json) { (*json)["layers"][1]["kv_head"] = 0; }),
              Names("layers[1].kv_head", 0, 1));
  EXPECT_THAT(error([](Json* json) { (*json)["kv_heads"] = 0; }), Names("kv_heads", 0, 1));
}

TEST(AblationFile, Version1IsReadAndWhatItDoesNotSayIsUnknown) {
  const Ablation ablation =
      read_ablation(std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/ablation/version_1.json");
  EXPECT_EQ(ablation.conditions.model.id, "tiny-gsm");
  EXPECT_EQ(ablation.conditions.model.layers, 8);
  EXPECT_EQ(ablation.conditions.task.prompt_style, "plain");
  EXPECT_EQ(ablation.conditions.attention.estimator, kernels::Estimator::kSys);
  EXPECT_EQ(ablation.conditions.measured_on->questions, 16);
  EXPECT_EQ(ablation.layers.size(), 8u);
  for (const char* field : {"model.tokenizer_sha256", "attention.tile", "attention.score_budget",
                            "generation.temperature", "generation.max_new_tokens"})
    EXPECT_TRUE(ablation.conditions.unknown.contains(field)) << field;
  for (const char* field :
       {"model.weights_fingerprint", "task.version", "attention.prefill", "generation.dtype", "seed"})
    EXPECT_FALSE(ablation.conditions.unknown.contains(field)) << field;
  EXPECT_EQ(parse_ablation(format_ablation(ablation), "file"), ablation);
}

TEST(AblationOfARun, DiffersInWhatDecidesResults) {
  Conditions run = conditions();
  run.learned_on = {.sha256 = std::string(64, 'd'), .questions = 100};
  run.measured_on->questions = 50;
  run.seed = 1;
  EXPECT_THAT(differences_from_run(conditions(), run), testing::IsEmpty());
  Conditions ablation = conditions();
  ablation.measured_on->sha256 = std::string(64, 'd');  // the questions learned on
  EXPECT_THAT(differences_from_run(ablation, run), testing::IsEmpty());
  ablation.measured_on->sha256 = std::string(64, '9');
  ablation.generation.temperature = 0.5;
  EXPECT_THAT(differences_from_run(ablation, run),
              testing::ElementsAre(testing::Field(&Difference::field, "measured_on.sha256"),
                                   Difference{"generation.temperature", "0.5", "0.0"}));
}

TEST(AblationFile, AMissingFileIsNamed) {
  EXPECT_THROW(read_ablation("/does/not/exist/ablation.json"), NotFound);
}

}  // namespace
}  // namespace allot::evaluation
