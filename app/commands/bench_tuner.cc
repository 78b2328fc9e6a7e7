// allot bench tuner: every learner on surfaces with a known optimum, and on divergences that were measured on
// a model.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/files/measurement_file.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/conditions.h"
#include "kernels/method.h"
#include "policy/learner.h"
#include "policy/recorded.h"
#include "policy/rehearsal.h"
#include "policy/simulation.h"
#include "policy/surface.h"

namespace allot::app {
namespace {

constexpr int kCheckpoints[] = {125, 250, 500, 1000, 5000};

struct TunerOptions {
  std::vector<std::string> methods;
  std::vector<std::string> families;
  std::vector<std::string> recorded;  // files in place of families
  std::optional<int64_t> total;       // of these
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

// Where learners are rehearsed: a row of the table.
struct Course {
  std::string name;
  bool has_gap = true;  // false: uniform is the best schedule, and points over it are shown
  nlohmann::ordered_json conditions = nullptr;  // of measurements
  int64_t total = 0;                            // of schedules; 0: of the instance
  // Throws InvalidArgument where a learner does not take what it would learn on.
  std::function<void(const std::string& method)> check = [](const std::string&) {};
  // One run of a learner on the instance of that number.
  std::function<Run(const std::string& method, uint64_t instance)> rehearse;
};

policy::PolicyConfig learner_config(const std::string& method, int layers, int64_t total, uint64_t seed,
                                    const TunerOptions& options) {
  return {.name = method,
          .layers = layers,
          .total = total,
          .floor = options.floor,
          .seed = seed,
          .max_policy_lag = policy::find_learner(method)->max_policy_lag};
}

policy::RehearsalOptions rehearsal(uint64_t instance, const TunerOptions& options) {
  return {.episodes = options.episodes,
          .questions_per_episode = options.questions,
          .in_flight = options.in_flight,
          .seed = static_cast<uint64_t>(options.seed) + instance,
          .checkpoints = checkpoints(options.episodes)};
}

template <class OnWhat>
Run timed_run(const policy::PolicyConfig& config, const OnWhat& on, const policy::RehearsalOptions& options) {
  const auto learner = policy::make_policy(config);
  const auto start = std::chrono::steady_clock::now();
  Run run{.gained = policy::rehearse(*learner, on, options)};
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return run;
}

Course on_family(const policy::SurfaceFamily& family, const TunerOptions& options) {
  return {.name = std::string(family.name),
          .has_gap = family.has_gap,
          .rehearse = [&family, &options](const std::string& method, uint64_t instance) {
            const policy::RatedSurface rated = family.make(instance);
            Run run = timed_run(learner_config(method, rated.layers, rated.total,
                                               static_cast<uint64_t>(options.seed), options),
                                rated.surface, rehearsal(instance, options));
            for (double& accuracy : run.gained) {
              accuracy =
                  family.has_gap ? rated.share_of_gap(accuracy) : 100 * (accuracy - rated.uniform_accuracy);
            }
            return run;
          }};
}

// One landscape: instances differ in the draws of learner and questions.
Course on_landscape(const policy::NamedLandscape& named, const TunerOptions& options) {
  const auto landscape = std::make_shared<const policy::Landscape>(named.make());
  const auto layers = static_cast<int>(landscape->sensitivities.size());
  const int64_t total = int64_t{layers} * policy::kLandscapeSamples;
  const double uniform = landscape->accuracy(policy::uniform_schedule(layers, policy::kLandscapeSamples));
  const double best = landscape->accuracy(landscape->best(total, options.floor));
  return {.name = std::string(named.name),
          .rehearse = [landscape, layers, total, uniform, best, &options](const std::string& method,
                                                                          uint64_t instance) {
            const uint64_t seed = static_cast<uint64_t>(options.seed) + instance;
            Run run = timed_run(learner_config(method, layers, total, seed, options), *landscape,
                                rehearsal(instance, options));
            for (double& accuracy : run.gained) accuracy = (accuracy - uniform) / (best - uniform);
            return run;
          }};
}

// Divergences of a file; instances differ in the draws of learner and measurements.
Course on_recorded(const std::filesystem::path& path, const TunerOptions& options) {
  const MeasurementFile file = parse_measurements(read_file(path), path.string());
  const int64_t total = options.total.value_or(file.batches.front().schedules.front().total());
  const auto recorded =
      std::make_shared<policy::RecordedDivergences>(file.batches, total, options.floor, file.texts);
  std::cerr << fmt::format(
      "{}: {} measurements of {} texts, {}; at {} the even schedule diverges by {:.3g} nats and the best by {:.3g}; a "
      "measurement's log deviates by {:.3f}, and by {:.3f} in common with its batch\n",
      path.string(), recorded->measurements(), file.texts, kernels::describe(file.conditions.attention),
      total, recorded->expected(recorded->even()), recorded->expected(recorded->best()),
      recorded->own_spread(), recorded->batch_spread());
  const auto config = [recorded, total, &options](const std::string& method, uint64_t seed) {
    policy::PolicyConfig made = learner_config(method, recorded->layers(), total, seed, options);
    // As a run of divergences has it (aggregator/run_spec.cc).
    made.reward_kind = RewardKind::kDivergence;
    made.divergence_episodes = options.episodes;
    return made;
  };
  return {.name = path.stem().string(),
          .conditions = evaluation::to_json(file.conditions),
          .total = total,
          .check = [config](const std::string& method) { policy::validate(config(method, 0)); },
          .rehearse =
              [recorded, config, &options](const std::string& method, uint64_t instance) {
                const uint64_t seed = static_cast<uint64_t>(options.seed) + instance;
                return timed_run(config(method, seed), recorded->ground(seed), rehearsal(instance, options));
              }};
}

// One run an instance, on all threads; no number but the seconds depends on how many they are.
std::vector<Run> rehearse_all(const std::string& method, const Course& course, const TunerOptions& options) {
  std::vector<Run> runs(static_cast<size_t>(options.instances));
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t k; (k = next++) < runs.size();) {
      runs[k] = course.rehearse(method, static_cast<uint64_t>(options.first) + k);
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

void print_row(const bench::Table& table, const std::string& method, const Course& course,
               const std::vector<Run>& runs, const TunerOptions& options) {
  const std::vector<int> at = checkpoints(options.episodes);
  std::vector<bench::Cell> cells = {method, course.name};
  nlohmann::ordered_json points = nlohmann::json::array();
  for (size_t k = 0; k < at.size(); ++k) {
    std::vector<double> values;
    for (const Run& run : runs) values.push_back(run.gained[k]);
    const auto [mean, spread, least] = figures_of(values);
    const double factor = course.has_gap ? 100 : 1;
    cells.emplace_back(fmt::format("{:.{}f} ({:.{}f})", factor * mean, course.has_gap ? 0 : 2,
                                   factor * spread, course.has_gap ? 0 : 2));
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
                   {"family", course.name},
                   {"total", course.total > 0 ? nlohmann::ordered_json(course.total) : nullptr},
                   {"measure", course.has_gap ? "share of the gap" : "points over uniform"},
                   {"instances", options.instances},
                   {"first", options.first},
                   {"questions", options.questions},
                   {"in_flight", options.in_flight},
                   {"floor", options.floor},
                   {"seed", options.seed},
                   {"checkpoints", std::move(points)},
                   {"seconds", seconds},
                   {"conditions", course.conditions},
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
  OptionSet set(
      "bench",
      "every learner on surfaces with a known optimum, or on recorded divergences: the share of the gap it closes",
      "allot bench tuner --method pairs --episodes 500");
  set.positional("what", &what, "WHAT", "tuner");
  set.texts("method", &options.methods, "NAME", "a learner; all when not given");
  set.texts("family", &options.families, "NAME",
            "a family of surfaces, or one of the landscapes published, steep and tiny; all when not given");
  set.texts(
      "recorded", &options.recorded, "FILE",
      "divergences that allot calibrate --measurements kept, in place of surfaces; the gap is in -log of them");
  set.integer("total", &options.total, 1, 1'000'000, "N",
              "samples of all layers there; those of the file's first schedule when not given");
  set.integer("instances", &options.instances, 1, 10'000, "N", "random instances of each family");
  set.integer("first", &options.first, 0, 1'000'000'000, "N", "number of the first instance");
  set.integer("episodes", &options.episodes, 1, 1'000'000, "N", "length of a run in episodes of --questions");
  set.integer("questions", &options.questions, 1, 7473, "N",
              "questions of an episode, where the learner does not say how many");
  set.integer("in-flight", &options.in_flight, 1, 100'000, "N",
              "proposals out at once; they end in random order");
  set.integer("floor", &options.floor, 0, 8, "N", "least samples of a layer");
  set.integer("seed", &options.seed, 0, 1'000'000'000, "SEED", "seed of all random draws");
  set.integer("threads", &options.threads, 1, 1024, "N", "runs at once");
  set.flag("json", &options.json, "JSON lines instead of a table");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  std::vector<Course> courses;
  if (options.recorded.empty()) {
    if (options.total) throw UsageError("--total goes with --recorded; surfaces have totals of their own");
    std::vector<std::string> families;
    for (const policy::SurfaceFamily& family : policy::surface_families()) families.emplace_back(family.name);
    for (const policy::NamedLandscape& landscape : policy::landscapes())
      families.emplace_back(landscape.name);
    for (const std::string& name : chosen("family", options.families, families)) {
      const policy::SurfaceFamily* family = policy::find_surface_family(name);
      courses.push_back(family != nullptr ? on_family(*family, options)
                                          : on_landscape(*std::ranges::find(policy::landscapes(), name,
                                                                            &policy::NamedLandscape::name),
                                                         options));
    }
  } else {
    if (!options.families.empty())
      throw UsageError("--recorded and --family exclude each other; run the bench twice");
    for (const std::string& file : options.recorded) courses.push_back(on_recorded(file, options));
  }
  const std::vector<std::string> methods = chosen("method", options.methods, policy::policy_names());
  for (const Course& course : courses)
    for (const std::string& method : methods) course.check(method);

  std::vector<bench::Column> columns = {{"method", -17}, {"family", -15}};
  for (const int checkpoint : checkpoints(options.episodes))
    columns.push_back({std::to_string(checkpoint), 15});
  columns.push_back({"seconds", 9, 2});
  const bench::Table table(columns);
  if (!options.json) {
    std::cout << fmt::format(
        "Share of the gap between uniform and the best schedule that the recommended one closes after as many "
        "questions as the number of episodes that heads the column has, at {} each, percent; where all layers are "
        "equal, points over uniform. Mean and standard deviation over {} instances from number {}; seconds a run on one thread.\n",
        options.questions, options.instances, options.first);
    std::cout << table.head();
  }
  for (const Course& course : courses) {
    for (const std::string& method : methods)
      print_row(table, method, course, rehearse_all(method, course, options), options);
  }
  return 0;
}

}  // namespace allot::app
