#include "app/report/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>

#include "base/number_text.h"

namespace allot::app {
namespace {

constexpr double kLabelGap = 14;  // least distance of two label baselines, pixels
constexpr double kTickLength = 4;

// A tenth of a pixel is finer than any screen shows.
std::string pixels(double value) {
  const std::string text = fmt::format("{:.1f}", value);
  if (text == "-0.0") return "0";
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

// One step of a path: "M12.5 40".
std::string step(char command, double x, double y) {
  return fmt::format("{}{} {}", command, pixels(x), pixels(y));
}

// The smallest of 1, 2, 5 x 10^k that is at least `width`.
double round_step(double width) {
  const double power = std::pow(10, std::floor(std::log10(width)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= width * (1 - 1e-12)) return factor * power;
  }
  return 10 * power;
}

template <class Label>
std::vector<Tick> ticks_of(double low, double high, int most, double least_step, Label label) {
  assert(low < high && most >= 2);
  double step = std::max(round_step((high - low) / most), least_step);
  const double slack = 1e-9 * (high - low);  // so that ends that are ticks except for rounding count
  const auto count = [&] { return std::floor((high + slack) / step) - std::ceil((low - slack) / step) + 1; };
  while (count() > most) step = round_step(step * 1.5);
  std::vector<Tick> ticks;
  const double first = std::ceil((low - slack) / step);
  for (int i = 0; i < count(); ++i) {
    const double value = (first + i) * step;
    ticks.push_back({value, label(value, step)});
  }
  return ticks;
}

// Decimals needed to tell multiples of `step` apart.
int decimals_of(double step) {
  return std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
}

struct Colour {
  std::string_view name;
  std::string_view light;
  std::string_view dark;
};

// Text has a contrast of at least 4.5 against the paper in both modes; c0 to c8 go from orange through grey
// to blue, which readers with any common colour blindness can tell apart.
constexpr Colour kPalette[] = {
    {"paper", "#fffefb", "#15181c"},        {"ink", "#1d2126", "#e8e6e1"},
    {"quiet", "#5d656e", "#a2a9b1"},        {"rule", "#e3e1da", "#2d3238"},
    {"edge", "#9aa1a9", "#6c747d"},         {"learned", "#1c5d99", "#7db4e8"},
    {"learned-soft", "#c3d8ec", "#2a4560"}, {"uniform", "#b3541e", "#efa06a"},
    {"uniform-soft", "#f0d9ca", "#523826"}, {"dense", "#4a6b3a", "#a3c98d"},
    {"c0", "#8c3b0c", "#f4b183"},           {"c1", "#bf6a2f", "#cf8750"},
    {"c2", "#dfa271", "#96592c"},           {"c3", "#f3d7bf", "#553820"},
    {"c4", "#ecebe6", "#2b2e32"},           {"c5", "#cfdfee", "#243a50"},
    {"c6", "#93b9dc", "#2f5f8d"},           {"c7", "#4d86bb", "#4f94d1"},
    {"c8", "#14487a", "#a5d2fb"},           {"s0", "#1c5d99", "#7db4e8"},
    {"s1", "#b3541e", "#efa06a"},           {"s2", "#4a6b3a", "#a3c98d"},
    {"s3", "#8a3f9c", "#d49be2"},           {"s4", "#0f6f6a", "#6cc9c2"},
    {"s5", "#b02a37", "#f09aa2"},           {"s6", "#6b5214", "#d6bb6a"},
    {"s7", "#5d656e", "#a2a9b1"},
};

constexpr std::string_view kRules = R"css(
.chart { display: block; width: 100%; height: auto; font: 12px system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums; }
.chart text { fill: var(--quiet); }
.chart .strong { fill: var(--ink); font-weight: 600; }
.chart .grid { stroke: var(--rule); stroke-width: 1; }
.chart .edge { stroke: var(--edge); stroke-width: 1; }
.chart .halo { paint-order: stroke; stroke: var(--paper); stroke-width: 4; stroke-linejoin: round; }
.chart .bar { fill: var(--learned); }
.chart .line { fill: none; stroke: var(--learned); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.chart .line.uniform { stroke: var(--uniform); stroke-width: 2; stroke-linecap: butt; }
.chart .band { fill: var(--learned-soft); opacity: 0.75; } .chart .band.uniform { fill: var(--uniform-soft); }
.chart .dots { fill: none; stroke: var(--learned); stroke-width: 4; stroke-linecap: round; opacity: 0.28; }
.chart .rug { fill: none; stroke: var(--edge); stroke-width: 1; }
.chart .level { fill: none; stroke-width: 1.2; stroke-dasharray: 5 4; }
.chart .level.learned { stroke: var(--learned); } .chart .level.uniform { stroke: var(--uniform); } .chart .level.dense { stroke: var(--dense); } .chart .level.plain { stroke: var(--edge); }
.chart text.learned { fill: var(--learned); } .chart text.uniform { fill: var(--uniform); } .chart text.dense { fill: var(--dense); }
.chart .whisker { stroke: var(--learned); stroke-width: 2; fill: var(--learned); } .chart .whisker.uniform { stroke: var(--uniform); fill: var(--uniform); } .chart .whisker.dense { stroke: var(--dense); fill: var(--dense); }
.chart rect { shape-rendering: crispEdges; }
.chart .c0 { fill: var(--c0); } .chart .c1 { fill: var(--c1); } .chart .c2 { fill: var(--c2); } .chart .c3 { fill: var(--c3); } .chart .c4 { fill: var(--c4); }
.chart .c5 { fill: var(--c5); } .chart .c6 { fill: var(--c6); } .chart .c7 { fill: var(--c7); } .chart .c8 { fill: var(--c8); }
)css";

// "--name: value; …" of every colour.
std::string variables(std::string_view Colour::*mode) {
  std::string text;
  for (const Colour& colour : kPalette) text += fmt::format("--{}: {}; ", colour.name, colour.*mode);
  return text;
}

// All rules, those of the series among them.
std::string rules() {
  std::string text(kRules);
  for (size_t i = 0; i < kSeriesStyles; ++i) {
    text += fmt::format(
        ".chart .line.s{0} {{ stroke: var(--s{0}); }} .chart text.s{0} {{ fill: var(--s{0}); }} "
        ".chart .whisker.s{0} {{ stroke: var(--s{0}); fill: var(--s{0}); }}\n",
        i);
  }
  return text;
}

// The rules with the light colours written out, because many programs that open SVG files do not
// support CSS variables.
std::string rules_without_variables() {
  std::string text = rules();
  for (const Colour& colour : kPalette) {
    const std::string variable = fmt::format("var(--{})", colour.name);
    for (size_t at = text.find(variable); at != std::string::npos; at = text.find(variable, at)) {
      text.replace(at, variable.size(), colour.light);
    }
  }
  return text;
}

}  // namespace

std::vector<Tick> round_ticks(double low, double high, int most) {
  return ticks_of(low, high, most, 0,
                  [](double value, double step) { return fmt::format("{:.{}f}", value, decimals_of(step)); });
}

std::vector<Tick> percent_ticks(double low, double high, int most) {
  return ticks_of(low, high, most, 0,
                  [](double value, double step) { return percent(value, decimals_of(100 * step)); });
}

std::vector<Tick> whole_ticks(double low, double high, int most) {
  return ticks_of(low, high, most, 1, [](double value, double) { return fmt::format("{:.0f}", value); });
}

Axis log_axis(std::string title, double low, double high) {
  assert(0 < low && low <= high);
  const double room = 0.04 * std::max(std::log10(high / low), 0.3);
  Axis axis{
      .title = std::move(title), .from = std::log10(low) - room, .to = std::log10(high) + room, .ticks = {}};
  const auto ticks_at = [&](std::span<const double> factors) {
    axis.ticks.clear();
    for (double power = std::floor(axis.from); power <= axis.to; ++power) {
      for (const double factor : factors) {
        const double at = power + std::log10(factor);
        if (at >= axis.from && at <= axis.to)
          axis.ticks.push_back({at, fmt::format("{:g}", factor * std::pow(10.0, power))});
      }
    }
  };
  ticks_at(std::array{1.0});
  if (axis.ticks.size() < 3) ticks_at(std::array{1.0, 2.0, 5.0});
  return axis;
}

Chart::Chart(Frame frame)
    : frame_(std::move(frame)),
      x_(frame_.x.from, frame_.x.to, frame_.margins.left, frame_.width - frame_.margins.right),
      y_(frame_.y.from, frame_.y.to, frame_.height - frame_.margins.bottom, frame_.margins.top) {
  draw_axes();
}

void Chart::draw_axes() {
  const double left = frame_.margins.left;
  const double right = frame_.width - frame_.margins.right;
  const double bottom = frame_.height - frame_.margins.bottom;
  for (const Tick& tick : frame_.y.ticks) {
    const std::string y = pixels(y_(tick.value));
    marks_.empty("line",
                 {{"class", "grid"}, {"x1", pixels(left)}, {"x2", pixels(right)}, {"y1", y}, {"y2", y}});
    marks_.element("text",
                   {{"x", pixels(left - 6)}, {"y", pixels(y_(tick.value) + 4)}, {"text-anchor", "end"}},
                   tick.label);
  }
  for (const Tick& tick : frame_.x.ticks) {
    const std::string x = pixels(x_(tick.value));
    marks_.empty("line", {{"class", "edge"},
                          {"x1", x},
                          {"x2", x},
                          {"y1", pixels(bottom)},
                          {"y2", pixels(bottom + kTickLength)}});
    marks_.element("text", {{"x", x}, {"y", pixels(bottom + 17)}, {"text-anchor", "middle"}}, tick.label);
  }
  marks_.empty("line", {{"class", "edge"},
                        {"x1", pixels(left)},
                        {"x2", pixels(right)},
                        {"y1", pixels(bottom)},
                        {"y2", pixels(bottom)}});
  if (!frame_.y.title.empty()) {
    marks_.element("text", {{"class", "strong"}, {"x", "2"}, {"y", "13"}}, frame_.y.title);
  }
  if (!frame_.x.title.empty()) {
    marks_.element("text",
                   {{"class", "strong"},
                    {"x", pixels((left + right) / 2)},
                    {"y", pixels(bottom + 36)},
                    {"text-anchor", "middle"}},
                   frame_.x.title);
  }
}

void Chart::bar(double x_low, double x_high, double value, std::string_view style, const std::string& tip) {
  cell({x_low, 0}, {x_high, value}, style, tip);
}

void Chart::cell(Point corner, Point opposite, std::string_view style, const std::string& tip) {
  const auto [left, right] = std::minmax({x_(corner.x), x_(opposite.x)});
  const auto [top, bottom] = std::minmax({y_(corner.y), y_(opposite.y)});
  marks_.open("rect", {{"class", std::string(style)},
                       {"x", pixels(left)},
                       {"y", pixels(top)},
                       {"width", pixels(right - left)},
                       {"height", pixels(bottom - top)}});
  if (!tip.empty()) marks_.element("title", {}, tip);
  marks_.close();
}

void Chart::line(std::span<const Point> points, std::string_view style) {
  std::string path;
  for (const Point& point : points) path += step(path.empty() ? 'M' : 'L', x_(point.x), y_(point.y));
  marks_.empty("path", {{"class", std::string(style)}, {"d", path}});
}

void Chart::band(std::span<const Point> low, std::span<const Point> high, std::string_view style) {
  std::string path;
  for (const Point& point : high) path += step(path.empty() ? 'M' : 'L', x_(point.x), y_(point.y));
  for (size_t i = low.size(); i-- > 0;) path += step('L', x_(low[i].x), y_(low[i].y));
  marks_.empty("path", {{"class", std::string(style)}, {"d", path + "Z"}});
}

void Chart::dots(std::span<const Point> points, std::string_view style) {
  std::string path;
  for (const Point& point : points) path += step('M', x_(point.x), y_(point.y)) + "h0";
  marks_.empty("path", {{"class", std::string(style)}, {"d", path}});
}

void Chart::whisker(Point low, Point value, Point high, std::string_view style, const std::string& tip) {
  marks_.open("g", {{"class", std::string(style)}});
  if (!tip.empty()) marks_.element("title", {}, tip);
  marks_.empty("line", {{"x1", pixels(x_(low.x))},
                        {"x2", pixels(x_(high.x))},
                        {"y1", pixels(y_(low.y))},
                        {"y2", pixels(y_(high.y))}});
  marks_.empty("circle", {{"cx", pixels(x_(value.x))}, {"cy", pixels(y_(value.y))}, {"r", "3.5"}});
  marks_.close();
}

void Chart::rug(std::span<const double> xs, std::string_view style) {
  const double bottom = frame_.height - frame_.margins.bottom;
  std::string path;
  for (const double x : xs) path += step('M', x_(x), bottom) + "v-6";
  marks_.empty("path", {{"class", std::string(style)}, {"d", path}});
}

void Chart::level(double y, std::string_view style, const std::string& label) {
  const std::string at = pixels(y_(y));
  marks_.empty("line", {{"class", fmt::format("level {}", style)},
                        {"x1", pixels(frame_.margins.left)},
                        {"x2", pixels(frame_.width - frame_.margins.right)},
                        {"y1", at},
                        {"y2", at}});
  this->label(y, style, label);
}

void Chart::label(double y, std::string_view style, const std::string& label) {
  labels_.push_back({y_(y) + 4, std::string(style), label});
}

void Chart::note(Point at, Point shift, std::string_view anchor, std::string_view style,
                 const std::string& text) {
  marks_.element("text",
                 {{"class", std::string(style)},
                  {"x", pixels(x_(at.x) + shift.x)},
                  {"y", pixels(y_(at.y) + shift.y)},
                  {"text-anchor", std::string(anchor)}},
                 text);
}

void Chart::key(const std::string& label, std::span<const char* const> styles,
                std::span<const char* const> bounds, double square_width) {
  double x = frame_.width - frame_.margins.right - square_width * static_cast<double>(styles.size());
  const double top = frame_.margins.top - 42;
  marks_.element("text", {{"x", pixels(x - 8)}, {"y", pixels(top + 11)}, {"text-anchor", "end"}}, label);
  for (size_t i = 0; i < styles.size(); ++i, x += square_width) {
    marks_.empty("rect", {{"class", styles[i]},
                          {"x", pixels(x)},
                          {"y", pixels(top)},
                          {"width", pixels(square_width)},
                          {"height", "12"}});
    if (i == 0) continue;
    marks_.element("text", {{"x", pixels(x)}, {"y", pixels(top + 25)}, {"text-anchor", "middle"}},
                   bounds[i - 1]);
  }
}

// Labels keep their order and are at least kLabelGap apart, as near to their lines as that allows.
void Chart::draw_labels(Markup* out) const {
  std::vector<Label> labels = labels_;
  std::ranges::stable_sort(labels, {}, &Label::y);
  for (size_t i = 1; i < labels.size(); ++i) labels[i].y = std::max(labels[i].y, labels[i - 1].y + kLabelGap);
  double lowest = frame_.height - frame_.margins.bottom + 4;
  for (size_t i = labels.size(); i-- > 0;) {
    labels[i].y = std::min(labels[i].y, lowest);
    lowest = labels[i].y - kLabelGap;
  }
  const std::string x = pixels(frame_.width - frame_.margins.right + 6);
  for (const Label& label : labels) {
    out->element("text", {{"class", label.style}, {"x", x}, {"y", pixels(label.y)}}, label.text);
  }
}

namespace {

// The <svg> element of a file with its title, style and background; left open.
void open_file(double width, double height, const std::string& title, Markup* out) {
  out->open("svg", {{"xmlns", "http://www.w3.org/2000/svg"},
                    {"class", "chart"},
                    {"viewBox", fmt::format("0 0 {} {}", pixels(width), pixels(height))},
                    {"width", pixels(width)},
                    {"height", pixels(height)}});
  out->element("title", {}, title);
  out->element("style", {}, rules_without_variables());
  out->empty(
      "rect",
      {{"width", pixels(width)}, {"height", pixels(height)}, {"fill", std::string(kPalette[0].light)}});
}

}  // namespace

std::string Chart::render(bool standalone) const {
  Markup out;
  if (standalone) {
    open_file(frame_.width, frame_.height, frame_.description, &out);
  } else {
    out.open("svg", {{"class", "chart"},
                     {"role", "img"},
                     {"aria-label", frame_.description},
                     {"viewBox", fmt::format("0 0 {} {}", pixels(frame_.width), pixels(frame_.height))}});
  }
  out.insert(marks_.str());
  draw_labels(&out);
  out.close();
  return out.str();
}

std::string Chart::inline_svg() const {
  return render(false);
}
std::string Chart::standalone_svg() const {
  return render(true);
}

std::string stacked_svg(std::span<const Chart> charts) {
  double height = 0;
  std::string title;
  for (const Chart& chart : charts) {
    height += chart.frame_.height;
    title += (title.empty() ? "" : "; ") + chart.frame_.description;
  }
  Markup out;
  open_file(charts.front().frame_.width, height, title, &out);
  double top = 0;
  for (const Chart& chart : charts) {
    out.open("g", {{"transform", fmt::format("translate(0 {})", pixels(top))}});
    out.insert(chart.marks_.str());
    chart.draw_labels(&out);
    out.close();
    top += chart.frame_.height;
  }
  out.close();
  return out.str();
}

std::string series_style(size_t place) {
  return fmt::format("s{}", place % kSeriesStyles);
}

std::string chart_style() {
  return fmt::format(
      ":root {{ {}}}\n"
      "@media (prefers-color-scheme: dark) {{ :root {{ {}}} }}\n"
      "@media print {{ :root {{ --paper: #ffffff; }} }}{}",
      variables(&Colour::light), variables(&Colour::dark), rules());
}

}  // namespace allot::app
