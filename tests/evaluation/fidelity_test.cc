#include "evaluation/fidelity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "evaluation/statistics.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;

TextFidelity text(int64_t positions, double divergence, double agreement) {
  return {.tokens = positions + 5,
          .positions = positions,
          .divergence = divergence,
          .top1_agreement = agreement,
          .sampled_tokens = positions,
          .rows_read = 0,
          .seconds = 0.001,
          .comparison_seconds = 0.002};
}

TEST(FidelitySummary, WeighsTextsByTheirPositions) {
  const FidelitySummary summary = summarise(std::vector{text(10, 0.5, 1), text(30, 0.1, 0.5)}, 4, 2);
  EXPECT_EQ(summary.texts, 2);
  EXPECT_EQ(summary.tokens, 50);
  EXPECT_EQ(summary.positions, 40);
  EXPECT_DOUBLE_EQ(summary.divergence, (10 * 0.5 + 30 * 0.1) / 40);
  EXPECT_DOUBLE_EQ(summary.top1_agreement, (10 + 15) / 40.0);
  EXPECT_DOUBLE_EQ(summary.microseconds, 2000 / 50.0);
  EXPECT_DOUBLE_EQ(summary.comparison_microseconds, 4000 / 40.0);
  // 10 (0.5 - 0.2) and 30 (0.1 - 0.2), over 40 positions.
  ASSERT_TRUE(summary.divergence_error);
  EXPECT_DOUBLE_EQ(*summary.divergence_error, std::sqrt(9.0 + 9.0) / 40);
}

TEST(FidelitySummary, HasTheStandardErrorOfScoresWhereTextsAreEquallyLong) {
  const std::vector<double> divergences{0.5, 0.125, 0.75, 0.25, 0.0625};
  std::vector<TextFidelity> texts;
  for (const double divergence : divergences) texts.push_back(text(7, divergence, 1));
  EXPECT_DOUBLE_EQ(summarise(texts, 1, 1).divergence_error.value(), standard_error(divergences));
}

TEST(FidelitySummary, CountsValueRowsOfASampledQueryForAKvHeadOfALayer) {
  std::vector<TextFidelity> texts{text(10, 0.5, 1), text(30, 0.1, 1)};
  EXPECT_FALSE(summarise(texts, 4, 2).rows_per_kv_head) << "not counted";
  texts[0].rows_read = 10 * 4 * 2 * 6;  // 6 rows of each
  texts[1].rows_read = 30 * 4 * 2 * 2;
  EXPECT_DOUBLE_EQ(summarise(texts, 4, 2).rows_per_kv_head.value(), (10 * 6 + 30 * 2) / 40.0);
}

TEST(FidelitySummary, OfOneTextHasNoStandardError) {
  EXPECT_FALSE(summarise(std::vector{text(10, 0.5, 1)}, 1, 1).divergence_error);
}

TEST(FidelitySummary, ASchedulesOfExactLayersAloneReadsNoRowsForSampledOnes) {
  TextFidelity read = text(10, 0.5, 1);
  read.rows_read = 40;
  EXPECT_FALSE(summarise(std::vector{read}, 0, 2).rows_per_kv_head);
}

TEST(FidelitySummary, RefusesWhatHasNoMean) {
  const auto refused = [](const std::vector<TextFidelity>& texts) {
    return message_of<InvalidArgument>([&] { (void)summarise(texts, 1, 1); });
  };
  EXPECT_THAT(refused({}), Names("no texts"));
  EXPECT_THAT(refused({text(3, 0.1, 1), text(0, 0.1, 1)}), Names("text 1", 0, 1));
  EXPECT_THAT(refused({text(3, std::numeric_limits<double>::quiet_NaN(), 1)}), Names("text 0", "nan"));
}

TEST(FidelityRow, IsOneJsonObject) {
  FidelityRow row{.method = {.estimator = kernels::Estimator::kThreshold},
                  .schedule = "uniform:8",
                  .samples = 8,
                  .exact_layers = 2,
                  .summary = summarise(std::vector{text(10, 0.5, 0.75)}, 1, 1)};
  const Json json = to_json(row);
  EXPECT_EQ(
      json.dump(),
      R"({"estimator":"threshold","schedule":"uniform:8","samples":8,"exact_layers":2,"texts":1,"tokens":15,)"
      R"("positions":10,"divergence":0.5,"divergence_standard_error":null,"top1_agreement":0.75,)"
      R"("rows_per_kv_head":null,"microseconds":)" +
          json.at("microseconds").dump() + R"(,"comparison_microseconds":200.0})");
  row.samples = 2.5;
  row.summary.divergence_error = 0.25;
  row.summary.rows_per_kv_head = 12.5;
  EXPECT_EQ(to_json(row).at("samples"), 2.5);
  EXPECT_EQ(to_json(row).at("divergence_standard_error"), 0.25);
  EXPECT_EQ(to_json(row).at("rows_per_kv_head"), 12.5);
  EXPECT_FALSE(json.contains("simulated_cache"));
  row.simulated_cache = kernels::parse_cache_formats("fp8/int8");
  EXPECT_EQ(to_json(row).at("simulated_cache"), "fp8/int8");
  EXPECT_TRUE(to_json(row).at("microseconds").is_null()) << "of a simulation";
  EXPECT_TRUE(to_json(row).at("comparison_microseconds").is_null());
}

}  // namespace
}  // namespace allot::evaluation
