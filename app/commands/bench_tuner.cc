// allot bench tuner: every learner on surfaces with a known optimum.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"
#include "policy/learner.h"
#include "policy/rehearsal.h"
#include "policy/surface.h"

namespace allot::app {
namespace {

constexpr int kCheckpoints[] = {125, 250, 500, 1000, 5000};

struct TunerOptions {
  std::vector<std::string> methods;
  std::vector<std::string> families;
  int32_t instances = 12;
  int64_t first = 0;
  int32_t episodes = 1000;
  int32_t questions = 16;
  int32_t in_flight = 1;
  int32_t floor = 1;
  int64_t seed = 0;
  int32_t threads = 0;
  bool json = false;
};

// What one learner made of one instance.
struct Run {
  std::vector<double> gained;  // share of the gap, or points over uniform, after each checkpoint
  double seconds = 0;
};

std::vector<int> checkpoints(int episodes) {
  std::vector<int> all;
  for (const int checkpoint : kCheckpoints) {
    if (checkpoint <= episodes) all.push_back(checkpoint);
  }
  if (all.empty() || all.back() != episodes) all.push_back(episodes);
  return all;
}

Run rehearse_one(const std::string& method, const policy::SurfaceFamily& family, uint64_t instance,
                 const TunerOptions& options) {
  const policy::RatedSurface rated = family.make(instance);
  const auto learner = policy::make_policy({.name = method,
                                            .layers = rated.layers,
                                            .total = rated.total,
                                            .floor = options.floor,
                                            .seed = static_cast<uint64_t>(options.seed),
                                            .max_policy_lag = policy::find_learner(method)->max_policy_lag});
  const auto start = std::chrono::steady_clock::now();
  Run run{.gained = policy::rehearse(*learner, rated.surface,
                                     {.episodes = options.episodes,
                                      .questions_per_episode = options.questions,
                                      .in_flight = options.in_flight,
                                      .seed = static_cast<uint64_t>(options.seed) + instance,
                                      .checkpoints = checkpoints(options.episodes)})};
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (double& accuracy : run.gained) {
    accuracy = family.has_gap ? rated.share_of_gap(accuracy) : 100 * (accuracy - rated.uniform_accuracy);
  }
  return run;
}

// One run an instance, on all threads; no number but the seconds depends on how many they are.
std::vector<Run> rehearse_all(const std::string& method, const policy::SurfaceFamily& family,
                              const TunerOptions& options) {
  std::vector<Run> runs(static_cast<size_t>(options.instances));
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t k; (k = next++) < runs.size();) {
      runs[k] = rehearse_one(method, family, static_cast<uint64_t>(options.first) + k, options);
    }
  };
  std::vector<std::jthread> threads;
  for (int k = 1; k < options.threads; ++k) threads.emplace_back(work);
  work();
  threads.clear();
  return runs;
}

struct Figures {
  double mean = 0;
  double spread = 0;  // standard deviation over the instances
  double least = 0;
};

Figures figures_of(const std::vector<double>& values) {
  Figures figures{.least = *std::ranges::min_element(values)};
  for (const double value : values) figures.mean += value / static_cast<double>(values.size());
  for (const double value : values) figures.spread += (value - figures.mean) * (value - figures.mean);
  figures.spread = std::sqrt(figures.spread / std::max<double>(static_cast<double>(values.size()) - 1, 1));
  return figures;
}

void print_row(const bench::Table& table, const std::string& method, const policy::SurfaceFamily& family,
               const std::vector<Run>& runs, const TunerOptions& options) {
  const std::vector<int> at = checkpoints(options.episodes);
  std::vector<bench::Cell> cells = {method, family.name};
  nlohmann::ordered_json points = nlohmann::json::array();
  for (size_t k = 0; k < at.size(); ++k) {
    std::vector<double> values;
    for (const Run& run : runs) values.push_back(run.gained[k]);
    const auto [mean, spread, least] = figures_of(values);
    const double factor = family.has_gap ? 100 : 1;
    cells.emplace_back(fmt::format("{:.{}f} ({:.{}f})", factor * mean, family.has_gap ? 0 : 2,
                                   factor * spread, family.has_gap ? 0 : 2));
    points.push_back(
        {{"episodes", at[k]}, {"mean", mean}, {"spread", spread}, {"least", least}, {"values", values}});
  }
  double seconds = 0;
  for (const Run& run : runs) seconds += run.seconds / static_cast<double>(runs.size());
  cells.emplace_back(seconds);
  if (!options.json) {
    std::cout << table.line(cells) << std::flush;
    return;
  }
  std::cout << bench::json_line(nlohmann::ordered_json{
                   {"what", "tuner"},
                   {"method", method},
                   {"family", family.name},
                   {"measure", family.has_gap ? "share of the gap" : "points over uniform"},
                   {"instances", options.instances},
                   {"first", options.first},
                   {"questions", options.questions},
                   {"in_flight", options.in_flight},
                   {"floor", options.floor},
                   {"seed", options.seed},
                   {"checkpoints", std::move(points)},
                   {"seconds", seconds},
                   {"version", version()}})
            << std::flush;
}

// The names of `given`, or all of `known`; throws UsageError for one that is not known.
std::vector<std::string> chosen(const char* option, const std::vector<std::string>& given,
                                const std::vector<std::string>& known) {
  for (const std::string& name : given) {
    if (std::ranges::find(known, name) != known.end()) continue;
    std::string all;
    for (const std::string& one : known) all += (all.empty() ? "" : ", ") + one;
    throw UsageError(std::string("--") + option + " " + name + " is not known; expected one of " + all);
  }
  return given.empty() ? known : given;
}

}  // namespace

int run_bench_tuner(std::span<const std::string> arguments) {
  TunerOptions options;
  options.threads = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  std::string what = "tuner";
  OptionSet set("bench", "every learner on surfaces with a known optimum: the share of the gap it closes",
                "allot bench tuner --method pairs --episodes 500");
  set.positional("what", &what, "WHAT", "tuner");
  set.texts("method", &options.methods, "NAME", "a learner; all when not given");
  set.texts("family", &options.families, "NAME", "a family of surfaces; all when not given");
  set.integer("instances", &options.instances, 1, 10'000, "N", "random instances of each family");
  set.integer("first", &options.first, 0, 1'000'000'000, "N", "number of the first instance");
  set.integer("episodes", &options.episodes, 1, 1'000'000, "N", "episodes of a run");
  set.integer("questions", &options.questions, 1, 7473, "N", "questions of an episode");
  set.integer("in-flight", &options.in_flight, 1, 100'000, "N",
              "proposals out at once; they end in random order");
  set.integer("floor", &options.floor, 0, 8, "N", "least samples of a layer");
  set.integer("seed", &options.seed, 0, 1'000'000'000, "SEED", "of the learners and the questions");
  set.integer("threads", &options.threads, 1, 1024, "N", "runs at once");
  set.flag("json", &options.json, "JSON lines instead of a table");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  std::vector<std::string> families;
  for (const policy::SurfaceFamily& family : policy::surface_families()) families.emplace_back(family.name);
  families = chosen("family", options.families, families);
  const std::vector<std::string> methods = chosen("method", options.methods, policy::policy_names());

  std::vector<bench::Column> columns = {{"method", -17}, {"family", -15}};
  for (const int checkpoint : checkpoints(options.episodes))
    columns.push_back({std::to_string(checkpoint), 15});
  columns.push_back({"seconds", 9, 2});
  const bench::Table table(columns);
  if (!options.json) {
    std::cout << fmt::format(
        "Share of the gap between uniform and the best schedule that the recommended one closes after so many "
        "episodes of {} questions, percent; where all layers are equal, points over uniform. Mean and standard "
        "deviation over {} instances from number {}; seconds a run on one thread.\n",
        options.questions, options.instances, options.first);
    std::cout << table.head();
  }
  for (const std::string& family : families) {
    for (const std::string& method : methods) {
      const policy::SurfaceFamily& known = *policy::find_surface_family(family);
      print_row(table, method, known, rehearse_all(method, known, options), options);
    }
  }
  return 0;
}

}  // namespace allot::app
