// Curves of measurements that fall, over logarithmic axes: divergence or error against what it costs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "app/report/svg_chart.h"

namespace allot::app {

struct MeasuredPoint {
  double x = 0;  // above 0, as all of these
  double y = 0;
  double low = 0;  // of the interval of y
  double high = 0;
  std::string tip;
};

// From y - error to y + error, but for a low end that would reach 0.
MeasuredPoint measured_point(double x, double y, double error, std::string tip);

struct MeasuredCurve {
  std::string name;
  std::vector<MeasuredPoint> points;  // by rising x
};

// The curve of this name, a new one behind the others where there is none.
MeasuredCurve& curve_named(const std::string& name, std::vector<MeasuredCurve>* curves);
void sort_points(std::vector<MeasuredCurve>* curves);

struct LogCurvesText {
  std::string description;
  std::string x;
  std::string y;
};

// A whisker at every point, lines between them, and the names in the upper right corner, which falling curves
// leave free. Where `ticks` are given, they are those of x. There has to be a point in the first curve.
Chart log_curves_chart(const LogCurvesText& text, std::span<const MeasuredCurve> curves,
                       std::vector<Tick> ticks = {});

}  // namespace allot::app
