#include "app/report/calibration_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/app/report/xml.h"

namespace allot::app {
namespace {

using evaluation::Calibration;
using kernels::BudgetUnit;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Paths = std::vector<std::filesystem::path>;

Calibration calibration(std::vector<int32_t> samples, double divergence) {
  Calibration made{.schedule = {std::move(samples)},
                   .uniform = {.mean = 2 * divergence, .standard_error = divergence / 5},
                   .learned = {.mean = divergence, .standard_error = divergence / 10}};
  for (const int32_t of_layer : made.schedule.samples) {
    made.sensitivities.emplace_back();
    if (of_layer != kExactLayer)
      made.sensitivities.back() = {.one_more = 0.1, .one_fewer = -0.2, .error = 0.02};
  }
  if (made.sensitivities[0]) made.sensitivities[0]->one_fewer = -std::numeric_limits<double>::infinity();
  return made;
}

std::vector<std::string> tips_of(const XmlElement& svg) {
  std::vector<std::string> tips;
  for (const XmlElement* whisker : svg.all("g", "whisker")) tips.push_back(whisker->all("title").at(0)->text);
  return tips;
}

TEST(CalibrationFigures, TheScheduleHasABarForEachLayer) {
  const XmlElement svg =
      parse_xml(calibrated_schedule_chart(calibration({0, 5, 4}, 0.1), BudgetUnit::kSamples).inline_svg());
  EXPECT_THAT(svg.all("path", "uniform"), SizeIs(1));
  EXPECT_NE(calibrated_schedule_chart(calibration({0, 5, 4}, 0.1), BudgetUnit::kSamples)
                .inline_svg()
                .find("Layer 1: 5 samples"),
            std::string::npos);
}

TEST(CalibrationFigures, SensitivitiesAreDrawnWhereThereAreAny) {
  const XmlElement svg =
      parse_xml(sensitivity_chart(calibration({0, 5, 4}, 0.1), BudgetUnit::kSamples).inline_svg());
  EXPECT_THAT(tips_of(svg),
              ElementsAre("Layer 0, one sample more: +0.1000", "Layer 1, one sample more: +0.1000",
                          "Layer 1, one sample fewer: -0.2000", "Layer 2, one sample more: +0.1000",
                          "Layer 2, one sample fewer: -0.2000"));
}

TEST(CalibrationFigures, ExactLayersAreNamedAndHaveNoMark) {
  const Calibration one = calibration({kExactLayer, 5, 4}, 0.1);
  const std::string bars = calibrated_schedule_chart(one, BudgetUnit::kSamples).inline_svg();
  EXPECT_THAT(bars, HasSubstr(">exact<"));
  EXPECT_THAT(bars, Not(HasSubstr("Layer 0")));
  // The line of the even schedule is that of the two layers that sample.
  const auto height_of_line = [](const std::string& svg) {
    const std::string path = parse_xml(svg).all("path", "uniform").at(0)->attributes.at("d");
    return path.substr(path.rfind(' '));
  };
  EXPECT_EQ(
      height_of_line(bars),
      height_of_line(calibrated_schedule_chart(calibration({5, 4}, 0.1), BudgetUnit::kSamples).inline_svg()));
  const Chart sensitivities = sensitivity_chart(one, BudgetUnit::kSamples);
  EXPECT_THAT(tips_of(parse_xml(sensitivities.inline_svg())),
              ElementsAre("Layer 1, one sample more: +0.1000", "Layer 1, one sample fewer: -0.2000",
                          "Layer 2, one sample more: +0.1000", "Layer 2, one sample fewer: -0.2000"));
  EXPECT_THAT(sensitivities.inline_svg(), HasSubstr(">exact<"));
}

TEST(CalibrationFigures, DivergenceIsDrawnAgainstTotalInTheirOrder) {
  const std::vector<Calibration> two = {calibration({4, 4}, 0.1), calibration({2, 2}, 0.4)};
  EXPECT_THAT(tips_of(parse_xml(calibration_chart(two, BudgetUnit::kSamples).inline_svg())),
              ElementsAre("uniform 4: 0.8 nats", "uniform 8: 0.2 nats", "learned 4: 0.4 nats",
                          "learned 8: 0.1 nats"));
}

TEST(CalibrationFigures, SayRowsWhereBudgetsAreRows) {
  const Calibration one = calibration({0, 5, 4}, 0.1);
  EXPECT_THAT(calibrated_schedule_chart(one, BudgetUnit::kRows).inline_svg(),
              testing::AllOf(HasSubstr("Layer 1: 5 rows"), HasSubstr("Value rows per KV head"),
                             Not(HasSubstr("ample"))));
  EXPECT_THAT(sensitivity_chart(one, BudgetUnit::kRows).inline_svg(),
              testing::AllOf(HasSubstr("Layer 1, one row more"), Not(HasSubstr("sample"))));
  const std::vector<Calibration> two = {one, calibration({2, 2}, 0.4)};
  EXPECT_THAT(calibration_chart(two, BudgetUnit::kRows).inline_svg(),
              testing::AllOf(HasSubstr("Rows of all layers"), Not(HasSubstr("ample"))));
}

TEST(CalibrationFigures, FilesAreNamedByTheirTotals) {
  const TemporaryDirectory directory;
  const std::filesystem::path& at = directory.path();
  const std::vector<Calibration> two = {calibration({4, 4}, 0.1), calibration({2, 2}, 0.4)};
  EXPECT_EQ(write_calibration_plots(two, BudgetUnit::kSamples, at),
            (Paths{at / "schedule-8.svg", at / "sensitivities-8.svg", at / "schedule-4.svg",
                   at / "sensitivities-4.svg", at / "divergence.svg"}));
  std::vector<Calibration> one = {two[0]};
  one[0].sensitivities.clear();
  EXPECT_EQ(write_calibration_plots(one, BudgetUnit::kSamples, at), Paths{at / "schedule-8.svg"});
  EXPECT_THAT(read_file(at / "divergence.svg"), testing::StartsWith("<"));
}

}  // namespace
}  // namespace allot::app
