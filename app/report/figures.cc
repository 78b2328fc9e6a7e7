#include "app/report/figures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <span>

#include "aggregator/outlook.h"
#include "aggregator/run_spec.h"
#include "app/report/ablation_figures.h"
#include "app/report/run_summary.h"
#include "app/report/run_text.h"
#include "base/number_text.h"
#include "policy/schedule.h"

namespace allot::app {
namespace {

using kernels::BudgetUnit;

constexpr Shape kWide{.width = 720, .height = 300};
constexpr Shape kNarrow{.width = 340, .height = 250};
// More points than this cannot be told apart in a chart.
constexpr size_t kMostPoints = 2000;
constexpr double kPixelsPerNumber = 20;  // room that a number over a bar needs
constexpr double kNumberHeight = 17;     // with the gap to its bar
constexpr double kHalfRow = 0.46;
// Classes of the heat map, as multiples of the uniform share, and how the key names the bounds between them;
// those of the grey middle are in the caption.
constexpr std::array kClassBounds = {1.0 / 8, 1.0 / 4, 1.0 / 2, 4.0 / 5, 5.0 / 4, 2.0, 4.0, 8.0};
constexpr std::array<const char*, 9> kShareClasses = {"c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8"};
constexpr std::array<const char*, 8> kShareBounds = {"\u215b", "\u00bc", "\u00bd", "", "", "2", "4", "8"};

// The places of `count` points that are drawn: every k-th, so that there are at most kMostPoints; the last is
// one of them.
std::vector<size_t> places_drawn(size_t count) {
  const size_t stride = count / kMostPoints + 1;
  std::vector<size_t> places;
  for (size_t i = (count - 1) % stride; i < count; i += stride) places.push_back(i);
  return places;
}

Axis layer_axis(int layers, Shape shape) {
  return {.title = "Layer",
          .from = -0.5,
          .to = layers - 0.5,
          .ticks = whole_ticks(-0.5, layers - 0.5, shape.narrow() ? 10 : 28)};
}

Axis percent_axis(const char* title) {
  return {.title = title, .from = 0, .to = 1, .ticks = percent_ticks(0, 1, 6)};
}

// The axis of rewards: the whole range of a kind that has one, else from its lower bound to `most`.
Axis reward_axis(const RewardKindRow& kind, double most) {
  const double to = std::isfinite(kind.high) ? kind.high : std::max(most * 1.05, kind.low + 1e-6);
  Axis axis{.title = fmt::format("Reward ({})", kind.axis), .from = kind.low, .to = to, .ticks = {}};
  for (int i = 0; i <= 5; ++i) {
    const double value = kind.low + (to - kind.low) * i / 5;
    axis.ticks.push_back(
        {value, fmt::format("{:.3g}{}", value * kind.per_unit, kind.unit == "%" ? "%" : "")});
  }
  return axis;
}

// The axis of policy versions.
Axis version_axis(const aggregator::RunData& run, Shape shape) {
  const auto first = static_cast<double>(run.versions.front().version);
  const auto last = static_cast<double>(run.versions.back().version);
  return {.title = "Policy update",
          .from = first,
          .to = last,
          .ticks = whole_ticks(first, last, shape.narrow() ? 5 : 10)};
}

// Numbers of learning episodes after which the policy made an update.
std::vector<double> update_places(const aggregator::RunData& run) {
  std::vector<double> places;
  for (const size_t i : places_drawn(run.versions.size())) {
    const aggregator::VersionRow& version = run.versions[i];
    if (version.version == 0) continue;
    const auto until =
        std::ranges::upper_bound(run.learned, version.at, {}, &aggregator::LearnedEpisode::finished);
    places.push_back(static_cast<double>(until - run.learned.begin()));
  }
  return places;
}

// "16 samples in every layer", or the list where layers differ.
std::string in_words(const policy::Schedule& schedule, BudgetUnit unit) {
  const bool equal =
      std::ranges::adjacent_find(schedule.samples, std::not_equal_to()) == schedule.samples.end();
  if (schedule.samples.empty() || !equal) return schedule.to_string();
  if (schedule.samples.front() == kExactLayer) return "exact attention in every layer";
  return fmt::format("{} {} in every layer", schedule.samples.front(), name(unit));
}

// The learner holds a share of the budget for each layer.
bool describes_shares(const aggregator::RunData& run) {
  const policy::Description& described = run.versions.front().described;
  return described.layer_name == "share" && !described.per_layer.empty();
}

double layers_that_sample(const wire::RunSpec& spec) {
  return static_cast<double>(sampled_layers(aggregator::even_schedule(spec).samples));
}

struct Series {
  const char* name;
  const std::optional<evaluation::Accuracy>* score;
};

std::vector<Series> measured(const EvaluationRecord& evaluation) {
  std::vector<Series> all;
  if (evaluation.dense) all.push_back({"dense", &evaluation.dense});
  if (evaluation.learned) all.push_back({"learned", &evaluation.learned});
  if (evaluation.uniform) all.push_back({"uniform", &evaluation.uniform});
  return all;
}

Figure figure(std::string name, std::string title, std::string caption, double height,
              const std::function<Chart(Shape)>& draw) {
  const Chart wide = draw({.width = kWide.width, .height = height});
  const Chart narrow = draw({.width = kNarrow.width, .height = std::min(height, kNarrow.height)});
  return {.name = std::move(name),
          .title = std::move(title),
          .caption = std::move(caption),
          .wide = wide.inline_svg(),
          .narrow = narrow.inline_svg(),
          .file = wide.standalone_svg()};
}

}  // namespace

int share_class(double times_uniform) {
  return static_cast<int>(std::ranges::upper_bound(kClassBounds, times_uniform) - kClassBounds.begin());
}

Chart accuracy_chart(const EvaluationRecord& evaluation, Shape shape) {
  const std::vector<Series> rows = measured(evaluation);
  const auto count = static_cast<double>(rows.size());
  Axis names{.title = "", .from = count - 0.5, .to = -0.5, .ticks = {}};
  for (size_t i = 0; i < rows.size(); ++i) names.ticks.push_back({static_cast<double>(i), rows[i].name});
  Axis accuracy = percent_axis("Held-out accuracy with 95% interval");
  Chart chart({.description = "Held-out accuracy of each schedule with its 95% interval",
               .width = shape.width,
               .height = shape.height,
               .margins = {.left = 62, .right = 22, .top = 6, .bottom = 42},
               .x = accuracy,
               .y = names});
  for (size_t i = 0; i < rows.size(); ++i) {
    const evaluation::Accuracy& score = **rows[i].score;
    const auto row = static_cast<double>(i);
    const std::string text = percent(score.value);
    chart.whisker({score.interval.low, row}, {score.value, row}, {score.interval.high, row},
                  fmt::format("whisker {}", rows[i].name), fmt::format("{}: {}", rows[i].name, text));
    // Beside the interval, on the side that has room.
    const bool left = score.interval.high > 0.8;
    chart.note({left ? score.interval.low : score.interval.high, row}, {left ? -8.0 : 8.0, 4},
               left ? "end" : "start", "strong halo", text);
  }
  return chart;
}

Chart schedule_chart(const aggregator::RunData& run, Shape shape) {
  const int layers = run.spec.model().layers();
  const std::vector<int32_t> uniform = aggregator::even_schedule(run.spec).samples;
  const std::vector<int32_t>& learned = run.recommended;
  const double most = std::max(std::ranges::max(learned), std::ranges::max(uniform));
  const double top = most * 1.08;  // room for the number over the highest bar
  Chart chart(
      {.description =
           fmt::format("{} per layer of the learned schedule as bars, of the uniform schedule as a line",
                       capital_of(unit_of(run.spec))),
       .width = shape.width,
       .height = shape.height,
       .margins = {.left = 44, .right = 64, .top = 30, .bottom = 42},
       .x = layer_axis(layers, shape),
       .y = {
           .title = budget_title(unit_of(run.spec)), .from = 0, .to = top, .ticks = whole_ticks(0, top, 6)}});
  const bool numbers = chart.x().pixels_per_unit() >= kPixelsPerNumber;
  std::vector<Point> steps;
  for (int layer = 0; layer < layers; ++layer) {
    const int32_t samples = learned[static_cast<size_t>(layer)];
    const int32_t even = uniform[static_cast<size_t>(layer)];
    const double level = std::max(0, even);
    chart.bar(layer - kHalfBar, layer + kHalfBar, std::max(0, samples), "bar",
              fmt::format("Layer {}: {} learned, {} uniform", layer, layer_text(samples), layer_text(even)));
    steps.push_back({layer - 0.5, level});
    steps.push_back({layer + 0.5, level});
  }
  chart.line(steps, "line uniform");
  chart.note(steps.back(), {6, 4}, "start", "uniform", "uniform");
  for (int layer = 0; numbers && layer < layers; ++layer) {
    const int32_t samples = learned[static_cast<size_t>(layer)];
    const double level = std::max(0, uniform[static_cast<size_t>(layer)]);
    // A number that the line would cross stands on the line instead of on its bar.
    const double height = std::max(0, samples);  // an exact layer has no bar
    const double below_line = chart.y()(height) - chart.y()(level);
    const double foot = below_line >= 0 && below_line < kNumberHeight ? level : height;
    chart.note({double(layer), foot}, {0, -5}, "middle", "strong halo", layer_text(samples));
  }
  return chart;
}

Chart learning_chart(const aggregator::RunData& run, const EvaluationRecord& evaluation, Shape shape) {
  double most = 0;
  for (const auto& episode : run.learned) most = std::max(most, episode.reward);
  const auto last = static_cast<double>(run.learned.size());
  Chart chart(
      {.description =
           "Reward of each learning episode as a dot, their moving mean as a line with its 95% interval",
       .width = shape.width,
       .height = shape.height,
       .margins = {.left = 50, .right = 106, .top = 30, .bottom = 42},
       .x = {.title = "Learning episode",
             .from = 0,
             .to = last,
             .ticks = whole_ticks(0, last, shape.narrow() ? 4 : 8)},
       .y = reward_axis(row_of(run.kind), most)});
  std::vector<Point> dots;
  std::vector<Point> mean;
  std::vector<Point> low;
  std::vector<Point> high;
  for (const size_t i : places_drawn(run.learned.size())) {
    const auto x = static_cast<double>(i + 1);
    const MovingMean moving = moving_mean(std::span(run.learned).first(i + 1), run.kind);
    dots.push_back({x, run.learned[i].reward});
    mean.push_back({x, moving.mean});
    low.push_back({x, moving.low});
    high.push_back({x, moving.high});
  }
  chart.rug(update_places(run), "rug");
  chart.band(low, high, "band");
  chart.dots(dots, "dots");
  for (const Series& series : measured(evaluation)) {
    if (run.kind != kVerifiedKind) break;  // accuracies have no place on the axis
    const double accuracy = (*series.score)->value;
    chart.level(accuracy, series.name, fmt::format("{} {}", series.name, percent(accuracy)));
  }
  chart.line(mean, "line");
  return chart;
}

Chart number_chart(const aggregator::RunData& run, const std::string& name, Shape shape) {
  std::vector<Point> points;
  for (const size_t i : places_drawn(run.versions.size())) {
    const double* value = run.versions[i].described.find(name);
    if (value != nullptr) points.push_back({static_cast<double>(run.versions[i].version), *value});
  }
  const auto [least, most] = std::ranges::minmax(points, {}, &Point::y);
  double low = least.y;
  double top = most.y > low ? most.y + 0.05 * (most.y - low) : low + 1;
  // The entropy of shares lies between 0 and that of uniform ones.
  const bool is_entropy = name == "entropy" && describes_shares(run);
  const double uniform = std::log(layers_that_sample(run.spec));
  if (is_entropy) {
    low = 0;
    top = std::max(uniform * 1.05, 0.1);
  }
  Chart chart({.description = is_entropy ? "Entropy of the policy's shares after each update"
                                         : fmt::format("The learner's {} after each update", name),
               .width = shape.width,
               .height = shape.height,
               .margins = {.left = 44, .right = 106, .top = 30, .bottom = 42},
               .x = version_axis(run, shape),
               .y = {.title = is_entropy ? "Entropy (nats)" : name,
                     .from = low,
                     .to = top,
                     .ticks = round_ticks(low, top, 6)}});
  if (is_entropy) chart.level(uniform, "uniform", fmt::format("uniform {:.2f}", uniform));
  chart.line(points, "line");
  chart.note(points.back(), {6, 4}, "start", "learned", fmt::format("learned {:.2f}", points.back().y));
  return chart;
}

Chart outlook_chart(const aggregator::RunData& run, Shape shape) {
  const double scale = row_of(run.kind).per_unit;
  std::vector<Point> gain, low, high, left;
  for (const size_t i : places_drawn(run.versions.size())) {
    const auto outlook = aggregator::outlook_of(run.versions[i].described);
    if (!outlook) continue;
    const auto x = static_cast<double>(run.versions[i].version);
    low.push_back({x, scale * outlook->over_even.low});
    gain.push_back({x, scale * outlook->over_even.mean});
    high.push_back({x, scale * outlook->over_even.high});
    left.push_back({x, scale * outlook->left_to_gain});
  }
  const double bottom = std::min(0.0, std::ranges::min(low, {}, &Point::y).y);
  const double top = std::max(std::ranges::max(high, {}, &Point::y).y, bottom + 1e-6);
  const double room = 0.05 * (top - bottom);
  Chart chart({.description =
                   "What the learner expected of its schedule over the even one after each update, "
                   "with its 95% interval as a band, and what it expected of going on",
               .width = shape.width,
               .height = shape.height,
               .margins = {.left = 44, .right = 106, .top = 30, .bottom = 42},
               .x = version_axis(run, shape),
               .y = {.title = fmt::format("Expected gain ({})", row_of(run.kind).difference_unit),
                     .from = bottom == 0 ? 0 : bottom - room,
                     .to = top + room,
                     .ticks = round_ticks(bottom, top + room, 6)}});
  chart.band(low, high, "band");
  chart.line(gain, "line");
  chart.line(left, "line uniform");
  chart.label(gain.back().y, "learned", fmt::format("over even {:.1f}", gain.back().y));
  chart.label(left.back().y, "uniform", fmt::format("left {:.1f}", left.back().y));
  return chart;
}

Chart layers_chart(const aggregator::RunData& run, Shape shape) {
  const int layers = run.spec.model().layers();
  const Axis versions = version_axis(run, shape);
  Axis layer_rows = layer_axis(layers, shape);
  std::swap(layer_rows.from, layer_rows.to);  // layer 0 on top
  layer_rows.ticks = whole_ticks(-0.5, layers - 0.5, static_cast<int>(shape.height / 18));
  const bool shares = describes_shares(run);
  const double sampled = layers_that_sample(run.spec);
  // Values that are no shares are coloured by where they lie between the least and the greatest of the run.
  double least = 0, most = 0;
  if (!shares) {
    least = most = run.versions.front().described.per_layer.front();
    for (const aggregator::VersionRow& version : run.versions) {
      const auto [low, high] = std::ranges::minmax(version.described.per_layer);
      least = std::min(least, low);
      most = std::max(most, high);
    }
  }
  const std::string& name = run.versions.front().described.layer_name;
  Chart chart({.description = shares
                                  ? "Share of the budget of each layer after each update, as a multiple of "
                                    "the uniform share"
                                  : fmt::format("The learner's {} of each layer after each update", name),
               .width = shape.width,
               .height = shape.height,
               .margins = {.left = 44, .right = 12, .top = 54, .bottom = 42},
               .x = versions,
               .y = layer_rows});
  // As many columns as can be seen; each shows the last version in it.
  const int columns = std::min<int>(static_cast<int>(run.versions.size()), shape.narrow() ? 60 : 120);
  const double width = (versions.to - versions.from) / columns;
  std::vector<const aggregator::VersionRow*> shown(static_cast<size_t>(columns), &run.versions.front());
  for (const aggregator::VersionRow& version : run.versions) {
    const auto at = static_cast<double>(version.version) - versions.from;
    const int column = std::min(columns - 1, static_cast<int>(at / width));
    for (int i = column; i < columns; ++i) shown[static_cast<size_t>(i)] = &version;
  }
  for (int layer = 0; layer < layers; ++layer) {
    const auto class_at = [&](int column) {
      const double value =
          shown[static_cast<size_t>(column)]->described.per_layer[static_cast<size_t>(layer)];
      if (shares) return share_class(sampled * value);
      return most > least ? std::min(8, static_cast<int>(9 * (value - least) / (most - least))) : 4;
    };
    // Neighbours of one class make one rectangle.
    for (int first = 0, next = 0; first < columns; first = next) {
      while (next < columns && class_at(next) == class_at(first)) ++next;
      chart.cell({versions.from + first * width, layer - kHalfRow},
                 {versions.from + next * width, layer + kHalfRow},
                 kShareClasses[static_cast<size_t>(class_at(first))], "");
    }
  }
  if (shares) {
    chart.key("times uniform", kShareClasses, kShareBounds, shape.narrow() ? 21 : 32);
  } else {
    const std::string first = fmt::format("{:.3g}", least + (most - least) / 9);
    const std::string last = fmt::format("{:.3g}", most - (most - least) / 9);
    const std::array<const char*, 8> bounds = {first.c_str(), "", "", "", "", "", "", last.c_str()};
    chart.key(name, kShareClasses, bounds, shape.narrow() ? 21 : 32);
  }
  return chart;
}

Chart ablation_chart(const evaluation::Ablation& ablation, Shape shape) {
  const auto layers = static_cast<int>(ablation.base.samples.size());
  Chart chart(
      {.description = fmt::format("Accuracy with one sample in one {0}, for each {0}, with its 95% interval",
                                  ablated_part(ablation)),
       .width = shape.width,
       .height = shape.height,
       .margins = {.left = 50, .right = 106, .top = 30, .bottom = 42},
       .x = layer_axis(layers, shape),
       .y = percent_axis(ablation.kv_heads > 0 ? "Accuracy with one sample in this KV head"
                                               : "Accuracy with one sample in this layer")});
  const double base = ablation.base_accuracy.value;
  chart.level(base, "plain", fmt::format("base {}", percent(base)));
  for (const evaluation::LayerAblation& row : ablation.layers) {
    const auto [low, high] = ablated_room(ablation, row);
    const double x = (low + high) / 2;
    const double accuracy = row.accuracy.value;
    chart.whisker({x, row.accuracy.interval.low}, {x, accuracy}, {x, row.accuracy.interval.high}, "whisker",
                  fmt::format("{}: {}", ablated_name(row), percent(accuracy)));
  }
  return chart;
}

Chart frontier_chart(const evaluation::Frontier& frontier, BudgetUnit unit, Shape shape) {
  const std::vector<evaluation::FrontierPoint>& points = frontier.points;
  Axis totals = log_axis(fmt::format("{} of all layers", capital_of(unit)),
                         static_cast<double>(std::max<int64_t>(1, points.front().total)),
                         static_cast<double>(std::max<int64_t>(1, points.back().total)));
  const double room = (totals.to - totals.from) * (shape.narrow() ? 0.12 : 0.06);
  totals.ticks.clear();
  for (const evaluation::FrontierPoint& point : points) {
    const double at = std::log10(static_cast<double>(std::max<int64_t>(1, point.total)));
    // Of totals that are close together the first is labelled.
    if (totals.ticks.empty() || at - totals.ticks.back().value >= room)
      totals.ticks.push_back({at, std::to_string(point.total)});
  }
  Chart chart({.description = "Held-out accuracy of the learned and of the uniform schedules against their "
                              "total, with 95% intervals as bands, and of dense attention",
               .width = shape.width,
               .height = shape.height,
               .margins = {.left = 50, .right = 106, .top = 30, .bottom = 42},
               .x = std::move(totals),
               .y = percent_axis("Held-out accuracy")});
  struct Side {
    const char* name;
    const char* band;
    const char* line;
    evaluation::Accuracy evaluation::FrontierPoint::*accuracy;
  };
  constexpr Side kSides[] = {{"uniform", "band uniform", "line uniform", &evaluation::FrontierPoint::uniform},
                             {"learned", "band", "line", &evaluation::FrontierPoint::learned}};
  std::array<std::vector<Point>, std::size(kSides)> means;
  for (size_t side = 0; side < std::size(kSides); ++side) {
    std::vector<Point> low, high;
    for (const evaluation::FrontierPoint& point : points) {
      const evaluation::Accuracy& accuracy = point.*kSides[side].accuracy;
      const double x = std::log10(static_cast<double>(std::max<int64_t>(1, point.total)));
      low.push_back({x, accuracy.interval.low});
      means[side].push_back({x, accuracy.value});
      high.push_back({x, accuracy.interval.high});
    }
    chart.band(low, high, kSides[side].band);
  }
  chart.level(frontier.dense.value, "dense", fmt::format("dense {}", percent(frontier.dense.value)));
  for (size_t side = 0; side < std::size(kSides); ++side) {
    const Side& of = kSides[side];
    chart.line(means[side], of.line);
    for (size_t i = 0; i < points.size(); ++i) {
      const evaluation::Accuracy& accuracy = points[i].*of.accuracy;
      const Point at = means[side][i];
      chart.whisker(
          {at.x, accuracy.interval.low}, at, {at.x, accuracy.interval.high},
          fmt::format("whisker {}", of.name),
          fmt::format("{} {}, {}{}: {}", points[i].total, name(unit), of.name,
                      points[i].resolved && side == 1 ? " (re-solved)" : "", evaluation::text(accuracy)));
    }
    chart.label(means[side].back().y, of.name, of.name);
  }
  return chart;
}

// What the curves rest on.
std::string frontier_caption(const evaluation::Frontier& frontier) {
  std::vector<int64_t> solved;
  for (const evaluation::FrontierPoint& point : frontier.points)
    if (point.resolved) solved.push_back(point.total);
  return fmt::format(
      "Each total was verified on the same {} questions with the same draws; bands are 95% intervals.{}",
      frontier.dense.questions,
      solved.empty() ? ""
                     : fmt::format(" The learned schedules of {} follow from what the run learned at its own "
                                   "total; nothing was learned at them.",
                                   fmt::join(solved, ", ")));
}

std::vector<Figure> make_figures(const ReportInput& input, const EvaluationRecord& evaluation) {
  const aggregator::RunData& run = input.run;
  const size_t rows = measured(evaluation).size();
  std::vector<Figure> figures;
  if (rows > 0) {
    figures.push_back(figure("accuracy", "Accuracy on questions the learning never saw",
                             "Dots are measured accuracies, lines their 95% intervals.",
                             48 + 30.0 * static_cast<double>(rows),
                             [&](Shape shape) { return accuracy_chart(evaluation, shape); }));
  }
  if (const auto& frontier = input.frontier) {
    figures.push_back(
        figure("frontier", "Accuracy against the total", frontier_caption(*frontier), kWide.height,
               [&](Shape shape) { return frontier_chart(*frontier, unit_of(run.spec), shape); }));
  }
  if (!run.recommended.empty()) {
    figures.push_back(figure("schedule", "The learned schedule",
                             fmt::format("{} for one token. Both schedules spend {} in all.",
                                         unit_of(run.spec) == BudgetUnit::kRows
                                             ? "Value rows that the query heads of a KV head share in a layer"
                                             : "Samples that each query head of a layer draws",
                                         total_text(run.spec)),
                             kWide.height, [&](Shape shape) { return schedule_chart(run, shape); }));
  }
  if (!run.learned.empty()) {
    figures.push_back(figure(
        "learning", "Learning curve",
        fmt::format("Each dot is the reward of one episode: {}. The line is the mean of the last {} episodes "
                    "with its 95% interval; ticks below mark policy updates. Episodes try schedules around "
                    "the policy's mean, so their rewards may be worse than what that mean scores{}.",
                    row_of(run.kind).of_episode, kRewardWindow,
                    run.kind == kVerifiedKind ? "; dashed lines are held-out accuracies" : ""),
        kWide.height, [&](Shape shape) { return learning_chart(run, evaluation, shape); }));
  }
  if (run.versions.size() >= 2) {
    const policy::Description& described = run.versions.back().described;
    if (aggregator::outlook_of(described)) {
      figures.push_back(figure(
          "outlook", "What the learner expects",
          "What it expected of its schedule over the even one, on new questions, after each update, with its "
          "95% interval; and what going on was expected to bring at most (left).",
          kWide.height, [&](Shape shape) { return outlook_chart(run, shape); }));
    }
    for (const auto& scalar : described.scalars) {
      if (aggregator::is_of_outlook(scalar.name)) continue;
      const bool entropy = scalar.name == "entropy" && describes_shares(run);
      figures.push_back(figure(
          scalar.name, entropy ? "Entropy of the policy" : fmt::format("The policy's {}", scalar.name),
          entropy ? "Entropy of the layers' shares of the budget; it is highest for the uniform schedule and "
                    "falls as the policy commits itself."
                  : "A number that the learner describes itself with, after each update.",
          220, [&](Shape shape) { return number_chart(run, scalar.name, shape); }));
    }
    if (!described.per_layer.empty()) {
      const bool shares = describes_shares(run);
      figures.push_back(figure(
          described.layer_name + "s",
          shares ? "Shares of the budget while learning"
                 : fmt::format("The policy's {} of each layer while learning", described.layer_name),
          shares ? "Share of each layer as a multiple of the uniform share: grey is about uniform (0.8 to "
                   "1.25), blue more, orange less."
                 : "Blue is towards the greatest value of the run, orange towards the least.",
          90 + std::clamp(14.0 * run.spec.model().layers(), 160.0, 620.0),
          [&](Shape shape) { return layers_chart(run, shape); }));
    }
  }
  if (const auto& ablation = input.ablation) {
    figures.push_back(
        figure("ablation", "What each layer needs",
               fmt::format("One sample in one {0} at a time, the others as in the base of {1}, scored on "
                           "the same {2} questions with their 95% intervals. A {0} far below the dashed "
                           "line needs its samples.",
                           ablated_part(*ablation), in_words(ablation->base, unit_of(run.spec)),
                           ablation->base_accuracy.questions),
               kWide.height, [&](Shape shape) { return ablation_chart(*ablation, shape); }));
  }
  return figures;
}

}  // namespace allot::app
