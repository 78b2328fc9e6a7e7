#include "app/report/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/app/report/xml.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> labels(const std::vector<Tick>& ticks) {
  std::vector<std::string> texts;
  for (const Tick& tick : ticks) texts.push_back(tick.label);
  return texts;
}

// 100 x 50 pixels of plotting area for x in [0, 10] and y in [0, 5], its lower left corner at (20, 60).
Frame small_frame() {
  return {.description = "A small chart",
          .width = 130,
          .height = 100,
          .margins = {.left = 20, .right = 10, .top = 10, .bottom = 40},
          .x = {.title = "Time", .from = 0, .to = 10, .ticks = {{0, "0"}, {10, "10"}}},
          .y = {.title = "Height", .from = 0, .to = 5, .ticks = {{5, "5"}}}};
}

std::string attribute(const XmlElement& element, const std::string& name) {
  return element.attributes.at(name);
}

TEST(Ticks, AreRoundNumbersWithinTheRange) {
  EXPECT_THAT(labels(round_ticks(0, 1, 6)), ElementsAre("0.0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_THAT(labels(round_ticks(-3, 12, 5)), ElementsAre("0", "5", "10"));
  EXPECT_THAT(labels(round_ticks(0, 0.07, 4)), ElementsAre("0.00", "0.02", "0.04", "0.06"));
  EXPECT_THAT(labels(round_ticks(120, 4100, 5)), ElementsAre("1000", "2000", "3000", "4000"));
  EXPECT_THAT(labels(percent_ticks(0, 1, 3)), ElementsAre("0%", "50%", "100%"));
  EXPECT_THAT(labels(percent_ticks(0.97, 1, 4)), ElementsAre("97%", "98%", "99%", "100%"));
}

TEST(Ticks, OfCountsAreWholeNumbers) {
  EXPECT_THAT(labels(whole_ticks(0, 2, 10)), ElementsAre("0", "1", "2"));
  EXPECT_THAT(labels(whole_ticks(-0.5, 7.5, 28)), ElementsAre("0", "1", "2", "3", "4", "5", "6", "7"));
  EXPECT_THAT(labels(whole_ticks(-0.5, 27.5, 10)), ElementsAre("0", "5", "10", "15", "20", "25"));
}

TEST(Ticks, AreNeverMoreThanAskedForAndNeverFewerThanTwoInAWideRange) {
  for (int most = 2; most <= 12; ++most) {
    for (double high = 0.003; high < 1e6; high *= 1.7) {
      const size_t count = round_ticks(0, high, most).size();
      EXPECT_LE(count, static_cast<size_t>(most)) << "0 to " << high;
      EXPECT_GE(count, most >= 4 ? 2u : 1u) << "0 to " << high << ", most " << most;
    }
  }
}

TEST(LogAxis, HasPowersOfTenOrWhatLiesBetweenThem) {
  const Axis wide = log_axis("Divergence", 0.002, 30);
  EXPECT_EQ(wide.title, "Divergence");
  EXPECT_THAT(labels(wide.ticks), ElementsAre("0.01", "0.1", "1", "10"));
  EXPECT_THAT(labels(log_axis("", 4, 32).ticks), ElementsAre("5", "10", "20"));
  EXPECT_LT(wide.from, std::log10(0.002));
  EXPECT_GT(wide.to, std::log10(30.0));
  EXPECT_NEAR(wide.ticks[3].value, 1, 1e-12);
  const Axis point = log_axis("", 8, 8);
  EXPECT_LT(point.from, point.to);
}

TEST(Chart, PutsMarksWhereTheScalesSay) {
  Chart chart(small_frame());
  chart.bar(2, 4, 3, "bar", "three");
  chart.line(std::vector<Point>{{0, 0}, {5, 2.5}, {10, 5}}, "line");
  chart.dots(std::vector<Point>{{1, 2}}, "dots");
  chart.rug(std::vector<double>{10}, "rug");
  chart.whisker({5, 1}, {5, 2}, {5, 4}, "whisker", "");
  const XmlElement svg = parse_xml(chart.inline_svg());

  const XmlElement& bar = *svg.all("rect", "bar").at(0);
  EXPECT_EQ(attribute(bar, "x"), "40");
  EXPECT_EQ(attribute(bar, "width"), "20");
  EXPECT_EQ(attribute(bar, "y"), "30");
  EXPECT_EQ(attribute(bar, "height"), "30");
  EXPECT_EQ(bar.all("title").at(0)->text, "three");
  EXPECT_EQ(attribute(*svg.all("path", "line").at(0), "d"), "M20 60L70 35L120 10");
  EXPECT_EQ(attribute(*svg.all("path", "dots").at(0), "d"), "M30 40h0");
  EXPECT_EQ(attribute(*svg.all("path", "rug").at(0), "d"), "M120 60v-6");
  const XmlElement& whisker = *svg.all("g", "whisker").at(0);
  EXPECT_EQ(attribute(*whisker.all("line").at(0), "y1"), "50");
  EXPECT_EQ(attribute(*whisker.all("line").at(0), "y2"), "20");
  EXPECT_EQ(attribute(*whisker.all("circle").at(0), "cx"), "70");
  EXPECT_EQ(attribute(*whisker.all("circle").at(0), "cy"), "40");
}

TEST(Chart, BandRunsAlongTheUpperCurveAndBackAlongTheLower) {
  Chart chart(small_frame());
  chart.band(std::vector<Point>{{0, 1}, {10, 1}}, std::vector<Point>{{0, 2}, {10, 3}}, "band");
  const XmlElement svg = parse_xml(chart.inline_svg());
  EXPECT_EQ(attribute(*svg.all("path", "band").at(0), "d"), "M20 40L120 30L120 50L20 50Z");
}

TEST(Chart, AxisThatRunsDownwardsPutsItsFirstValueOnTop) {
  Frame frame = small_frame();
  std::swap(frame.y.from, frame.y.to);
  Chart chart(frame);
  chart.cell({0, 0}, {10, 1}, "c0", "");
  const XmlElement svg = parse_xml(chart.inline_svg());
  EXPECT_EQ(attribute(*svg.all("rect", "c0").at(0), "y"), "10");
  EXPECT_EQ(attribute(*svg.all("rect", "c0").at(0), "height"), "10");
}

TEST(Chart, LabelsOfNeighbouringLevelsDoNotOverlapAndKeepTheirOrder) {
  Chart chart(small_frame());
  chart.level(5, "dense", "dense");
  chart.level(4.9, "learned", "learned");
  chart.level(0.1, "uniform", "uniform");
  chart.level(0, "plain", "plain");
  const XmlElement svg = parse_xml(chart.inline_svg());
  EXPECT_EQ(attribute(*svg.all("text", "dense").at(0), "y"), "14");  // beside its line, with room below
  double last = -1000;
  for (const char* name : {"dense", "learned", "uniform", "plain"}) {
    const XmlElement& label = *svg.all("text", name).at(0);
    const double y = std::stod(attribute(label, "y"));
    EXPECT_GE(y - last, 14) << name;
    EXPECT_LE(y, 64) << name << " lies below the axis";
    last = y;
  }
  EXPECT_EQ(attribute(*svg.all("line", "uniform").at(0), "y1"), "59");  // the line itself stays at its value
}

TEST(Chart, TextFromOutsideCannotBreakTheMarkup) {
  Frame frame = small_frame();
  frame.description = "a \"b\" <c> & d";
  frame.x.title = "<script>&";
  const XmlElement svg = parse_xml(Chart(frame).inline_svg());
  EXPECT_EQ(attribute(svg, "aria-label"), "a \"b\" <c> & d");
  EXPECT_THAT(svg.text, HasSubstr("<script>&"));
  EXPECT_TRUE(svg.all("script").empty());
}

TEST(Chart, FileOfItsOwnHasNamespaceSizeAndStyleWithoutVariables) {
  const std::string file = Chart(small_frame()).standalone_svg();
  const XmlElement svg = parse_xml(file);
  EXPECT_EQ(attribute(svg, "xmlns"), "http://www.w3.org/2000/svg");
  EXPECT_EQ(attribute(svg, "width"), "130");
  EXPECT_EQ(attribute(svg, "height"), "100");
  EXPECT_EQ(svg.all("title").at(0)->text, "A small chart");
  EXPECT_THAT(svg.all("style").at(0)->text, HasSubstr(".chart .bar"));
  EXPECT_THAT(file, Not(HasSubstr("var(")));
}

TEST(ChartStyle, DefinesEveryColourThatItUsesForLightAndForDark) {
  const std::string style = chart_style();
  size_t used = 0;
  for (size_t at = style.find("var(--"); at != std::string::npos; at = style.find("var(--", at + 1), ++used) {
    const std::string name = style.substr(at + 4, style.find(')', at) - at - 4);
    const size_t light = style.find(name + ": ");
    ASSERT_NE(light, std::string::npos) << name;
    EXPECT_NE(style.find(name + ": ", light + 1), std::string::npos) << name << " has no dark colour";
  }
  EXPECT_GT(used, 20u);
}

}  // namespace
}  // namespace allot::app
