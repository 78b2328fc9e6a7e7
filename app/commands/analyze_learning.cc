// allot analyze learning: what finished runs learned, side by side.
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>

#include "aggregator/run_directory.h"
#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/files/schedule_argument.h"
#include "app/report/learning_figures.h"
#include "app/report/learning_runs.h"
#include "app/report/png.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"

namespace allot::app {
namespace fs = std::filesystem;
namespace {

constexpr const char* kUsualCheckpoints = "125,250,500,1000,2000";

// A run directory itself, or those that a folder holds, by name.
std::vector<fs::path> run_directories(const std::vector<std::string>& given) {
  std::vector<fs::path> runs;
  for (const std::string& name : given) {
    const fs::path folder = name;
    if (fs::exists(aggregator::spec_path(folder))) {
      runs.push_back(folder);
      continue;
    }
    const size_t before = runs.size();
    if (fs::is_directory(folder))
      for (const fs::directory_entry& entry : fs::directory_iterator(folder))
        if (fs::exists(aggregator::spec_path(entry.path()))) runs.push_back(entry.path());
    if (runs.size() == before)
      throw NotFound("--runs " + name +
                     " is no run directory and holds none: there is no spec.json; name the directories that "
                     "allot tune --run wrote, or the folder that they are in");
    std::ranges::sort(runs.begin() + static_cast<std::ptrdiff_t>(before), runs.end());
  }
  return runs;
}

std::string percent_text(const Spread& spread) {
  return spread.deviation ? fmt::format("{:.1f} ({:.1f})", 100 * spread.mean, 100 * *spread.deviation)
                          : fmt::format("{:.1f}", 100 * spread.mean);
}

std::string gain_text(const Spread& spread) {
  if (!spread.deviation) return fmt::format("{:+.1f}", 100 * spread.mean);
  return fmt::format("{:+.1f} ({:.1f}; {:+.1f} to {:+.1f})", 100 * spread.mean, 100 * *spread.deviation,
                     100 * spread.low, 100 * spread.high);
}

int width_of(std::span<const LearningGroup> groups, std::string LearningGroup::*text) {
  size_t width = 9;
  for (const LearningGroup& group : groups) width = std::max(width, (group.*text).size());
  return -static_cast<int>(width + 2);
}

std::string verified_table(std::span<const LearningGroup> groups) {
  const bench::Table table({{"estimator", width_of(groups, &LearningGroup::estimator)},
                            {"learner", width_of(groups, &LearningGroup::learner)},
                            {"total", 7},
                            {"seeds", 7},
                            {"episodes", 10},
                            {"worker s", 10},
                            {"even %", 14},
                            {"learned %", 14},
                            {"dense %", 14},
                            {"", 2},
                            {"gain, points", -1}});
  std::string text = table.head();
  for (const LearningGroup& group : groups)
    text +=
        table.line({group.estimator, group.learner, group.total, group.runs.size(), group.episodes.mean,
                    group.worker_seconds.mean, percent_text(group.even), percent_text(group.learned),
                    group.dense ? percent_text(*group.dense) : std::string("-"), "", gain_text(group.gain)});
  return text;
}

// A line for each point of each curve.
std::string curves_table(std::span<const LearningGroup> groups) {
  const bench::Table table({{"estimator", width_of(groups, &LearningGroup::estimator)},
                            {"learner", width_of(groups, &LearningGroup::learner)},
                            {"total", 7},
                            {"episodes", 10},
                            {"worker s", 10},
                            {"recommended, % right", 22}});
  std::string text;
  for (const LearningGroup& group : groups)
    for (const CurvePoint& point : group.curve)
      text += table.line({group.estimator, group.learner, group.total, point.episodes, point.worker_seconds,
                          percent_text(point.accuracy)});
  if (text.empty()) return text;
  const evaluation::Conditions* conditions = nullptr;
  for (const LearningGroup& group : groups)
    if (!group.curve.empty() && conditions == nullptr) conditions = &group.runs.front().conditions;
  return fmt::format(
             "\nThe schedule recommended on the way, by {}: right of {} held-out questions with the draws of seed "
             "{}, mean and standard deviation over seeds; a run that ended before counts with what it ended with\n",
             kLearningFile, conditions->measured_on->questions, conditions->seed) +
         table.head() + text;
}

}  // namespace

int run_analyze_learning(std::span<const std::string> arguments) {
  std::string what, at = kUsualCheckpoints;
  std::vector<std::string> directories;
  fs::path out;
  bool png = false, json = false;
  OptionSet set(
      "analyze",
      "what finished runs learned, side by side: verified gains with their spread over seeds, and the "
      "accuracy of the recommended schedule against episodes and seconds of workers",
      "allot analyze learning --runs runs/learning --out plots");
  set.positional_choice("what", &what, {"learning"}, "WHAT", "which analysis");
  set.require("what");
  set.texts(
      "runs", &directories, "DIR",
      "run directory, or a folder that holds such; may be given several times. Runs that differ in their "
      "seeds alone are one row");
  set.text(
      "at", &at, "N,…",
      "learning episodes after which the recommended schedule is looked at, besides the first and the last");
  set.path("out", &out, "folder for plots of the curves and gains, as SVG");
  set.flag("png", &png, "draw the plots as PNG files too (needs rsvg-convert of the package librsvg2-bin)");
  set.flag("json", &json, "print one JSON object a row, with every run and the schedules on its way");
  set.require("runs");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (png && out.empty()) throw UsageError("--png needs --out DIR, the folder of the plots");

  const std::vector<int64_t> checkpoints = parse_totals(at, "--at");
  std::vector<LearningRun> runs;
  for (const fs::path& directory : run_directories(directories)) {
    std::string why;
    std::optional<LearningRun> run = read_learning_run(directory, checkpoints, &why);
    if (run)
      runs.push_back(*std::move(run));
    else
      std::cerr << fmt::format("{} is left out: {}\n", directory.string(), why);
  }
  if (runs.empty())
    throw Error("none of these runs has finished and was verified: " +
                fmt::format("{}", fmt::join(directories, ", ")));
  const std::vector<LearningGroup> groups = learning_groups(std::move(runs));
  if (json) {
    for (const LearningGroup& group : groups) {
      nlohmann::ordered_json row = to_json(group);
      row["tool_version"] = version();
      std::cout << bench::json_line(row);
    }
  } else {
    std::cout
        << "Verified on held-out questions: mean over seeds (standard deviation; of the gain the least and "
           "the most, too)\n"
        << verified_table(groups) << curves_table(groups);
  }
  if (out.empty()) return 0;
  list_plots(write_learning_plots(groups, out), png, std::cerr);
  return 0;
}

}  // namespace allot::app
