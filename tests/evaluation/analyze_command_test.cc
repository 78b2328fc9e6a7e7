#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/app/run_command.h"
#include "tests/names.h"

namespace allot::app {
namespace {

std::vector<nlohmann::json> rows_of(const CommandResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  std::vector<nlohmann::json> rows;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

TEST(AnalyzeCommand, CountsOperationsOfEachEstimator) {
  const std::vector<std::string> words = {"allot", "analyze",   "operations", "--pass",  "prefill", "--keys",
                                          "1000",  "--samples", "16",         "--group", "3"};
  std::vector<std::string> as_json = words;
  as_json.emplace_back("--json");
  const std::vector<nlohmann::json> rows = rows_of(run_command(as_json));
  ASSERT_EQ(rows.size(), 5u);  // scores; values of exact, topk, sys and joint
  EXPECT_EQ(rows[0]["reads"], 2000 * 128);
  EXPECT_EQ(rows[0]["read_bytes"], 2 * 2000 * 128);
  EXPECT_EQ(rows[1]["estimator"], "exact");
  EXPECT_EQ(rows[1]["samples"], nullptr);
  EXPECT_EQ(rows[3]["estimator"], "sys");
  EXPECT_EQ(rows[3]["additions"], 1000 * 16 * 128);
  EXPECT_EQ(rows[3]["multiplications"], 1000 * 128);
  EXPECT_EQ(rows[4]["additions"], 3 * 1000 * 16 * 128);

  const CommandResult text = run_command(words);
  EXPECT_THAT(text.out, Names("3 to a KV head", "joint", 1000 * 16 * 128));
  EXPECT_THAT(run_command({"allot", "analyze", "operations", "--samples", "0"}).err, Names("--samples", 0));
}

TEST(AnalyzeCommand, MeasuresCoverage) {
  const std::vector<std::string> words = {"allot",      "analyze", "coverage",  "--keys", "64,128",
                                          "--head-dim", "16",      "--samples", "4",      "--json"};
  const std::vector<nlohmann::json> rows = rows_of(run_command(words));
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["keys"], 128);
  EXPECT_EQ(rows[1]["heads"], 65536 / 128);
  EXPECT_NEAR(rows[1]["share"], 0.8, 0.02);
  EXPECT_EQ(rows[1]["expected"], 0.8);
  EXPECT_EQ(rows_of(run_command(words)), rows) << "the same seed";
}

}  // namespace
}  // namespace allot::app
