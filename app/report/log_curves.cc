#include "app/report/log_curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace allot::app {

MeasuredPoint measured_point(double x, double y, double error, std::string tip) {
  return {
      .x = x, .y = y, .low = std::max(y - error, kLeastShare * y), .high = y + error, .tip = std::move(tip)};
}

MeasuredCurve& curve_named(const std::string& name, std::vector<MeasuredCurve>* curves) {
  const auto curve = std::ranges::find(*curves, name, &MeasuredCurve::name);
  return curve != curves->end() ? *curve : curves->emplace_back(MeasuredCurve{.name = name, .points = {}});
}

void sort_points(std::vector<MeasuredCurve>* curves) {
  for (MeasuredCurve& curve : *curves) std::ranges::stable_sort(curve.points, {}, &MeasuredPoint::x);
}

Chart log_curves_chart(const LogCurvesText& text, std::span<const MeasuredCurve> curves,
                       std::vector<Tick> ticks) {
  assert(!curves.empty());
  const MeasuredPoint& first = curves.front().points.front();
  double least_x = first.x, most_x = first.x, least = first.low, most = first.high;
  for (const MeasuredCurve& curve : curves) {
    for (const MeasuredPoint& point : curve.points) {
      least_x = std::min(least_x, point.x);
      most_x = std::max(most_x, point.x);
      least = std::min(least, point.low);
      most = std::max(most, point.high);
    }
  }
  Axis x_axis = log_axis(text.x, least_x, most_x);
  if (!ticks.empty()) x_axis.ticks = std::move(ticks);
  Chart chart({.description = text.description,
               .width = 720,
               .height = 360,
               .margins = {.left = 62, .right = 16, .top = 30, .bottom = 42},
               .x = std::move(x_axis),
               .y = log_axis(text.y, least, most)});
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::string style = series_style(i);
    std::vector<Point> line;
    for (const MeasuredPoint& point : curves[i].points) {
      const double x = std::log10(point.x);
      line.push_back({x, std::log10(point.y)});
      chart.whisker({x, std::log10(point.low)}, line.back(), {x, std::log10(point.high)}, "whisker " + style,
                    point.tip);
    }
    chart.line(line, "line " + style);
    chart.note({chart.frame().x.to, chart.frame().y.to}, {-4, kLegendLine * static_cast<double>(i + 1)},
               "end", "strong halo " + style, curves[i].name);
  }
  return chart;
}

}  // namespace allot::app
