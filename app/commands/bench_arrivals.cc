// allot bench arrivals: how long running replies wait for their next token while long prompts arrive, by the
// tokens of prompts that may lie between two of theirs.
#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <iostream>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <thread>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/run/attention_options.h"
#include "app/run/generation_options.h"
#include "app/run/model_options.h"
#include "base/ascii.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/quantile.h"
#include "bench/arrivals.h"
#include "bench/output.h"
#include "kernels/estimator.h"
#include "model/engine.h"
#include "model/weight_storage.h"

namespace allot::app {
namespace {

struct ArrivalBenchOptions {
  std::filesystem::path model;
  std::optional<int64_t> random_weights;
  std::string dtype = "bfloat16";
  std::string weights = "dtype";
  std::string keys = "16-bit";
  std::string attention = "dense";
  int32_t samples = 128;
  kernels::AttentionMethod method = kernels::usual_method();
  std::string device = "cpu";
  int32_t threads = 0;
  std::string chunks;  // empty: none, and what serving has
  std::string prompt_tokens = "30000";
  bench::ArrivalWorkload workload;
  bool json = false;
};

struct ArrivalRow {
  std::optional<int32_t> chunk;  // nothing = prompts first
  bench::ArrivalTiming timing;

  // Milliseconds between two tokens that a share of them do not exceed.
  double between(double share) const { return 1e3 * quantile(timing.between, share); }
  double new_tokens_per_second() const { return static_cast<double>(timing.new_tokens) / timing.seconds; }
};

// Numbers of tokens, `least` to 2^20, separated by commas.
std::vector<int32_t> token_counts(std::string_view text, const char* option, int32_t least) {
  constexpr int32_t kMost = 1 << 20;
  std::vector<int32_t> counts;
  for (const std::string_view entry : entries_of(text)) {
    int32_t count = 0;
    const auto [end, error] = std::from_chars(entry.data(), entry.data() + entry.size(), count);
    if (error != std::errc{} || end != entry.data() + entry.size() || count < least || count > kMost) {
      throw UsageError(
          fmt::format("{}: '{}', expected {} to {} tokens, or several such numbers separated by commas",
                      option, entry, least, kMost));
    }
    counts.push_back(count);
  }
  return counts;
}

std::vector<int32_t> chunks_of(const ArrivalBenchOptions& options) {
  if (options.chunks.empty()) return {0, model::serving_chunk({.device = options.device})};
  return token_counts(options.chunks, "--chunked-prefill", 0);
}

ArrivalRow measure_arrivals(const ArrivalBenchOptions& options, int32_t chunk) {
  model::EngineOptions engine_options;
  kernels::AttentionMethod method = options.method;
  kernels::keep_own_parameters(&method);
  engine_options.device = options.device;
  engine_options.dtype = kernels::parse_dtype(options.dtype);
  engine_options.weights = model::parse_weight_storage(options.weights);
  engine_options.keys = kernels::parse_key_format(options.keys);
  engine_options.attention = method;
  engine_options.threads = options.threads;
  engine_options.max_sequences = bench::most_sequences(options.workload);
  if (options.random_weights) engine_options.random_weights = static_cast<uint64_t>(*options.random_weights);
  ArrivalRow row;
  if (chunk > 0) row.chunk = engine_options.chunked_prefill_tokens = chunk;
  engine_options.cache_tokens = bench::cache_tokens(options.workload, engine_options);
  model::Engine engine(options.model, engine_options);
  bench::ArrivalWorkload workload = options.workload;
  if (options.attention == "sampled")
    workload.samples.assign(static_cast<size_t>(engine.config().num_layers), options.samples);
  row.timing = bench::time_arrivals(engine, workload);
  return row;
}

nlohmann::ordered_json arrival_json(const ArrivalRow& row, const ArrivalBenchOptions& options) {
  const bench::ArrivalWorkload& workload = options.workload;
  return {{"what", "arrivals"},
          {"model", options.model.string()},
          {"random_weights", options.random_weights ? nlohmann::ordered_json(*options.random_weights)
                                                    : nlohmann::ordered_json()},
          {"dtype", options.dtype},
          {"weights", options.weights},
          {"keys", options.keys},
          {"attention", options.attention},
          {"estimator", kernels::name(options.method.estimator)},
          {"samples", options.samples},
          {"prefill", kernels::name(options.method.prefill)},
          {"device", options.device},
          {"threads", options.threads},
          {"replies", workload.replies},
          {"reply_prompt_tokens", workload.reply_prompt_tokens},
          {"reply_tokens", workload.reply_tokens},
          {"arrivals", workload.arrivals},
          {"prompt_tokens", workload.prompt_tokens},
          {"every_seconds", workload.every_seconds},
          {"answer_tokens", workload.answer_tokens},
          {"chunked_prefill", row.chunk ? nlohmann::ordered_json(*row.chunk) : nlohmann::ordered_json()},
          {"between_tokens_milliseconds",
           {{"median", bench::json_number(row.between(0.5))},
            {"p95", bench::json_number(row.between(0.95))},
            {"p99", bench::json_number(row.between(0.99))},
            {"max", bench::json_number(row.between(1))}}},
          {"first_token_seconds",
           {{"median", bench::json_number(quantile(row.timing.first_tokens, 0.5))},
            {"max", bench::json_number(quantile(row.timing.first_tokens, 1))}}},
          {"seconds", row.timing.seconds},
          {"computed_prompt_tokens", row.timing.prompt_tokens},
          {"new_tokens", row.timing.new_tokens},
          {"new_tokens_per_second", row.new_tokens_per_second()},
          {"version", version()}};
}

void print_arrivals(const std::vector<ArrivalRow>& rows, const ArrivalBenchOptions& options) {
  const bench::ArrivalWorkload& workload = options.workload;
  std::cout << fmt::format(
      "{} replies of {} tokens after prompts of {}; meanwhile {} prompts of {} tokens, one every {} s, with {} new "
      "tokens each; {} attention on {}, {}\n",
      workload.replies, workload.reply_tokens, workload.reply_prompt_tokens, workload.arrivals,
      options.prompt_tokens, workload.every_seconds, workload.answer_tokens,
      options.attention == "dense"
          ? "exact"
          : fmt::format("{} {}", kernels::name(options.method.estimator), options.samples),
      options.device, options.dtype);
  const bench::Table table({{"chunked prefill", -17},
                            {"between tokens: median ms", 27, 2},
                            {"p95 ms", 10, 2},
                            {"p99 ms", 10, 2},
                            {"max ms", 10, 2},
                            {"first token: median s", 23, 3},
                            {"max s", 9, 3},
                            {"seconds", 10, 2},
                            {"new tokens/s", 14, 1}});
  std::cout << table.head();
  for (const ArrivalRow& row : rows) {
    std::cout << table.line({row.chunk ? fmt::format("{} tokens", *row.chunk) : "prompts first",
                             row.between(0.5), row.between(0.95), row.between(0.99), row.between(1),
                             quantile(row.timing.first_tokens, 0.5), quantile(row.timing.first_tokens, 1),
                             row.timing.seconds, row.new_tokens_per_second()});
  }
}

}  // namespace

int run_bench_arrivals(std::span<const std::string> arguments) {
  ArrivalBenchOptions options;
  std::string what;
  OptionSet set("bench",
                "measure how long running replies wait for their next token while long prompts arrive",
                "allot bench arrivals --model assets/tiny-gsm --replies 4 --prompt-tokens 400 --every 0.2");
  bench::ArrivalWorkload& workload = options.workload;
  set.positional("what", &what, "WHAT", "arrivals");
  declare_model_option(
      &set, &options.model,
      "Hugging Face model: a directory, or org/name[@revision] in the local cache of the hub");
  set.integer("random-weights", &options.random_weights, 0, std::numeric_limits<uint32_t>::max(), "SEED",
              "make the weights at random instead of reading them; config.json is enough then");
  set.choice("dtype", &options.dtype, {"float32", "bfloat16", "float16"},
             "of weights, activations and cache");
  declare_weights_option(&set, &options.weights);
  declare_keys_option(&set, &options.keys);
  set.choice("attention", &options.attention, {"dense", "sampled"}, "of prompts and replies");
  set.integer("samples", &options.samples, 1, 1'000'000, "S",
              "samples per layer of sampled attention, or value rows with --unit rows");
  declare_attention_options(&set, &options.method, EstimatorChoice::kSampled);
  set.text(
      "chunked-prefill", &options.chunks, "TOKENS,…",
      "a row for each: most prompt tokens computed between two tokens of each running reply, 0 for prompts first; "
      "0 and what allot serve has without it");
  set.integer("replies", &workload.replies, 1, 65536, "N", "replies that run from the start on");
  set.integer("reply-prompt-tokens", &workload.reply_prompt_tokens, 1, 1 << 20, "N",
              "length of their prompts");
  set.integer("reply-tokens", &workload.reply_tokens, 1, 1 << 20, "N",
              "new tokens of each, from the moment on at which all have their first one");
  set.integer("arrivals", &workload.arrivals, 1, 65536, "N", "prompts that arrive meanwhile");
  set.text("prompt-tokens", &options.prompt_tokens, "N,…", "their lengths, in turn");
  set.real("every", &workload.every_seconds, 0, 3600, "S", "seconds from one arrival to the next");
  set.integer("answer-tokens", &workload.answer_tokens, 1, 1 << 20, "N",
              "new tokens of each prompt that arrives");
  set.device(&options.device);
  set.integer("threads", &options.threads, 0, 4096, "N", "threads of the engine; 0 takes all cores");
  set.flag("json", &options.json, "print one JSON object a row");
  set.require("model");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  check_unit(options.method);
  workload.prompt_tokens = token_counts(options.prompt_tokens, "--prompt-tokens", 1);
  const std::vector<int32_t> chunks = chunks_of(options);
  if (options.threads == 0) options.threads = static_cast<int32_t>(std::thread::hardware_concurrency());
  std::vector<ArrivalRow> rows;
  for (const int32_t chunk : chunks) {
    spdlog::info("measuring {}", chunk == 0 ? "prompts first" : fmt::format("chunks of {} tokens", chunk));
    rows.push_back(measure_arrivals(options, chunk));
    if (options.json) std::cout << bench::json_line(arrival_json(rows.back(), options));
  }
  if (!options.json) print_arrivals(rows, options);
  return 0;
}

}  // namespace allot::app
