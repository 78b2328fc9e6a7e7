// allot bench: how fast this machine does a tuning run's work, beside Hugging Face generate and vLLM in one
// run.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <limits>
#include <optional>
#include <thread>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/commands/bench_peers.h"
#include "app/files/schedule_argument.h"
#include "app/run/attention_options.h"
#include "app/run/generation_options.h"
#include "app/run/model_options.h"
#include "base/device.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/quantile.h"
#include "bench/generate.h"
#include "bench/output.h"
#ifdef ALLOT_WITH_CUDA
#include "bench/kernel_profile.h"
#endif
#include "evaluation/decode_bytes.h"
#include "kernels/estimator.h"
#include "model/cuda_devices.h"
#include "model/engine.h"
#include "model/kv_cache.h"
#include "model/weight_storage.h"

namespace allot::app {
namespace {

struct BenchOptions {
  std::string what = "decode";
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  std::string peer_python;
  std::filesystem::path peer_script = "bench/hf_generate.py";
  std::string peer_vllm;
  std::filesystem::path vllm_script = "bench/peers/vllm_decode.py";
  std::optional<int64_t> peer_prompts;
  std::string dtype = "both";
  std::string weights = "dtype";
  std::string keys = "16-bit";
  int32_t samples = 8;
  std::optional<int64_t> random_weights;
  std::string attention = "both";
  kernels::AttentionMethod method = kernels::usual_method();
  std::string cache_fill = "computed";
  std::string device = "cpu";
  int32_t max_sequences = 256;
  std::optional<int64_t> prefill_chunk;
  int32_t threads = 0;
  bench::GenerateWorkload workload;
  bool profile = false;
  bool json = false;
};

constexpr int kProfiledSteps = 8;

// The least time of a decode step on CUDA devices: that of reading what it must.
struct ByteFloor {
  evaluation::DecodeBytes bytes = {};  // of all devices
  int32_t devices = 1;
  double bytes_per_second = 0;  // of the memory of one
  double milliseconds() const {
    return 1e3 * static_cast<double>(bytes.total()) / devices / bytes_per_second;
  }
};

// One kernel of a decode step.
struct ProfileRow {
  std::string kernel;
  double launches = 0;  // a step
  double microseconds = 0;
};

// Medians over the repetitions, with the fastest and the slowest total.
struct Row {
  std::string engine;  // "allot", or a peer
  std::string dtype;
  std::string attention;  // "dense", "sys 8"
  int32_t prompts = 0;    // sequences in all
  double seconds = 0;
  double fastest = 0;
  double slowest = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  std::optional<double> load_seconds = {};           // until the engine was ready; nothing for a peer
  std::optional<bench::GenerateTiming> timing = {};  // of the median repetition; nothing for a peer
  std::optional<int64_t> weight_bytes = {};          // that a decode step reads; nothing for a peer
  nlohmann::ordered_json conditions = {};            // what a peer says of itself
  std::vector<ProfileRow> profile = {};              // with --profile, the longest first
  double profile_busy = 0;                           // microseconds of a step in which a kernel ran
  double profile_whole = 0;                          // and of the whole step, in the profiled ones
  std::optional<ByteFloor> floor = {};               // nothing on the CPU, and for a peer
};

// Milliseconds of a decode step that this share of the steps do not exceed; nothing without a step.
std::optional<double> step_milliseconds(const Row& row, double share) {
  if (!row.timing || row.timing->decode_steps.empty()) return std::nullopt;
  return 1000 * quantile(row.timing->decode_steps, share);
}

// Of the median step's time, the share that its byte floor is; nothing without a floor or a step.
std::optional<double> share_of_floor(const Row& row) {
  const std::optional<double> median = step_milliseconds(row, 0.5);
  if (!row.floor || !median) return std::nullopt;
  return row.floor->milliseconds() / *median;
}

// Of a step in the middle of the replies. Every device reads as much as the others, and the slowest memory
// counts.
std::optional<ByteFloor> byte_floor(const BenchOptions& options, const model::Engine& engine,
                                    const bench::GenerateWorkload& workload) {
  const Device device = parse_device(options.device);
  if (device.kind == Device::Kind::kCpu) return std::nullopt;
  ByteFloor floor{.devices = device.count, .bytes_per_second = std::numeric_limits<double>::infinity()};
  for (const model::CudaDevice& one : model::find_cuda_devices().devices) {
    if (one.index < device.index || one.index >= device.index + device.count) continue;
    floor.bytes_per_second = std::min(floor.bytes_per_second, one.memory_bytes_per_second);
  }
  const evaluation::DecodeShape shape{.sequences = std::min<int64_t>(workload.prompts, options.max_sequences),
                                      .keys = workload.prompt_tokens + workload.new_tokens / 2,
                                      .bytes_per_element = kernels::size_of(engine.options().dtype),
                                      .weights = engine.options().weights,
                                      .key_format = kernels::cache_format(engine.options().keys)};
  floor.bytes = workload.samples.empty()
                    ? evaluation::exact_bytes(engine.config(), shape)
                    : evaluation::sampled_bytes(engine.config(), shape, {.samples = workload.samples},
                                                options.method.unit);
  return floor;
}

// Nothing when there were none.
std::optional<double> per_second(int64_t tokens, double seconds) {
  return tokens > 0 ? std::optional(static_cast<double>(tokens) / seconds) : std::nullopt;
}

// Room for the sequences that run at once, and no more.
int64_t cache_tokens(const BenchOptions& options, int32_t page_size) {
  const bench::GenerateWorkload& workload = options.workload;
  int64_t new_tokens = workload.new_tokens;
  if (options.profile)
    new_tokens = std::max<int64_t>(new_tokens, bench::tokens_of_decode_steps(kProfiledSteps));
  return std::min<int64_t>(workload.prompts, options.max_sequences) * page_size *
         model::pages_for(workload.prompt_tokens + new_tokens, page_size);
}

// The kernels of a decode step, which starts after the prompts.
void profile_decode(model::Engine& engine, const bench::GenerateWorkload& workload, Row* row) {
#ifdef ALLOT_WITH_CUDA
  bench::KernelProfile profile;
  bench::run_decode_steps(engine, workload, kProfiledSteps, [&](const std::function<void()>& steps) {
    profile = bench::profile_kernels(steps);
  });
  constexpr double kMicrosecondsOfStep = 1e6 / kProfiledSteps;
  for (const bench::KernelTime& kernel : profile.kernels) {
    row->profile.push_back({.kernel = kernel.name,
                            .launches = static_cast<double>(kernel.launches) / kProfiledSteps,
                            .microseconds = kernel.seconds * kMicrosecondsOfStep});
  }
  row->profile_busy = profile.time.busy_seconds * kMicrosecondsOfStep;
  row->profile_whole = profile.time.whole_seconds * kMicrosecondsOfStep;
#else
  (void)engine, (void)workload, (void)row;
  throw Unsupported("--profile needs a build with CUDA (cmake --preset gpu)");
#endif
}

Row measure(const BenchOptions& options, kernels::DType dtype, int32_t samples) {
  model::EngineOptions engine_options;
  engine_options.dtype = dtype;
  engine_options.weights = model::parse_weight_storage(options.weights);
  engine_options.keys = kernels::parse_key_format(options.keys);
  engine_options.device = options.device;
  engine_options.threads = options.threads;
  engine_options.max_sequences = options.max_sequences;
  if (options.prefill_chunk)
    engine_options.prefill_chunk_tokens = static_cast<int32_t>(*options.prefill_chunk);
  engine_options.cache_tokens = cache_tokens(options, engine_options.page_size);
  engine_options.attention = options.method;
  kernels::keep_own_parameters(&engine_options.attention);
  engine_options.skip_prefill = options.cache_fill == "random";
  engine_options.adapter = options.adapter;
  if (options.random_weights) engine_options.random_weights = static_cast<uint64_t>(*options.random_weights);
  const auto start = std::chrono::steady_clock::now();
  model::Engine engine(options.model, engine_options);
  const std::chrono::duration<double> load = std::chrono::steady_clock::now() - start;
  bench::GenerateWorkload workload = options.workload;
  if (samples > 0) workload.samples.assign(static_cast<size_t>(engine.config().num_layers), samples);
  const auto timings = bench::time_generation(engine, workload);
  const auto [fastest, slowest] =
      std::ranges::minmax_element(timings, {}, &bench::GenerateTiming::total_seconds);
  const bench::GenerateTiming middle = bench::median(timings);
  Row row{.engine = "allot",
          .dtype = std::string(kernels::name(dtype)),
          .attention = samples > 0
                           ? fmt::format("{} {}{}", kernels::name(options.method.estimator), samples,
                                         options.method.unit == kernels::BudgetUnit::kRows ? " rows" : "")
                           : "dense",
          .prompts = workload.prompts,
          .seconds = middle.total_seconds,
          .fastest = fastest->total_seconds,
          .slowest = slowest->total_seconds,
          .prefill_seconds = middle.prefill_seconds,
          .decode_seconds = middle.decode_seconds,
          .load_seconds = load.count(),
          .timing = middle,
          .weight_bytes =
              model::step_weight_bytes(engine.config(), kernels::size_of(dtype), engine_options.weights),
          .floor = byte_floor(options, engine, workload)};
  if (options.profile) profile_decode(engine, workload, &row);
  return row;
}

// The peers that were asked for.
std::vector<DecodePeer> peers_of(const BenchOptions& options) {
  std::vector<DecodePeer> peers;
  if (!options.peer_python.empty())
    peers.push_back({.name = "hugging face",
                     .python = options.peer_python,
                     .script = options.peer_script,
                     .prompts = options.peer_prompts});
  if (!options.peer_vllm.empty())
    peers.push_back({.name = "vllm", .python = options.peer_vllm, .script = options.vllm_script});
  return peers;
}

Row measure_peer(const BenchOptions& options, const DecodePeer& peer, const std::string& dtype) {
  const auto prompts = static_cast<int32_t>(peer.prompts.value_or(options.workload.prompts));
  PeerTiming timing = run_decode_peer(peer, {.model = options.model,
                                             .dtype = dtype,
                                             .device = options.device,
                                             .threads = options.threads,
                                             .prompts = prompts,
                                             .max_sequences = options.max_sequences,
                                             .random_weights = options.random_weights,
                                             .workload = options.workload});
  return {.engine = peer.name,
          .dtype = dtype,
          .attention = "dense",
          .prompts = prompts,
          .seconds = timing.seconds,
          .fastest = timing.fastest_seconds,
          .slowest = timing.slowest_seconds,
          .prefill_seconds = timing.prefill_seconds,
          .decode_seconds = timing.decode_seconds,
          .conditions = std::move(timing.conditions)};
}

double tokens_per_second(const Row& row, const bench::GenerateWorkload& workload) {
  return static_cast<double>(row.prompts) * workload.new_tokens / row.seconds;
}

template <class Value>
nlohmann::json optional_json(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

void print_steps(const std::vector<Row>& rows, const BenchOptions& options) {
  const bench::Table table({{"", -14},
                            {"dtype", -10},
                            {"attention", -10},
                            {"load s", 9, 2},
                            {"prefill tokens/s", 18},
                            {"decode tokens/s", 18},
                            {"weights", 12},
                            {"weights GB", 12, 3},
                            {"steps", 10},
                            {"median ms", 12, 3},
                            {"p5 ms", 10, 3},
                            {"p95 ms", 10, 3},
                            {"floor ms", 10, 3},
                            {"of median", 11, 3}});
  std::cout << '\n' << table.head();
  for (const Row& row : rows) {
    if (!row.timing) continue;
    std::cout << table.line(
        {row.engine, row.dtype, row.attention, row.load_seconds,
         per_second(row.timing->prefill_tokens, row.timing->prefill_seconds),
         per_second(row.timing->decode_tokens, row.timing->decode_seconds), options.weights,
         row.weight_bytes ? std::optional(static_cast<double>(*row.weight_bytes) / 1e9) : std::nullopt,
         row.timing->decode_steps.size(), step_milliseconds(row, 0.5), step_milliseconds(row, 0.05),
         step_milliseconds(row, 0.95), row.floor ? std::optional(row.floor->milliseconds()) : std::nullopt,
         share_of_floor(row)});
  }
  for (const Row& row : rows) {
    if (!row.floor) continue;
    const ByteFloor& floor = *row.floor;
    constexpr double kGigabyte = 1e9;
    const auto gigabytes = [&](int64_t bytes) {
      return static_cast<double>(bytes) / floor.devices / kGigabyte;
    };
    std::cout << fmt::format(
        "floor of {} {}: {:.2f} GB of weights, {:.3f} of keys and {:.3f} of values in the middle of the replies on "
        "each of {} device{}, at {:.0f} GB/s, the memory's clock and width\n",
        row.dtype, row.attention, gigabytes(floor.bytes.weights), gigabytes(floor.bytes.keys),
        gigabytes(floor.bytes.values), floor.devices, floor.devices == 1 ? "" : "s",
        floor.bytes_per_second / kGigabyte);
  }
}

void print_profile(const Row& row) {
  if (row.profile.empty()) return;
  const bench::Table table({{"kernel", -60}, {"launches", 10, 1}, {"us", 12, 1}, {"%", 8, 1}});
  std::cout
      << fmt::format(
             "\n{} {} {}: kernels of a decode step after the prompts, mean of {} steps; {:.1f} us with a "
             "kernel running, of {:.1f}\n",
             row.engine, row.dtype, row.attention, kProfiledSteps, row.profile_busy, row.profile_whole)
      << table.head();
  for (const ProfileRow& kernel : row.profile)
    std::cout << table.line(
        {kernel.kernel, kernel.launches, kernel.microseconds, 100 * kernel.microseconds / row.profile_busy});
}

nlohmann::ordered_json row_json(const Row& row, const BenchOptions& options) {
  const bench::GenerateWorkload& workload = options.workload;
  nlohmann::ordered_json json = {
      {"what", "decode"},
      {"engine", row.engine},
      {"model", options.model.string()},
      {"adapter", options.adapter ? nlohmann::json(options.adapter->string()) : nlohmann::json()},
      {"random_weights", optional_json(options.random_weights)},
      {"dtype", row.dtype},
      {"attention", row.attention},
      {"keys", options.keys},
      {"weights", row.weight_bytes ? nlohmann::json(options.weights) : nlohmann::json()},
      {"step_weight_bytes", optional_json(row.weight_bytes)},
      {"device", options.device},
      {"threads", options.threads},
      {"prompts", row.prompts},
      {"prompt_tokens", workload.prompt_tokens},
      {"new_tokens", workload.new_tokens},
      {"repetitions", workload.repetitions},
      {"max_sequences", options.max_sequences},
      {"prefill", kernels::name(options.method.prefill)},
      {"cache_fill", options.cache_fill},
      {"temperature", workload.sampling.temperature},
      {"top_p", workload.sampling.top_p},
      {"repetition_penalty", workload.sampling.repetition_penalty},
      {"load_seconds", optional_json(row.load_seconds)},
      {"seconds", row.seconds},
      {"fastest_seconds", row.fastest},
      {"slowest_seconds", row.slowest},
      {"prefill_seconds", row.prefill_seconds},
      {"decode_seconds", row.decode_seconds},
      {"new_tokens_per_second", tokens_per_second(row, workload)}};
  if (!row.conditions.is_null()) json["conditions"] = row.conditions;
  if (row.timing) {
    const bench::GenerateTiming& timing = *row.timing;
    json["prefill_tokens_per_second"] =
        optional_json(per_second(timing.prefill_tokens, timing.prefill_seconds));
    json["decode_tokens_per_second"] = optional_json(per_second(timing.decode_tokens, timing.decode_seconds));
    json["decode_steps"] = timing.decode_steps.size();
    json["step_milliseconds"] = {{"median", optional_json(step_milliseconds(row, 0.5))},
                                 {"p5", optional_json(step_milliseconds(row, 0.05))},
                                 {"p95", optional_json(step_milliseconds(row, 0.95))}};
  }
  if (row.floor) {
    json["byte_floor"] = {{"milliseconds", row.floor->milliseconds()},
                          {"of_median_step", optional_json(share_of_floor(row))},
                          {"weight_bytes", row.floor->bytes.weights},
                          {"key_bytes", row.floor->bytes.keys},
                          {"value_bytes", row.floor->bytes.values},
                          {"devices", row.floor->devices},
                          {"bytes_per_second_of_device", row.floor->bytes_per_second}};
  }
  if (!row.profile.empty()) {
    json["profile"] = {{"busy_microseconds", row.profile_busy},
                       {"whole_microseconds", row.profile_whole},
                       {"kernels", nlohmann::json::array()}};
    for (const ProfileRow& kernel : row.profile) {
      json["profile"]["kernels"].push_back(
          {{"kernel", kernel.kernel}, {"launches", kernel.launches}, {"microseconds", kernel.microseconds}});
    }
  }
  json["version"] = version();
  return json;
}

// "greedy", "temperature 0.6, top-p 0.95, repetition penalty 1.1".
std::string sampling_text(const model::SamplingParams& sampling) {
  std::string text = sampling.temperature == 0
                         ? std::string("greedy")
                         : fmt::format("temperature {}, top-p {}", sampling.temperature, sampling.top_p);
  if (sampling.repetition_penalty != 1)
    text += fmt::format(", repetition penalty {}", sampling.repetition_penalty);
  return text;
}

// Peers compute their prompts and read no adapter, and vLLM has a GPU.
void check_comparable(const BenchOptions& options) {
  for (const auto& [option, program] :
       {std::pair("--peer-python", &options.peer_python), std::pair("--peer-vllm", &options.peer_vllm)}) {
    if (program->empty()) continue;
    if (options.adapter) {
      throw UsageError(fmt::format("{} runs the model without --adapter {}; leave one of them out", option,
                                   options.adapter->string()));
    }
    if (options.device != "cpu" && parse_device(options.device).count > 1) {
      throw UsageError(fmt::format("{} runs the model on one device, not on {}; leave one of them out",
                                   option, options.device));
    }
    if (options.cache_fill != "computed") {
      throw UsageError(fmt::format(
          "{} generates after prompts that it computes; leave it out, or --cache-fill random", option));
    }
  }
  if (!options.peer_vllm.empty() && options.device == "cpu")
    throw UsageError("--peer-vllm runs on a GPU; add --device cuda, or leave it out");
}

void print(const std::vector<Row>& rows, const BenchOptions& options) {
  const bench::GenerateWorkload& workload = options.workload;
  if (options.json) {
    for (const Row& row : rows) std::cout << bench::json_line(row_json(row, options));
    return;
  }
  std::cout << fmt::format(
      "{} prompts of {} tokens{}, {} new tokens each, {}, on {} with {} threads, keys {}, up to {} sequences at "
      "once; "
      "medians of {} repetitions after {} to warm up\n",
      workload.prompts, workload.prompt_tokens,
      options.cache_fill == "random" ? " (not computed, the cache is random)" : "", workload.new_tokens,
      sampling_text(workload.sampling), options.device, options.threads, options.keys, options.max_sequences,
      workload.repetitions, workload.warm_ups);
  std::vector<bench::Column> columns{{"", -14},          {"dtype", -10},     {"attention", -10},
                                     {"prompts", 9},     {"seconds", 10, 3}, {"fastest..slowest", 18},
                                     {"prefill", 10, 3}, {"decode", 10, 3},  {"new tokens/s", 14}};
  std::vector<const Row*> peers;
  for (const Row& row : rows) {
    if (row.conditions.is_null()) continue;
    peers.push_back(&row);
    columns.push_back({"times " + row.engine, 20, 2});
  }
  const bench::Table table(std::move(columns));
  std::cout << table.head();
  for (const Row& row : rows) {
    const double speed = tokens_per_second(row, workload);
    std::vector<bench::Cell> cells{
        row.engine,          row.dtype,          row.attention,
        row.prompts,         row.seconds,        bench::span_text(row.fastest, row.slowest, 3),
        row.prefill_seconds, row.decode_seconds, speed};
    for (const Row* peer : peers) cells.emplace_back(speed / tokens_per_second(*peer, workload));
    std::cout << table.line(cells);
  }
  for (const Row* peer : peers)
    std::cout << fmt::format("{}: {}\n", peer->engine, conditions_text(peer->conditions));
  print_steps(rows, options);
  for (const Row& row : rows) print_profile(row);
}

}  // namespace

int run_bench(std::span<const std::string> arguments) {
  if (!arguments.empty() && arguments[0] == "schedule") return run_bench_schedule(arguments);
  if (!arguments.empty() && arguments[0] == "arrivals") return run_bench_arrivals(arguments);
  BenchOptions options;
  OptionSet set("bench", "measure the generation of a tuning run, beside Hugging Face generate and vLLM",
                "allot bench decode --model assets/tiny-gsm --peer-python .venv/bin/python");
  set.positional(
      "what", &options.what, "WHAT",
      "what to measure: decode (prompt and reply of a batch) here; attention (CUDA kernels), schedule (decode "
      "steps under a schedule) and arrivals (replies while long prompts arrive) have options of their own, see allot "
      "bench attention --help");
  declare_model_option(
      &set, &options.model,
      "Hugging Face model: a directory, or org/name[@revision] in the local cache of the hub");
  declare_adapter_option(&set, &options.adapter);
  set.text("peer-python", &options.peer_python, "PROGRAM",
           "Python with torch and transformers; without it Hugging Face generate is not measured");
  set.path("peer-script", &options.peer_script,
           "the script that does the same work with Hugging Face generate");
  set.text("peer-vllm", &options.peer_vllm, "PROGRAM",
           "Python with vLLM, which is measured on the same device before; without it vLLM is not");
  set.path("vllm-script", &options.vllm_script, "the script that does the same work with vLLM");
  set.integer(
      "peer-prompts", &options.peer_prompts, 1, 1 << 20, "N",
      "sequences of Hugging Face generate, which decodes all of them at once; as many as prompts without it");
  set.integer("random-weights", &options.random_weights, 0, std::numeric_limits<uint32_t>::max(), "SEED",
              "make the weights at random instead of reading them; config.json is enough then");
  set.choice(
      "dtype", &options.dtype, {"both", "float32", "bfloat16", "float16"},
      "of weights, activations and cache; both measures float32 and bfloat16, on a CUDA device bfloat16");
  declare_weights_option(&set, &options.weights);
  declare_keys_option(&set, &options.keys);
  set.integer("prompts", &options.workload.prompts, 1, 1 << 20, "N", "sequences in all");
  set.integer("prompt-tokens", &options.workload.prompt_tokens, 1, 1 << 20, "N", "length of each prompt");
  set.integer("new-tokens", &options.workload.new_tokens, 1, 1 << 20, "N", "length of each reply");
  set.integer("samples", &options.samples, 1, 1'000'000, "S",
              "samples per layer of the sampled rows of the table, or value rows with --unit rows");
  set.choice("attention", &options.attention, {"both", "dense", "sampled"}, "which rows to measure");
  declare_attention_options(&set, &options.method, EstimatorChoice::kSampled);
  set.choice("cache-fill", &options.cache_fill, {"computed", "random"},
             "random takes the prompts for cached, with random numbers in the cache: times decoding after a "
             "long prompt without computing it; replies are meaningless");
  set.real("temperature", &options.workload.sampling.temperature, 0, 100, "T", "0 is greedy");
  set.real("top-p", &options.workload.sampling.top_p, 1e-9, 1, "P",
           "sample from the likeliest tokens of this mass");
  set.real("repetition-penalty", &options.workload.sampling.repetition_penalty, 0.01, 100, "R", "1 is none");
  set.integer("max-sequences", &options.max_sequences, 1, 65536, "N", "replies decoded together");
  set.integer("prefill-chunk", &options.prefill_chunk, 2, 1 << 20, "TOKENS",
              "tokens of prompts processed in one forward pass; the engine's choice without it");
  set.device(&options.device);
  set.integer("threads", &options.threads, 0, 4096, "N", "threads of each engine; 0 takes all cores");
  set.integer("repetitions", &options.workload.repetitions, 1, 1000, "N",
              "timed repetitions, after those to warm up");
  set.integer("warm-ups", &options.workload.warm_ups, 0, 1000, "N",
              "repetitions before, of at most 8 new tokens, which are not timed");
  set.flag("profile", &options.profile,
           "also list the kernels of a decode step and their times, on a CUDA device");
  set.flag("json", &options.json, "print one JSON object a row");
  set.require("model");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (options.what == "attention") {
    throw UsageError("attention comes right after bench: allot bench attention [options]");
  }
  if (options.what != "decode") {
    throw UsageError("'" + options.what +
                     "' cannot be measured; decode, attention, schedule or arrivals is expected");
  }
  check_unit(options.method);
  note_unread_schedule(options.model, "every layer draws --samples");
  check_comparable(options);
  check_adapter(options.adapter, options.random_weights);
  if (options.profile && options.device == "cpu") {
    throw UsageError("--profile lists CUDA kernels; add --device cuda, or leave it out");
  }
  if (options.device != "cpu" && options.dtype == "both") options.dtype = "bfloat16";
  if (options.threads == 0) options.threads = static_cast<int32_t>(std::thread::hardware_concurrency());

  std::vector<Row> rows;
  for (const DecodePeer& peer : peers_of(options)) {
    spdlog::info("measuring {}", peer.name);
    rows.push_back(measure_peer(options, peer, options.dtype == "both" ? "float32" : options.dtype));
  }
  for (const auto dtype : {kernels::DType::kFloat32, kernels::DType::kBFloat16, kernels::DType::kFloat16}) {
    const bool wanted =
        options.dtype == "both" ? dtype != kernels::DType::kFloat16 : options.dtype == kernels::name(dtype);
    if (!wanted) continue;
    for (const int32_t samples : {0, options.samples}) {
      const char* attention = samples == 0 ? "dense" : "sampled";
      if (options.attention != "both" && options.attention != attention) continue;
      spdlog::info("measuring {} {}", kernels::name(dtype), attention);
      rows.push_back(measure(options, dtype, samples));
    }
  }
  print(rows, options);
  return 0;
}

}  // namespace allot::app
