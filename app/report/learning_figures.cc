#include "app/report/learning_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <string>

#include "base/file.h"
#include "base/number_text.h"
#include "kernels/method.h"

namespace allot::app {
namespace {

double cost_of(const CurvePoint& point, LearningCost cost) {
  return cost == LearningCost::kEpisodes ? static_cast<double>(point.episodes) : point.worker_seconds;
}

// Both ends of the bar of a point, within what a share may be.
struct Bar {
  double low;
  double high;
};
Bar bar_of(const Spread& spread) {
  const double deviation = spread.deviation.value_or(0);
  return {std::max(0.0, spread.mean - deviation), std::min(1.0, spread.mean + deviation)};
}

std::string seeds_text(const LearningGroup& group) {
  return fmt::format("{} seed{}", group.runs.size(), group.runs.size() == 1 ? "" : "s");
}

const char* title_of(LearningCost cost) {
  return cost == LearningCost::kEpisodes ? "Learning episodes" : "Seconds of workers, all together";
}

}  // namespace

Chart learning_curve_chart(std::span<const LearningGroup* const> groups, LearningCost cost) {
  assert(!groups.empty());
  double most = 0, low = 1, high = 0;
  for (const LearningGroup* group : groups) {
    for (const CurvePoint& point : group->curve) {
      most = std::max(most, cost_of(point, cost));
      const Bar bar = bar_of(point.accuracy);
      low = std::min(low, bar.low);
      high = std::max(high, bar.high);
    }
  }
  most = std::max(most, 1e-3);  // runs without a single episode
  const double room = std::max(0.05 * (high - low), 0.005);
  low = std::max(0.0, low - room);
  high = std::min(1.0, high + room);
  Chart chart(
      {.description = fmt::format(
           "Accuracy of the recommended schedule against {}, mean and standard deviation over seeds: {} at {}",
           cost == LearningCost::kEpisodes ? "learning episodes" : "seconds of workers",
           groups.front()->estimator, groups.front()->total),
       .width = 720,
       .height = 360,
       .margins = {.left = 62, .right = 16, .top = 30, .bottom = 42},
       .x = {.title = title_of(cost),
             .from = 0,
             .to = 1.03 * most,
             .ticks = cost == LearningCost::kEpisodes ? whole_ticks(0, most, 8) : round_ticks(0, most, 8)},
       .y = {.title = "Right of the held-out questions",
             .from = low,
             .to = high,
             .ticks = percent_ticks(low, high, 6)}});
  for (size_t i = 0; i < groups.size(); ++i) {
    const LearningGroup& group = *groups[i];
    std::vector<Point> line;
    for (const CurvePoint& point : group.curve) {
      const double x = cost_of(point, cost);
      const Bar bar = bar_of(point.accuracy);
      line.push_back({x, point.accuracy.mean});
      chart.whisker({x, bar.low}, line.back(), {x, bar.high}, "whisker " + series_style(i),
                    fmt::format("{} after {} episodes, {:.0f} s: {}", group.learner, point.episodes,
                                point.worker_seconds, percent(point.accuracy.mean)));
    }
    chart.line(line, "line " + series_style(i));
    // Accuracy rises with cost, so this corner is free.
    chart.note({chart.frame().x.to, chart.frame().y.from},
               {-4, -kLegendLine * static_cast<double>(groups.size() - i) + 8}, "end",
               "strong halo " + series_style(i), fmt::format("{} ({})", group.learner, seeds_text(group)));
  }
  return chart;
}

Chart gain_chart(std::span<const LearningGroup* const> groups) {
  assert(!groups.empty());
  std::vector<std::string> learners;
  double low = 0, high = 0;
  auto least = static_cast<double>(groups.front()->total), most = least;
  for (const LearningGroup* group : groups) {
    if (std::ranges::find(learners, group->learner) == learners.end()) learners.push_back(group->learner);
    low = std::min(low, group->gain.low);
    high = std::max(high, group->gain.high);
    least = std::min(least, static_cast<double>(group->total));
    most = std::max(most, static_cast<double>(group->total));
  }
  const double room = std::max(0.05 * (high - low), 0.005);
  const double side = std::max(0.1 * (most - least), 1.0);
  std::vector<Tick> totals;
  for (const LearningGroup* group : groups)
    if (const Tick tick{static_cast<double>(group->total), fmt::format("{}", group->total)};
        std::ranges::find(totals, tick.value, &Tick::value) == totals.end())
      totals.push_back(tick);
  Chart chart(
      {.description = fmt::format(
           "Verified gain of each learner over the even schedule, mean, least and most over seeds: {}",
           groups.front()->estimator),
       .width = 720,
       .height = 320,
       .margins = {.left = 62, .right = 64, .top = 30, .bottom = 42},
       .x = {.title = "Total", .from = least - side, .to = most + side, .ticks = std::move(totals)},
       .y = {.title = "Gain in accuracy",
             .from = low - room,
             .to = high + room,
             .ticks = percent_ticks(low - room, high + room, 6)}});
  chart.level(0, "plain", "even");
  for (const LearningGroup* group : groups) {
    const auto i = static_cast<size_t>(std::ranges::find(learners, group->learner) - learners.begin());
    // Side by side where several learners have one total.
    const double x = static_cast<double>(group->total) +
                     0.1 * side * (static_cast<double>(i) - 0.5 * static_cast<double>(learners.size() - 1));
    chart.whisker({x, group->gain.low}, {x, group->gain.mean}, {x, group->gain.high},
                  "whisker " + series_style(i),
                  fmt::format("{} at {}, {}: {}", group->learner, group->total, seeds_text(*group),
                              points(group->gain.mean)));
  }
  for (size_t i = 0; i < learners.size(); ++i)
    chart.note({chart.frame().x.to, chart.frame().y.to}, {-4, kLegendLine * static_cast<double>(i + 1)},
               "end", "strong halo " + series_style(i), learners[i]);
  return chart;
}

std::vector<std::filesystem::path> write_learning_plots(std::span<const LearningGroup> groups,
                                                        const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  const auto write = [&](const std::string& name, const Chart& chart) {
    paths.push_back(directory / name);
    write_file_atomically(paths.back(), chart.standalone_svg());
  };
  std::vector<std::pair<std::string, std::string>> names;  // of files, and the estimators they are of
  const auto name_of = [&](const LearningGroup& group) {
    for (const auto& [name, estimator] : names)
      if (estimator == group.estimator) return name;
    const std::string plain(kernels::name(group.runs.front().conditions.attention.estimator));
    const auto alike = std::ranges::count_if(names, [&](const auto& known) {
      return known.first == plain || known.first.starts_with(plain + "-");
    });
    names.emplace_back(alike == 0 ? plain : fmt::format("{}-{}", plain, alike + 1), group.estimator);
    return names.back().first;
  };
  // Groups come by estimator, then by total.
  for (size_t begin = 0; begin < groups.size();) {
    std::vector<const LearningGroup*> of_estimator;
    for (size_t i = begin; i < groups.size() && groups[i].estimator == groups[begin].estimator; ++i)
      of_estimator.push_back(&groups[i]);
    const std::string name = name_of(groups[begin]);
    for (size_t first = 0; first < of_estimator.size();) {
      std::vector<const LearningGroup*> with_curve;
      size_t end = first;
      for (; end < of_estimator.size() && of_estimator[end]->total == of_estimator[first]->total; ++end)
        if (!of_estimator[end]->curve.empty()) with_curve.push_back(of_estimator[end]);
      const int64_t total = of_estimator[first]->total;
      first = end;
      if (with_curve.empty()) continue;
      write(fmt::format("curve-episodes-{}-{}.svg", name, total),
            learning_curve_chart(with_curve, LearningCost::kEpisodes));
      write(fmt::format("curve-seconds-{}-{}.svg", name, total),
            learning_curve_chart(with_curve, LearningCost::kWorkerSeconds));
    }
    write(fmt::format("gain-{}.svg", name), gain_chart(of_estimator));
    begin += of_estimator.size();
  }
  return paths;
}

}  // namespace allot::app
