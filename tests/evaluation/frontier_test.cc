#include "evaluation/frontier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

Frontier example_frontier() {
  Frontier frontier;
  frontier.conditions.model = {.id = "tiny",
                               .config_sha256 = std::string(64, 'a'),
                               .tokenizer_sha256 = std::string(64, 'b'),
                               .weights_fingerprint = std::string(64, 'c'),
                               .layers = 2,
                               .num_q_heads = 8,
                               .num_kv_heads = 4,
                               .head_dim = 32};
  frontier.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
  frontier.conditions.measured_on = {.sha256 = std::string(64, 'e'), .questions = 4};
  frontier.tool_version = "0.1.0";
  frontier.run_id = "r-1";
  const std::vector<double> few = {1, 0, 0, 0}, some = {1, 1, 0, 0}, all = {1, 1, 1, 1};
  frontier.dense = accuracy_of(all);
  frontier.points = {
      score_point({.total = 8, .resolved = true, .uniform_schedule = {{4, 4}}, .learned_schedule = {{7, 1}}},
                  few, some),
      score_point({.total = 16, .uniform_schedule = {{8, 8}}, .learned_schedule = {{13, 3}}}, some, all)};
  return frontier;
}

std::string frontier_error_after(const std::function<void(Json*)>& change) {
  Json json = Json::parse(format_frontier(example_frontier()));
  change(&json);
  try {
    parse_frontier(json.dump(), "f.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Frontier, ReadsBackExactlyWhatWasWritten) {
  const Frontier frontier = example_frontier();
  EXPECT_EQ(parse_frontier(format_frontier(frontier), "f.json"), frontier);
  EXPECT_EQ(frontier.points[1].paired.pairs.only_first, 2);
  EXPECT_DOUBLE_EQ(frontier.points[0].paired.difference, 0.25);
}

TEST(Frontier, ScoresOfOtherQuestionsAreRefused) {
  const std::vector<double> three = {1, 1, 0}, two = {1, 0};
  EXPECT_THAT([&] { (void)score_point({.total = 8}, three, two); },
              testing::ThrowsMessage<InvalidArgument>(Names(8, 3, 2)));
}

TEST(Frontier, EveryFaultOfAFileIsNamedWithItsPlace) {
  EXPECT_THAT(frontier_error_after([](Json* json) {
                (*json)["totals"][1]["total"] = 8;
                (*json)["totals"][0]["learned"]["samples"] = {7, 2};
                (*json).erase("run_id");
              }),
              Names("f.json", "totals[1].total", 8, "totals[0].learned.samples", 9, "run_id"));
  EXPECT_THAT(frontier_error_after([](Json* json) { (*json)["totals"] = Json::array(); }),
              Names("totals", "[]"));
  EXPECT_THAT(frontier_error_after([](Json* json) { (*json)["totals"][0]["uniform"]["n"] = 5; }),
              Names("totals[0].uniform.n", 5, 4));
  EXPECT_THAT(frontier_error_after([](Json* json) { (*json)["schema_version"] = 9; }),
              Names("schema_version", 9));
  EXPECT_THAT(frontier_error_after([](Json* json) { (*json)["extra"] = 1; }), Names("extra"));
}

}  // namespace
}  // namespace allot::evaluation
