#include "model/engine.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <deque>

#include "base/device.h"
#include "base/error.h"
#include "episode/samples.h"
#include "kernels/sampling.h"
#include "model/backend.h"
#include "model/fidelity_passes.h"
#include "model/kv_cache.h"
#include "model/parallel.h"
#include "model/weights_source.h"

namespace allot::model {
namespace {

using Seconds = std::chrono::duration<double>;
using SteadyClock = std::chrono::steady_clock;

template <class... Args>
[[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) {
  throw InvalidArgument(fmt::format(text, std::forward<Args>(args)...));
}

void require_least(const char* field, int64_t value, int64_t least, std::vector<std::string>* faults) {
  if (value < least) faults->push_back(fmt::format("{} is {}, expected at least {}", field, value, least));
}

std::vector<std::string> method_faults(const kernels::AttentionMethod& method) {
  std::vector<std::string> faults;
  require_least("tile", method.tile, 1, &faults);
  if (method.score_stage != kernels::ScoreStage::kExact)
    require_least("score_budget", method.score_budget, 1, &faults);
  for (std::string& fault : kernels::estimator_faults(method)) faults.push_back(std::move(fault));
  return faults;
}

void check_options(const EngineOptions& options) {
  std::vector<std::string> faults;
  const auto at_least = [&](const char* field, int64_t value, int64_t least) {
    require_least(field, value, least, &faults);
  };
  at_least("page_size", options.page_size, 1);
  at_least("max_sequences", options.max_sequences, 1);
  at_least("cache_tokens", options.cache_tokens, 0);
  at_least("prefill_chunk_tokens", prefill_chunk(options), 2);
  at_least("threads", options.threads, 0);
  for (std::string& fault : method_faults(options.attention)) faults.push_back(std::move(fault));
  if (options.adapter && options.random_weights) {
    faults.push_back(
        fmt::format("adapter {} with random_weights {}, expected one of them: an adapter belongs to the "
                    "weights that it was trained on",
                    options.adapter->string(), *options.random_weights));
  }
  if (!faults.empty()) throw InvalidArgument(fmt::format("engine options: {}", fmt::join(faults, "; ")));
  if (options.dtype == kernels::DType::kFloat16 && options.device == "cpu") {
    throw Unsupported(
        "engine options: dtype float16 has CUDA kernels only, and device is cpu; use bfloat16 or float32, "
        "or another device");
  }
}

EngineOptions resolved(EngineOptions options) {
  options.device = parse_device(options.device).name();
  check_options(options);
  options.threads = resolve_threads(options.threads);
  return options;
}

std::unique_ptr<Backend> load_backend(const std::filesystem::path& directory, const ModelConfig& config,
                                      const EngineOptions& options) {
  std::optional<Adapter> adapter;
  if (options.adapter) adapter = Adapter::open(*options.adapter, config);
  const WeightsSource source = options.random_weights
                                   ? WeightsSource::random(*options.random_weights, config)
                                   : WeightsSource::checkpoint(directory, config, std::move(adapter));
  return make_backend(source, config, options);
}

// A request and its progress.
struct Sequence {
  GenerationRequest request;
  std::vector<int32_t> tokens;  // prompt and output
  OwnedPages pages;             // for all tokens that it may ever have
  int32_t slot = 0;             // while it runs
  int64_t cached = 0;           // tokens whose keys and values are in the cache
  int64_t prefill_end = 0;      // tokens before it are computed in chunks, the others one a step

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  std::span<const int32_t> output() const { return std::span(tokens).subspan(request.prompt.size()); }
  bool in_prefill() const { return cached < prefill_end; }
};

// One sequence's part of a forward pass.
struct Advance {
  Sequence* sequence;
  int64_t new_tokens;
  // Whether the token after it is to be chosen.
  bool is_ready() const { return sequence->cached + new_tokens == sequence->size(); }
};

// The advance as the pass sees it, with exact attention where `dense`. Only the row of the sequence's last
// token is an output.
SequencePart part_of(const Advance& advance, bool dense) {
  const Sequence& sequence = *advance.sequence;
  return {.tokens = sequence.tokens,
          .begin = sequence.cached,
          .end = sequence.cached + advance.new_tokens,
          .pages = sequence.pages.numbers(),
          .samples = dense ? std::span<const int32_t>() : sequence.request.samples,
          .draws = {sequence.request.key, sequence.request.question},
          .first_output = sequence.size() - 1};
}

TokenChoice choice_of(const Sequence& sequence) {
  return {.slot = sequence.slot,
          .sampling = sequence.request.sampling,
          .draws = {sequence.request.key, sequence.request.question},
          .position = static_cast<uint32_t>(sequence.size() - 1)};
}

}  // namespace

struct Engine::Impl {
  Impl(const std::filesystem::path& directory, const EngineOptions& wanted)
      : options(resolved(wanted)),
        config(read_model_config(directory)),
        defaults(read_generation_defaults(directory)),
        backend(load_backend(directory, config, options)),
        allocator(backend->cache_shape().num_pages) {
    options.cache_tokens = allocator.num_pages() * options.page_size;
    for (int32_t slot = options.max_sequences - 1; slot >= 0; --slot) free_slots.push_back(slot);
    if (!options.count_execution) return;
    execution.resize(static_cast<size_t>(config.num_layers));
    rows_read.resize(execution.size());
    if (!backend->count_rows(rows_read)) rows_read.clear();
  }

  void check_ids(std::span<const int32_t> ids, std::string_view what) const;
  void check_samples(std::span<const int32_t> samples, int64_t length,
                     const kernels::AttentionMethod& method) const;
  void check_length(int64_t prompt, int64_t new_tokens) const;
  void admit();
  std::vector<Advance> next_advances();
  void release(Sequence& sequence);
  std::vector<GenerationResult> take_tokens(std::span<Sequence* const> ready,
                                            std::span<const int32_t> tokens);
  std::optional<Finish> finished(const Sequence& sequence) const;

  EngineOptions options;
  ModelConfig config;
  GenerationDefaults defaults;
  std::unique_ptr<Backend> backend;
  PageAllocator allocator;
  std::vector<int32_t> free_slots;  // a stack
  std::deque<Sequence> queue;
  std::deque<Sequence> running;  // in order of admission; addresses stay while a step runs
  EngineCounters counters;
  std::vector<LayerExecution> execution;  // [num_layers] where it is counted, but for the rows
  std::vector<int64_t> rows_read;         // [num_layers] where the device counts them
};

void Engine::Impl::check_ids(std::span<const int32_t> ids, std::string_view what) const {
  if (ids.empty()) refuse("{} is empty; expected at least one token", what);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocab_size) {
      refuse("{} has token id {} at place {}, expected 0 to {}; was it made by another model's tokenizer?",
             what, ids[i], i, config.vocab_size - 1);
    }
  }
}

void Engine::Impl::check_samples(std::span<const int32_t> samples, int64_t length,
                                 const kernels::AttentionMethod& method) const {
  if (samples.empty()) return;
  if (static_cast<int64_t>(samples.size()) != config.num_layers) {
    refuse("the schedule has {} entries, expected {}, one for each layer of the model", samples.size(),
           config.num_layers);
  }
  const int32_t least = kernels::least_samples(method, static_cast<int32_t>(length));
  for (size_t layer = 0; layer < samples.size(); ++layer) {
    if (samples[layer] == kExactLayer) continue;
    if (samples[layer] < 0 || samples[layer] > kernels::kMaxBudget) {
      refuse("the schedule gives layer {} {} samples, expected 0 to {}, or {} for exact attention", layer,
             samples[layer], kernels::kMaxBudget, kExactLayer);
    }
    if (samples[layer] > 0 && samples[layer] < least) {
      refuse(
          "the schedule gives layer {} {} samples, but estimator {} needs one in each of {} tiles of {} keys "
          "for {} tokens; raise the budget, enlarge the tile or use sys",
          layer, samples[layer], kernels::name(method.estimator), least, method.tile, length);
    }
  }
}

void Engine::Impl::check_length(int64_t prompt, int64_t new_tokens) const {
  const int64_t length = prompt + new_tokens;
  if (length > config.max_position_embeddings) {
    refuse("{} prompt tokens and {} new tokens are {} in all, but the model has {} positions", prompt,
           new_tokens, length, config.max_position_embeddings);
  }
  if (length > options.cache_tokens) {
    refuse("{} prompt tokens and {} new tokens are {} in all, but the KV cache holds {}; raise cache_tokens",
           prompt, new_tokens, length, options.cache_tokens);
  }
}

void Engine::Impl::admit() {
  while (!queue.empty() && !free_slots.empty()) {
    Sequence& next = queue.front();
    // All its pages are allocated at once: a sequence that was admitted can always finish, so none
    // is ever preempted.
    next.pages = allocator.allocate(pages_for(next.size() + next.request.max_new_tokens, options.page_size));
    if (next.pages.empty()) return;
    next.slot = free_slots.back();
    backend->open_slot(next.slot, next.request.prompt);
    free_slots.pop_back();
    running.push_back(std::move(next));
    queue.pop_front();
  }
}

// Fills the pass with prompts that are not in the cache yet, oldest first, up to a chunk; when there are
// none, with one token of every sequence.
std::vector<Advance> Engine::Impl::next_advances() {
  std::vector<Advance> advances;
  int64_t room = prefill_chunk(options);
  for (Sequence& sequence : running) {
    if (room <= 0) break;
    if (!sequence.in_prefill()) continue;
    const int64_t new_tokens =
        prefill_tokens(sequence.prefill_end, sequence.prefill_end - sequence.cached, room);
    if (new_tokens == 0) break;
    advances.push_back({&sequence, new_tokens});
    room -= new_tokens;
  }
  if (!advances.empty()) return advances;
  for (Sequence& sequence : running) advances.push_back({&sequence, 1});
  return advances;
}

std::optional<Finish> Engine::Impl::finished(const Sequence& sequence) const {
  const std::span<const int32_t> output = sequence.output();
  const bool is_eos =
      std::ranges::find(defaults.eos_token_ids, output.back()) != defaults.eos_token_ids.end();
  if (is_eos && !sequence.request.ignore_eos) return Finish::kEos;
  if (sequence.request.stop && sequence.request.stop(output)) return Finish::kStop;
  if (static_cast<int32_t>(output.size()) == sequence.request.max_new_tokens) return Finish::kLength;
  return std::nullopt;
}

// Frees pages and slot of a sequence that leaves `running`.
void Engine::Impl::release(Sequence& sequence) {
  sequence.pages = {};
  free_slots.push_back(sequence.slot);
}

// Appends the next token to every sequence that is ready, and frees the finished ones.
std::vector<GenerationResult> Engine::Impl::take_tokens(std::span<Sequence* const> ready,
                                                        std::span<const int32_t> tokens) {
  std::vector<GenerationResult> results;
  for (size_t i = 0; i < ready.size(); ++i) {
    Sequence& sequence = *ready[i];
    sequence.tokens.push_back(tokens[i]);
    const std::optional<Finish> finish = finished(sequence);
    if (!finish) continue;
    results.push_back({.id = sequence.request.id,
                       .tokens = {sequence.output().begin(), sequence.output().end()},
                       .finish = *finish,
                       .prompt_tokens = static_cast<int32_t>(sequence.prompt_size())});
    release(sequence);
  }
  if (!results.empty())
    std::erase_if(running, [](const Sequence& sequence) { return sequence.pages.empty(); });
  return results;
}

Engine::Engine(const std::filesystem::path& model_directory, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model_directory, options)) {}
Engine::~Engine() = default;

const ModelConfig& Engine::config() const {
  return impl_->config;
}
const GenerationDefaults& Engine::generation_defaults() const {
  return impl_->defaults;
}
const EngineOptions& Engine::options() const {
  return impl_->options;
}
const EngineCounters& Engine::counters() const {
  return impl_->counters;
}
std::vector<LayerExecution> Engine::execution() const {
  std::vector<LayerExecution> layers = impl_->execution;
  for (size_t i = 0; i < impl_->rows_read.size(); ++i) layers[i].rows = impl_->rows_read[i];
  return layers;
}
int64_t Engine::pending() const {
  return static_cast<int64_t>(impl_->queue.size() + impl_->running.size());
}

void Engine::submit(GenerationRequest request) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  impl_->check_ids(request.prompt, "the prompt");
  if (request.max_new_tokens < 1) refuse("max_new_tokens is {}, expected at least 1", request.max_new_tokens);
  impl_->check_length(prompt, request.max_new_tokens);
  impl_->check_samples(request.samples, prompt + request.max_new_tokens, impl_->options.attention);
  validate(request.sampling);

  Sequence sequence;
  sequence.request = std::move(request);
  sequence.tokens = sequence.request.prompt;
  sequence.prefill_end = prompt;
  if (impl_->options.skip_prefill) sequence.prefill_end = sequence.cached = prompt - 1;
  impl_->queue.push_back(std::move(sequence));
}

std::vector<GenerationResult> Engine::step() {
  impl_->admit();
  if (impl_->running.empty()) return {};
  const auto start = SteadyClock::now();
  const std::vector<Advance> advances = impl_->next_advances();
  const bool prefill = advances.front().sequence->in_prefill();
  const bool dense = prefill && impl_->options.attention.prefill == kernels::Prefill::kDense;
  std::vector<Sequence*> ready;
  std::vector<TokenChoice> choices;
  std::vector<SequencePart> parts;
  for (const Advance& advance : advances) {
    parts.push_back(part_of(advance, dense));
    if (!advance.is_ready()) continue;
    ready.push_back(advance.sequence);
    choices.push_back(choice_of(*advance.sequence));
  }
  const ForwardBatch batch = make_batch(parts, impl_->config.num_layers, impl_->options.page_size);
  const std::span<const int32_t> tokens = impl_->backend->step(batch, impl_->options.attention, choices);
  count_pass(batch, impl_->options.attention, impl_->config.num_q_heads, impl_->config.num_kv_heads,
             impl_->execution);

  EngineCounters& counters = impl_->counters;
  for (const auto& [sequence, new_tokens] : advances) {
    sequence->cached += new_tokens;
    (prefill ? counters.prefill_tokens : counters.decode_tokens) += new_tokens;
  }
  std::vector<GenerationResult> results = impl_->take_tokens(ready, tokens);
  (prefill ? counters.prefill_seconds : counters.decode_seconds) +=
      Seconds(SteadyClock::now() - start).count();
  return results;
}

bool Engine::cancel(uint64_t id) {
  const auto has_id = [id](const Sequence& sequence) { return sequence.request.id == id; };
  if (const auto queued = std::ranges::find_if(impl_->queue, has_id); queued != impl_->queue.end()) {
    impl_->queue.erase(queued);
    return true;
  }
  const auto in_flight = std::ranges::find_if(impl_->running, has_id);
  if (in_flight == impl_->running.end()) return false;
  impl_->release(*in_flight);
  impl_->running.erase(in_flight);
  return true;
}

std::vector<float> Engine::logits(std::span<const int32_t> ids, std::span<const int32_t> samples, DrawKey key,
                                  uint32_t question) {
  const int64_t length = static_cast<int64_t>(ids.size());
  impl_->check_ids(ids, "the sequence");
  impl_->check_length(length, 0);
  impl_->check_samples(samples, length, impl_->options.attention);

  Sequence sequence;
  sequence.tokens.assign(ids.begin(), ids.end());
  sequence.request.samples.assign(samples.begin(), samples.end());
  sequence.request.key = key;
  sequence.request.question = question;
  const int64_t needed = pages_for(length, impl_->options.page_size);
  sequence.pages = impl_->allocator.allocate(needed);
  if (sequence.pages.empty()) {
    refuse(
        "logits of {} tokens need {} pages of the KV cache, but requests in flight leave {}; "
        "finish them first",
        length, needed, impl_->allocator.free_pages());
  }
  std::vector<float> result;
  result.reserve(ids.size() * impl_->config.vocab_size);
  while (sequence.cached < length) {
    const Advance chunk{&sequence,
                        prefill_tokens(length, length - sequence.cached, prefill_chunk(impl_->options))};
    SequencePart part = part_of(chunk, /*dense=*/false);
    part.first_output = 0;
    const ForwardBatch batch = make_batch({&part, 1}, impl_->config.num_layers, impl_->options.page_size);
    const std::span<const float> rows = impl_->backend->logits(batch, impl_->options.attention);
    sequence.cached += chunk.new_tokens;
    result.insert(result.end(), rows.begin(), rows.end());
  }
  return result;
}

std::vector<Fidelity> Engine::fidelity(std::span<const FidelityText> texts,
                                       std::span<const FidelityPair> pairs, const FidelityOptions& options) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const FidelityText& text = texts[i];
    const auto length = static_cast<int64_t>(text.ids.size());
    impl_->check_ids(text.ids, fmt::format("text {}", i));
    impl_->check_length(length, 0);
    if (options.mode != FidelityMode::kPrefill && (text.prompt_tokens < 1 || text.prompt_tokens > length))
      refuse("text {} has {} prompt tokens, expected 1 to its {} tokens", i, text.prompt_tokens, length);
  }
  for (const FidelityPair& pair : pairs) {
    if (pair.text >= texts.size()) refuse("a pair names text {} of {} texts", pair.text, texts.size());
    const std::vector<std::string> faults = method_faults(pair.attention);
    if (!faults.empty()) refuse("the attention method of a pair: {}", fmt::join(faults, "; "));
    impl_->check_samples(pair.samples, static_cast<int64_t>(texts[pair.text].ids.size()), pair.attention);
  }
  return measure_fidelity(*impl_->backend, impl_->allocator, impl_->options, impl_->config.num_layers, texts,
                          pairs, options);
}

}  // namespace allot::model
