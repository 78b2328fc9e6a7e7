#include "app/report/fidelity_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/app/report/xml.h"

namespace allot::app {
namespace {

using evaluation::FidelityRow;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

FidelityRow row(kernels::Estimator estimator, double samples, double divergence) {
  return {.method = {.estimator = estimator},
          .schedule = "uniform:" + std::to_string(static_cast<int>(samples)),
          .samples = samples,
          .summary = {.texts = 3,
                      .tokens = 30,
                      .positions = 30,
                      .divergence = divergence,
                      .divergence_error = divergence / 4,
                      .top1_agreement = 1,
                      .rows_per_kv_head = {},
                      .microseconds = 2 * samples}};
}

const std::vector<FidelityRow> kRows = {
    row(kernels::Estimator::kSys, 16, 0.01), row(kernels::Estimator::kSys, 4, 0.1),
    row(kernels::Estimator::kThreshold, 4, 0.02), row(kernels::Estimator::kExact, 4, 0)};

TEST(FidelityChart, HasACurveForEveryEstimatorThatDiverges) {
  const XmlElement svg = parse_xml(fidelity_chart(kRows, FidelityCost::kSamples).inline_svg());
  EXPECT_THAT(svg.all("path", "line"), SizeIs(2));
  EXPECT_THAT(svg.all("g", "whisker"), SizeIs(3));
  std::vector<std::string> tips;
  for (const XmlElement* whisker : svg.all("g", "whisker")) tips.push_back(whisker->all("title").at(0)->text);
  EXPECT_THAT(tips, ElementsAre("sys uniform:4: 0.1 nats", "sys uniform:16: 0.01 nats",
                                "threshold uniform:4: 0.02 nats"));
  std::vector<std::string> ticks;
  for (const XmlElement* text : svg.all("text")) {
    if (text->attributes.contains("text-anchor") && text->attributes.at("text-anchor") == "middle" &&
        !text->has_class("strong"))
      ticks.push_back(text->text);
  }
  EXPECT_THAT(ticks, ElementsAre("4", "16"));
  std::vector<std::string> names;
  for (const XmlElement* text : svg.all("text", "halo")) names.push_back(text->text);
  EXPECT_THAT(names, ElementsAre("sys", "threshold"));
}

TEST(FidelityChart, SchedulesWithExactLayersHaveCurvesOfTheirOwn) {
  std::vector<FidelityRow> rows = kRows;
  rows[1].exact_layers = 1;
  rows.push_back(rows[0]);
  rows.back().exact_layers = 2;
  const XmlElement svg = parse_xml(fidelity_chart(rows, FidelityCost::kSamples).inline_svg());
  std::vector<std::string> names;
  for (const XmlElement* text : svg.all("text", "halo")) names.push_back(text->text);
  EXPECT_THAT(names, ElementsAre("sys", "sys, 1 exact layer", "threshold", "sys, 2 exact layers"));
}

TEST(FidelityChart, SaysRowsWhereBudgetsAreRows) {
  std::vector<FidelityRow> rows = {row(kernels::Estimator::kJoint, 16, 0.01)};
  EXPECT_THAT(fidelity_chart(rows, FidelityCost::kSamples).inline_svg(), HasSubstr("Samples of a layer"));
  rows[0].method.unit = kernels::BudgetUnit::kRows;
  EXPECT_THAT(fidelity_chart(rows, FidelityCost::kSamples).inline_svg(),
              HasSubstr("Value rows asked for a KV head"));
}

TEST(FidelityPlots, AreThoseOfCostsThatAreKnown) {
  const TemporaryDirectory directory;
  using Paths = std::vector<std::filesystem::path>;
  EXPECT_EQ(
      write_fidelity_plots(kRows, directory.path()),
      (Paths{directory.path() / "fidelity_samples.svg", directory.path() / "fidelity_microseconds.svg"}));
  std::vector<FidelityRow> counted = kRows;
  for (FidelityRow& row : counted) row.summary.rows_per_kv_head = row.samples / 2;
  const Paths paths = write_fidelity_plots(counted, directory.path());
  ASSERT_THAT(paths, SizeIs(3));
  EXPECT_EQ(paths[1], directory.path() / "fidelity_rows.svg");
  EXPECT_THAT(parse_xml(read_file(paths[1])).all("g", "whisker"), SizeIs(3));
  EXPECT_THAT(write_fidelity_plots(std::span(kRows).subspan(3), directory.path()), SizeIs(0));
}

}  // namespace
}  // namespace allot::app
