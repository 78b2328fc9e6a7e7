#include "evaluation/frontier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "base/json.h"
#include "tests/evaluation/document.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

Frontier example_frontier() {
  Frontier frontier;
  frontier.conditions.model = example_model();
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
  return error_of_changed(format_frontier(example_frontier()), change,
                          [](const std::string& text) { return parse_frontier(text, "f.json"); });
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

EvenPoint even_point(int64_t total, int64_t right, int64_t questions) {
  std::vector<double> scores(static_cast<size_t>(questions), 0.0);
  std::fill_n(scores.begin(), right, 1.0);
  return {total, policy::even_schedule(2, total, 0), accuracy_of(scores)};
}

TEST(Frontier, EvenTotalsAndLostRepliesReadBack) {
  Frontier frontier = example_frontier();
  frontier.even = {even_point(12, 2, 4), even_point(32, 4, 4)};
  frontier.lost = {{.question = 0, .dense = "The answer is 4.\n", .learned = ""},
                   {.question = 3, .dense = "„5“", .learned = "six"}};
  EXPECT_EQ(parse_frontier(format_frontier(frontier), "f.json"), frontier);
  const std::string text = format_frontier(frontier);
  const auto after = [&](const std::function<void(Json*)>& change) {
    Json json = Json::parse(text);
    change(&json);
    try {
      parse_frontier(json.dump(), "f.json");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(after([](Json* json) { (*json)["even"][1]["total"] = 11; }), Names("even[1]", 11, 12));
  EXPECT_THAT(after([](Json* json) { (*json)["even"] = 1; }), Names("even", 1));
  EXPECT_THAT(after([](Json* json) { (*json)["lost"][1]["learned"] = 6; }), Names("lost[1].learned", 6));
}

// Accuracies of even schedules that rise with the logarithm of the total, 600 of 1,000 right at `equal`.
Frontier search(int64_t equal, int64_t most, int* steps) {
  Frontier frontier = example_frontier();
  const auto measure = [&](int64_t total) {
    const double right = 600 + 150 * std::log2(static_cast<double>(total) / static_cast<double>(equal));
    return even_point(total, std::clamp<int64_t>(std::llround(right), 0, 1000), 1000);
  };
  frontier.points = {
      {.total = 64, .uniform = measure(64).accuracy, .learned = even_point(64, 600, 1000).accuracy}};
  for (*steps = 0; const auto total = next_even_total(frontier, most); ++*steps) {
    EXPECT_TRUE(
        std::ranges::none_of(frontier.even, [&](const EvenPoint& seen) { return seen.total == *total; }));
    frontier.even.push_back(measure(*total));
    std::ranges::sort(frontier.even, {}, &EvenPoint::total);
  }
  return frontier;
}

TEST(Frontier, TheSearchFindsTheEvenTotalThatIsAsAccurate) {
  for (const int64_t equal : {65, 70, 90, 128, 200, 511, 1500}) {
    int steps = 0;
    const auto found = equal_even(search(equal, 4096, &steps));
    ASSERT_TRUE(found && found->above && found->below) << equal;
    EXPECT_NEAR(found->total, static_cast<double>(equal), 0.03 * static_cast<double>(equal));
    EXPECT_LE(found->above->total - found->below->total, std::max<int64_t>(1, found->below->total / 10));
    EXPECT_LE(steps, 9) << equal;
  }
}

TEST(Frontier, TheSearchEndsWhereNothingIsToBeFound) {
  int steps = 0;
  const auto never = equal_even(search(1'000'000, 300, &steps));
  ASSERT_TRUE(never && !never->above && never->below);
  EXPECT_EQ(never->below->total, 300);
  EXPECT_EQ(steps, 3);
  EXPECT_THAT(text(*never, "samples"), Names("64", "60.0%", "300"));
  const auto at_once = equal_even(search(40, 300, &steps));
  ASSERT_TRUE(at_once && at_once->above && !at_once->below);
  EXPECT_EQ(steps, 0);
  Frontier elsewhere = example_frontier();
  elsewhere.points.pop_back();
  EXPECT_FALSE(equal_even(elsewhere) || next_even_total(elsewhere, 300));
}

}  // namespace
}  // namespace allot::evaluation
