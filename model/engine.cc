#include "model/engine.h"

#include <spdlog/fmt/fmt.h>

#include <optional>
#include <utility>

#include "base/device.h"
#include "base/error.h"
#include "model/adapter.h"
#include "model/backend.h"
#include "model/fidelity_passes.h"
#include "model/kv_cache.h"
#include "model/parallel.h"
#include "model/request_checks.h"
#include "model/scheduler.h"
#include "model/weights_source.h"

namespace allot::model {
namespace {

EngineOptions resolved(EngineOptions options) {
  options.device = parse_device(options.device).name();
  check_options(options);
  options.threads = resolve_threads(options.threads);
  return options;
}

std::unique_ptr<Backend> load_backend(const std::filesystem::path& directory, const ModelConfig& config,
                                      const EngineOptions& options, const BackendMaker& make) {
  std::optional<Adapter> adapter;
  if (options.adapter) adapter = Adapter::open(*options.adapter, config);
  const WeightsSource source = options.random_weights
                                   ? WeightsSource::random(*options.random_weights, config)
                                   : WeightsSource::checkpoint(directory, config, std::move(adapter));
  return make(source, config, options);
}

}  // namespace

struct Engine::Impl {
  Impl(const std::filesystem::path& directory, const EngineOptions& wanted, const BackendMaker& make)
      : options(resolved(wanted)),
        config(read_model_config(directory)),
        defaults(read_generation_defaults(directory)),
        backend(load_backend(directory, config, options, make)),
        allocator(backend->cache_shape().num_pages),
        scheduler(*backend, allocator, options, config, defaults.eos_token_ids) {
    options.cache_tokens = allocator.num_pages() * options.page_size;
  }

  RequestChecks check() const { return RequestChecks(config, options); }

  EngineOptions options;
  ModelConfig config;
  GenerationDefaults defaults;
  std::unique_ptr<Backend> backend;
  PageAllocator allocator;
  Scheduler scheduler;
};

Engine::Engine(const std::filesystem::path& model_directory, const EngineOptions& options)
    : Engine(model_directory, options, make_backend) {}
Engine::Engine(const std::filesystem::path& model_directory, const EngineOptions& options,
               const BackendMaker& make_backend)
    : impl_(std::make_unique<Impl>(model_directory, options, make_backend)) {}
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
  return impl_->scheduler.counters();
}
std::vector<LayerExecution> Engine::execution() const {
  return impl_->scheduler.execution();
}
int64_t Engine::pending() const {
  return impl_->scheduler.pending();
}

void Engine::submit(GenerationRequest request) {
  impl_->check().request(request);
  impl_->scheduler.add(std::move(request));
}

std::vector<GenerationResult> Engine::step() {
  return impl_->scheduler.step();
}

bool Engine::cancel(uint64_t id) {
  return impl_->scheduler.cancel(id);
}

void Engine::wait_for_device() {
  impl_->backend->wait();
}

std::vector<float> Engine::logits(std::span<const int32_t> ids, std::span<const int32_t> samples, DrawKey key,
                                  uint32_t question) {
  impl_->check().text(ids, samples);
  const auto length = static_cast<int64_t>(ids.size());
  const int64_t needed = pages_for(length, impl_->options.page_size);
  const OwnedPages pages = impl_->allocator.allocate(needed);
  if (pages.empty()) {
    throw InvalidArgument(
        fmt::format("logits of {} tokens need {} pages of the KV cache, but requests in flight leave {}; "
                    "finish them first",
                    length, needed, impl_->allocator.free_pages()));
  }
  std::vector<float> result;
  result.reserve(ids.size() * impl_->config.vocab_size);
  for (int64_t cached = 0; cached < length;) {
    const int64_t end = cached + prefill_tokens(length, length - cached, prefill_chunk(impl_->options));
    const SequencePart part{.tokens = ids,
                            .begin = cached,
                            .end = end,
                            .pages = pages.numbers(),
                            .samples = samples,
                            .draws = {key, question},
                            .first_output = 0};
    const ForwardBatch batch = make_batch({&part, 1}, impl_->config.num_layers, impl_->options.page_size);
    const std::span<const float> rows = impl_->backend->logits(batch, impl_->options.attention);
    result.insert(result.end(), rows.begin(), rows.end());
    cached = end;
  }
  return result;
}

std::vector<Fidelity> Engine::fidelity(std::span<const FidelityText> texts,
                                       std::span<const FidelityPair> pairs, const FidelityOptions& options) {
  impl_->check().fidelity(texts, pairs, options.mode);
  return measure_fidelity(*impl_->backend, impl_->allocator, impl_->options, impl_->config.num_layers, texts,
                          pairs, options);
}

}  // namespace allot::model
