// allot bench schedule: how long a decode step takes on this device under a schedule and under exact
// attention, by the length of the context. With a run, the run's report shows it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <iostream>
#include <optional>

#include "aggregator/run_directory.h"
#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/files/schedule_argument.h"
#include "app/files/schedule_file.h"
#include "app/run/devices.h"
#include "app/run/model_options.h"
#include "app/run/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/quantile.h"
#include "bench/generate.h"
#include "bench/output.h"
#include "evaluation/step_times.h"
#include "model/cuda_devices.h"
#include "model/engine.h"
#include "model/kv_cache.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

constexpr int32_t kRepetitions = 5;

struct ScheduleBenchOptions {
  std::filesystem::path run;
  std::filesystem::path schedule;
  std::filesystem::path model;
  std::string contexts;  // empty: as in usual_lengths()
  int32_t sequences = 1;
  int32_t steps = 32;
  std::string device = "cpu";
  int32_t threads = 0;
  bool json = false;
};

evaluation::StepTime summary(const std::vector<double>& microseconds) {
  return {.median = quantile(microseconds, 0.5),
          .low = quantile(microseconds, 0.05),
          .high = quantile(microseconds, 0.95)};
}

// Dense and sampled repetitions in turn, so that what slows the machine for a while slows both.
evaluation::ContextTimes times_at(model::Engine& engine, const ScheduleBenchOptions& options, int64_t context,
                                  const policy::Schedule& schedule) {
  bench::GenerateWorkload workload;
  workload.prompts = options.sequences;
  workload.prompt_tokens = static_cast<int32_t>(context);
  workload.new_tokens = options.steps + 1;  // the first comes with the prompt
  workload.repetitions = 1;
  std::vector<double> dense, sampled;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    workload.warm_ups = repetition == 0 ? 1 : 0;
    for (std::vector<double>* times : {&dense, &sampled}) {
      workload.samples = times == &dense ? std::vector<int32_t>{} : schedule.samples;
      const bench::GenerateTiming timing = bench::time_generation(engine, workload).at(0);
      for (const double seconds : timing.decode_steps) times->push_back(1e6 * seconds);
    }
  }
  return {.context = context, .dense = summary(dense), .schedule = summary(sampled)};
}

// 1k, 2k, … 128k as far as they are at most `most`; where not even the first is, the largest power of two
// that is.
std::vector<int64_t> usual_lengths(int64_t most) {
  std::vector<int64_t> lengths;
  for (int64_t context = 1024; context <= std::min<int64_t>(most, 128 * 1024); context *= 2)
    lengths.push_back(context);
  if (lengths.empty() && most > 0)
    lengths.push_back(static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most))));
  return lengths;
}

// The lengths that the model has positions for.
std::vector<int64_t> lengths(const ScheduleBenchOptions& options, int64_t positions) {
  if (options.contexts.empty()) return usual_lengths(positions - options.steps - 1);
  std::vector<int64_t> all = parse_totals(options.contexts, "--context");
  std::ranges::sort(all);
  std::vector<int64_t> fitting;
  for (const int64_t context : all)
    if (context + options.steps + 1 <= positions) fitting.push_back(context);
  if (fitting.empty())
    throw UsageError(fmt::format("--context {}: the model has {} positions, and {} steps follow the context",
                                 options.contexts, positions, options.steps + 1));
  if (fitting.size() < all.size())
    spdlog::warn("contexts above {} are left out: the model has {} positions", fitting.back(), positions);
  return fitting;
}

evaluation::StepTimes measure(const ScheduleFile& file, const ScheduleBenchOptions& options) {
  const model::ModelConfig config = model::read_model_config(options.model);
  if (std::ssize(file.schedule.samples) != config.num_layers)
    throw Mismatch(
        fmt::format("the schedule has {} layers and the model in {} has {}; give the schedule's model",
                    file.schedule.samples.size(), options.model.string(), config.num_layers));
  evaluation::StepTimes times{.conditions = file.conditions,
                              .tool_version = std::string(version()),
                              .device = describe(parse_device(options.device), model::find_cuda_devices),
                              .sequences = options.sequences,
                              .steps = options.steps * kRepetitions,
                              .schedule = file.schedule,
                              .contexts = {}};
  const std::vector<int64_t> contexts = lengths(options, config.max_position_embeddings);
  if (contexts.empty())
    throw UsageError(
        fmt::format("--steps {}: the model has {} positions", options.steps, config.max_position_embeddings));
  model::EngineOptions engine_options;
  engine_options.dtype = file.conditions.generation.dtype;
  engine_options.weights = file.conditions.generation.weights;
  engine_options.keys = file.conditions.generation.keys;
  engine_options.attention = file.conditions.attention;
  engine_options.device = options.device;
  engine_options.threads = options.threads;
  engine_options.max_sequences = options.sequences;
  // The time of a step is that of the shapes: neither the weights nor the prompts have to be computed.
  engine_options.random_weights = 0;
  engine_options.skip_prefill = true;
  engine_options.cache_tokens =
      int64_t{options.sequences} * engine_options.page_size *
      model::pages_for(contexts.back() + options.steps + 1, engine_options.page_size);
  model::Engine engine(options.model, engine_options);
  for (const int64_t context : contexts) {
    spdlog::info("measuring at {} keys", context);
    times.contexts.push_back(times_at(engine, options, context, file.schedule));
  }
  return times;
}

void print(const evaluation::StepTimes& times) {
  std::cout << fmt::format(
      "a decode step of {} sequences on {}, random weights and cache; {}; medians of {} steps with 5 and 95 %\n",
      times.sequences, times.device, kernels::describe(times.conditions.attention), times.steps);
  const bench::Table table({{"context", 9},
                            {"dense us", 12, 0},
                            {"5..95 %", 18},
                            {"schedule us", 13, 0},
                            {"5..95 %", 18},
                            {"saved us", 11, 0},
                            {"%", 7, 1}});
  std::cout << table.head();
  for (const evaluation::ContextTimes& one : times.contexts) {
    const double saved = one.dense.median - one.schedule.median;
    std::cout << table.line({one.context, one.dense.median,
                             bench::span_text(one.dense.low, one.dense.high, 0), one.schedule.median,
                             bench::span_text(one.schedule.low, one.schedule.high, 0), saved,
                             100 * saved / one.dense.median});
  }
}

}  // namespace

int run_bench_schedule(std::span<const std::string> arguments) {
  ScheduleBenchOptions options;
  std::string what;
  OptionSet set("bench", "measure what a schedule saves of a decode step on this device",
                "allot bench schedule --run runs/tune --device cuda");
  set.positional("what", &what, "WHAT", "schedule");
  set.path("run", &options.run,
           "run directory: measures its schedule, and its report shows the times from then on");
  set.path("schedule", &options.schedule, "a schedule.json instead; give --model with it");
  declare_model_option(&set, &options.model,
                       "the schedule's model, if it is not where the run says; config.json is enough");
  set.text(
      "context", &options.contexts, "N,N,…",
      "keys of each sequence before the measured steps; 1024, 2048 and so on to 131072 where the model has the positions");
  set.integer("sequences", &options.sequences, 1, 65536, "N", "decoded together");
  set.integer("steps", &options.steps, 1, 100'000, "N", "decode steps of a repetition, of which there are 5");
  set.device(&options.device);
  set.integer("threads", &options.threads, 0, 4096, "N", "threads of the model; 0 takes all cores");
  set.flag("json", &options.json, "print the JSON that step-times.json holds");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (options.run.empty() == options.schedule.empty())
    throw UsageError("give one of --run DIR and --schedule FILE");
  if (!options.schedule.empty() && options.model.empty())
    throw UsageError("--schedule " + options.schedule.string() +
                     " needs the model that it is for: --model DIR");
  const ScheduleFile file =
      read_schedule_file(options.run.empty() ? options.schedule : schedule_file(options.run));
  if (options.model.empty())
    options.model =
        recorded_directory(wire::read_spec(aggregator::spec_path(options.run)).model_path(), "--model");
  const evaluation::StepTimes times = measure(file, options);
  const std::string text = evaluation::format_step_times(times);
  if (!options.run.empty()) write_file_atomically(options.run / "step-times.json", text);
  if (options.json) {
    std::cout << text;
  } else {
    print(times);
    if (!options.run.empty())
      std::cout << fmt::format("written to {}; allot report --run {} shows it\n",
                               (options.run / "step-times.json").string(), options.run.string());
  }
  return 0;
}

}  // namespace allot::app
