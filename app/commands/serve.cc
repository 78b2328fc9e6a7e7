// allot serve: an OpenAI-compatible HTTP endpoint over the engine, for measurements on one device.
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <iostream>
#include <optional>

#include "app/cli/command.h"
#include "app/cli/stop_signal.h"
#include "app/scoring/reply_engine.h"
#include "app/serve/completion_server.h"
#include "base/error.h"
#include "base/log.h"
#include "model/hub_cache.h"

namespace allot::app {
namespace {

// The engine as the batcher sees it.
class ServedEngine final : public TokenEngine {
 public:
  ServedEngine(const std::filesystem::path& model, const model::EngineOptions& options)
      : engine_(model, options) {}
  void submit(model::GenerationRequest request) override { engine_.submit(std::move(request)); }
  std::vector<model::GenerationResult> step() override { return engine_.step(); }
  bool cancel(uint64_t id) override { return engine_.cancel(id); }
  int64_t pending() const override { return engine_.pending(); }
  const model::Engine& engine() const { return engine_; }

 private:
  model::Engine engine_;
};

struct ServeOptions : ReplyOptions {
  std::string schedule;
  std::string address = "127.0.0.1:8000";
  std::string monitor;
  std::string model_name;
  std::optional<std::filesystem::path> api_keys;
  int32_t connections = 256;
  int64_t max_requests = 512;
  int64_t max_body_bytes = int64_t{4} << 20;
  int32_t drain_seconds = 30;
  std::optional<int32_t> chunked_prefill;  // 0 = prompts that wait are computed first
};

void declare_serve_options(OptionSet* set, ServeOptions* options) {
  declare_reply_options(set, options, PromptStyles::kNone);
  set->text("schedule", &options->schedule, "SCHEDULE",
            fmt::format("{}; default config where there is one, else dense", kScheduleForms).c_str());
  set->suggest("schedule", {"dense", "config"});
  declare_executed_out(set, options);
  set->text("address", &options->address, "ADDRESS:PORT",
            "where to listen; port * lets the system choose one; beyond loopback only with --api-keys");
  set->text(
      "monitor", &options->monitor, "ADDRESS:PORT",
      "answer /health and /metrics there, too, without a key and on connections of their own, so that a "
      "probe need not wait until a stream ends; port * lets the system choose one");
  set->text("model-name", &options->model_name, "NAME",
            "what requests call the model; default the directory's name");
  set->path("api-keys", &options->api_keys, "file with a key a line; requests then need one as bearer token");
  set->integer("connections", &options->connections, 1, 4096, "N",
               "connections answered at once; further ones wait");
  set->integer("max-requests", &options->max_requests, 1, 1'000'000, "N",
               "replies that run or wait for room; further ones are refused with status 429");
  set->integer(
      "chunked-prefill", &options->chunked_prefill, 0, 1 << 20, "TOKENS",
      fmt::format("most prompt tokens computed between two tokens of each running reply, so that long "
                  "prompts do not stall replies; 0 computes waiting prompts first, for the most tokens "
                  "a second; {} on a CUDA device and {} on the CPU without it",
                  model::serving_chunk({.device = "cuda:0"}), model::serving_chunk({.device = "cpu"}))
          .c_str());
  set->integer("max-body-bytes", &options->max_body_bytes, 1024, int64_t{1} << 30, "N",
               "largest body of a request");
  set->integer("drain-seconds", &options->drain_seconds, 0, 3600, "S",
               "how long replies may go on after SIGINT or SIGTERM");
}

ServerOptions server_options(const ServeOptions& options) {
  ServerOptions server;
  server.address = aggregator::parse_http_address(options.address);
  if (options.api_keys) server.keys = ApiKeys::read(*options.api_keys);
  if (server.keys.empty() && !server.address.loopback()) {
    throw UsageError(
        "--address " + options.address +
        " can be reached from other machines, and anyone there could use the model; give --api-keys "
        "FILE, or listen on 127.0.0.1");
  }
  if (!options.monitor.empty()) server.monitor = aggregator::parse_http_address(options.monitor);
  server.connections = options.connections;
  server.max_body_bytes = options.max_body_bytes;
  return server;
}

ServedModel served_model(const ServeOptions& options, const ReplyPlan& plan,
                         const model::Tokenizer& tokenizer, const model::Engine& engine) {
  ServedModel served;
  served.limits = {.model = options.model_name,
                   .sampling = generation_limits(plan).sampling,
                   .max_new_tokens = plan.conditions.generation.max_new_tokens};
  if (tokenizer.chat_template()) {
    try {
      served.chat =
          std::make_shared<const model::ChatTemplate>(*tokenizer.chat_template(), tokenizer.special_tokens());
    } catch (const Error& error) {
      served.chat_refusal = error.what();
    }
  }
  served.samples = [named = plan.schedules.front()](int64_t tokens) {
    return named.samples_of_prompt(tokens);
  };
  served.run_seed = plan.conditions.seed;
  served.positions =
      std::min<int64_t>(engine.config().max_position_embeddings, engine.options().cache_tokens);
  served.description = describe(plan);
  return served;
}

// The engine of the plan, with prompts in chunks beside replies. Throws UsageError for a chunk that a pass
// cannot have.
model::EngineOptions serving_engine(const ServeOptions& options, const ReplyPlan& plan) {
  model::EngineOptions engine = engine_options(options, plan.conditions);
  const int32_t tokens = options.chunked_prefill.value_or(model::serving_chunk(engine));
  if (tokens == 0) return engine;
  if (const int32_t most = model::prefill_chunk(engine); tokens < 2 || tokens > most) {
    throw UsageError(fmt::format(
        "--chunked-prefill {}: expected 2 to {}, the prompt tokens of a pass on {}, or 0 to compute waiting "
        "prompts first",
        tokens, most, engine.device));
  }
  engine.chunked_prefill_tokens = tokens;
  return engine;
}

// Waits for a signal, then lets what runs go on for a while. False when the engine failed.
bool wait_for_end(Batcher* batcher, std::chrono::seconds drain) {
  constexpr std::chrono::milliseconds kLookAgain(100);
  const auto& stop = watch_stop_signals();
  while (!stop.load() && !batcher->failed()) pause_for(kLookAgain);
  batcher->refuse_further();
  const auto until = std::chrono::steady_clock::now() + drain;
  while (batcher->counters().running > 0 && std::chrono::steady_clock::now() < until) pause_for(kLookAgain);
  return !batcher->failed();
}

}  // namespace

int run_serve(std::span<const std::string> arguments) {
  ServeOptions options;
  options.bands = Bands::kFollowed;
  OptionSet set(
      "serve",
      "answer OpenAI-compatible HTTP requests (/v1/completions, /v1/chat/completions, /v1/models, /health, "
      "/metrics) under one schedule; a server to measure with, on one device, not one for production",
      "allot serve --model assets/tiny-gsm --schedule uniform:16 --address 127.0.0.1:8000");
  declare_serve_options(&set, &options);
  ReplyPlan plan;
  set.resolve_with([&] {
    if (options.schedule.empty()) options.schedule = usual_schedule(options.model);
    if (options.model_name.empty()) options.model_name = model::model_name(options.model);
    plan = plan_replies(std::array{options.schedule}, std::nullopt, &options, &set);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const ServerOptions where = server_options(options);
  const model::EngineOptions engine_of_plan = serving_engine(options, plan);
  watch_stop_signals();
  std::cerr << describe(plan);
  const auto tokenizer = model::Tokenizer::load(options.model);
  auto served_engine = std::make_unique<ServedEngine>(options.model, engine_of_plan);
  const model::Engine& engine = served_engine->engine();
  ServedModel served = served_model(options, plan, tokenizer, engine);
  if (!served.chat_refusal.empty())
    spdlog::warn("/v1/chat/completions is refused with this model: {}", served.chat_refusal);
  Batcher batcher(std::move(served_engine), tokenizer, {.most_requests = options.max_requests});
  const CompletionServer server(where, std::move(served), tokenizer, &batcher);
  std::cout << server.url() << std::endl;
  if (!server.monitor_url().empty()) spdlog::info("health and metrics are at {}, too", server.monitor_url());
  const bool well = wait_for_end(&batcher, std::chrono::seconds(options.drain_seconds));
  batcher.end();
  write_executed(plan, options, engine);
  return well ? 0 : 1;
}

}  // namespace allot::app
