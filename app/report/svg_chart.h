// A small chart: a frame with two linear axes and marks in data coordinates, drawn as SVG. Colours come from
// CSS classes (chart_style), so one chart serves light and dark pages and print. What each figure of a report
// shows is in figures.h.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/report/markup.h"

namespace allot::app {

inline constexpr double kHalfBar = 0.36;   // of a bar, of the room of one layer
inline constexpr double kLegendLine = 15;  // pixels
// The lower end of a whisker that would reach 0, as a share of its value.
inline constexpr double kLeastShare = 0.1;

struct Point {
  double x = 0;
  double y = 0;
};

struct Tick {
  double value = 0;
  std::string label;
};

// Multiples of 1, 2 or 5 times a power of ten within [low, high], at most `most` of them, labelled with as
// many decimals as the step needs. Requires low < high and most >= 2.
std::vector<Tick> round_ticks(double low, double high, int most);
// The same for ratios: 0.25 is labelled "25 %".
std::vector<Tick> percent_ticks(double low, double high, int most);
// The same for counts: steps are whole numbers.
std::vector<Tick> whole_ticks(double low, double high, int most);

struct Axis {
  std::string title;
  double from = 0;  // value at the left or lower end; larger than `to` on a reversed axis
  double to = 1;
  std::vector<Tick> ticks;
};

// The axis of the logarithms, to base 10, of values from `low` to `high`, both above 0, with a little room at
// both ends: ticks at powers of ten or, where these are fewer than three, at 1, 2 and 5 times them, labelled
// with the values.
Axis log_axis(std::string title, double low, double high);

// Linear map of [from, to] to pixels.
class Scale {
 public:
  Scale(double from, double to, double first_pixel, double last_pixel)
      : from_(from), first_pixel_(first_pixel), pixels_per_unit_((last_pixel - first_pixel) / (to - from)) {}
  double operator()(double value) const { return first_pixel_ + (value - from_) * pixels_per_unit_; }
  double pixels_per_unit() const { return pixels_per_unit_; }

 private:
  double from_;
  double first_pixel_;
  double pixels_per_unit_;
};

// Pixels between the edge of the picture and the plotting area.
struct Margins {
  double left = 44;
  double right = 12;
  double top = 30;
  double bottom = 42;
};

struct Frame {
  std::string description;  // read aloud to people who cannot see the chart
  double width = 720;       // pixels, margins included
  double height = 300;
  Margins margins;
  Axis x;
  Axis y;
};

class Chart {
 public:
  explicit Chart(Frame frame);

  // Marks, drawn in the order of the calls. `style` is one or more class names of chart_style(). A `tip` that
  // is not empty is shown when the pointer rests on the mark.
  void bar(double x_low, double x_high, double value, std::string_view style, const std::string& tip);
  void cell(Point corner, Point opposite, std::string_view style, const std::string& tip);
  void line(std::span<const Point> points, std::string_view style);
  // The area between two curves over the same x.
  void band(std::span<const Point> low, std::span<const Point> high, std::string_view style);
  // Round dots of equal size in one path; their diameter is the stroke width of the style.
  void dots(std::span<const Point> points, std::string_view style);
  // A line from `low` to `high` with a dot at `value`: a measurement with its interval,
  // vertical or horizontal.
  void whisker(Point low, Point value, Point high, std::string_view style, const std::string& tip);
  // Short ticks on the lower edge of the plotting area.
  void rug(std::span<const double> xs, std::string_view style);
  // A horizontal line over the whole width with its label to the right, moved up or down where
  // labels would overlap.
  void level(double y, std::string_view style, const std::string& label);
  // Such a label without the line: the name of a curve at the height of its end.
  void label(double y, std::string_view style, const std::string& label);
  // Text at a point, shifted by pixels. `anchor` is start, middle or end.
  void note(Point at, Point shift, std::string_view anchor, std::string_view style, const std::string& text);
  // A label and a row of coloured squares over the plotting area, right-aligned, with the bounds between them
  // as text below. bounds: one less than styles.
  void key(const std::string& label, std::span<const char* const> styles, std::span<const char* const> bounds,
           double square_width);

  const Scale& x() const { return x_; }
  const Scale& y() const { return y_; }
  const Frame& frame() const { return frame_; }

  // The <svg> element for an HTML page that holds chart_style().
  std::string inline_svg() const;
  // A file of its own: with namespace, style and background, in the light colours.
  std::string standalone_svg() const;
  // Charts of one width below each other, as one such file.
  friend std::string stacked_svg(std::span<const Chart> charts);

 private:
  struct Label {
    double y;
    std::string style;
    std::string text;
  };

  void draw_axes();
  void draw_labels(Markup* out) const;
  std::string render(bool standalone) const;

  Frame frame_;
  Scale x_;
  Scale y_;
  Markup marks_;
  std::vector<Label> labels_;
};

// Classes s0, s1, … of lines, whiskers and texts tell the curves of one chart apart.
inline constexpr size_t kSeriesStyles = 8;
std::string series_style(size_t place);  // of the curve at that place, from 0

// Style sheet of the classes that charts use, with colours for light and dark as CSS variables.
std::string chart_style();

}  // namespace allot::app
