#include "model/request_checks.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "base/error.h"
#include "episode/samples.h"
#include "kernels/estimator.h"
#include "kernels/sampling.h"
#include "model/storage_formats.h"

namespace allot::model {
namespace {

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

}  // namespace

void check_options(const EngineOptions& options) {
  std::vector<std::string> faults;
  const auto at_least = [&](const char* field, int64_t value, int64_t least) {
    require_least(field, value, least, &faults);
  };
  at_least("page_size", options.page_size, 1);
  at_least("max_sequences", options.max_sequences, 1);
  at_least("cache_tokens", options.cache_tokens, 0);
  at_least("prefill_chunk_tokens", prefill_chunk(options), 2);
  if (options.chunked_prefill_tokens) {
    at_least("chunked_prefill_tokens", *options.chunked_prefill_tokens, 2);
    if (*options.chunked_prefill_tokens > prefill_chunk(options)) {
      faults.push_back(fmt::format(
          "chunked_prefill_tokens is {}, expected at most the {} prompt tokens that a pass has on {}",
          *options.chunked_prefill_tokens, prefill_chunk(options), options.device));
    }
  }
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
  require_formats(options.weights, options.keys, parse_device(options.device));
}

void RequestChecks::check_ids(std::span<const int32_t> ids, std::string_view what) const {
  if (ids.empty()) refuse("{} is empty; expected at least one token", what);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config_->vocab_size) {
      refuse("{} has token id {} at place {}, expected 0 to {}; was it made by another model's tokenizer?",
             what, ids[i], i, config_->vocab_size - 1);
    }
  }
}

void RequestChecks::check_samples(std::span<const int32_t> samples, int64_t length,
                                  const kernels::AttentionMethod& method) const {
  if (samples.empty()) return;
  const auto entries = static_cast<int64_t>(samples.size());
  if (entries != config_->num_layers && entries != config_->num_layers * int64_t{config_->num_kv_heads}) {
    refuse(
        "the schedule has {} entries, expected {}, one for each layer of the model, or {} times as many, one for each "
        "of its KV heads",
        samples.size(), config_->num_layers, config_->num_kv_heads);
  }
  if (entries != config_->num_layers) check_by_head(method);
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

// Whether this engine follows schedules that have a budget for each KV head.
void RequestChecks::check_by_head(const kernels::AttentionMethod& method) const {
  if (options_->device != "cpu") {
    refuse(
        "the schedule has a budget for each KV head, and device {} takes one for each layer; use --device cpu",
        options_->device);
  }
  if (options_->count_execution)
    refuse("what layers execute is counted by layer, and the schedule has a budget for each KV head");
  if (method.estimator == kernels::Estimator::kPooled) {
    refuse(
        "estimator {} chooses rows of all KV heads of a layer together, and the schedule has a budget for each",
        kernels::name(method.estimator));
  }
}

void RequestChecks::check_length(int64_t prompt, int64_t new_tokens) const {
  const int64_t length = prompt + new_tokens;
  if (length > config_->max_position_embeddings) {
    refuse("{} prompt tokens and {} new tokens are {} in all, but the model has {} positions", prompt,
           new_tokens, length, config_->max_position_embeddings);
  }
  if (length > options_->cache_tokens) {
    refuse("{} prompt tokens and {} new tokens are {} in all, but the KV cache holds {}; raise cache_tokens",
           prompt, new_tokens, length, options_->cache_tokens);
  }
}

void RequestChecks::request(const GenerationRequest& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  check_ids(request.prompt, "the prompt");
  if (request.max_new_tokens < 1) refuse("max_new_tokens is {}, expected at least 1", request.max_new_tokens);
  check_length(prompt, request.max_new_tokens);
  check_samples(request.samples, prompt + request.max_new_tokens, options_->attention);
  validate(request.sampling);
}

void RequestChecks::text(std::span<const int32_t> ids, std::span<const int32_t> samples) const {
  const auto tokens = static_cast<int64_t>(ids.size());
  check_ids(ids, "the sequence");
  check_length(tokens, 0);
  check_samples(samples, tokens, options_->attention);
}

void RequestChecks::fidelity(std::span<const FidelityText> texts, std::span<const FidelityPair> pairs,
                             FidelityMode mode) const {
  for (size_t i = 0; i < texts.size(); ++i) {
    const FidelityText& text = texts[i];
    const auto tokens = static_cast<int64_t>(text.ids.size());
    check_ids(text.ids, fmt::format("text {}", i));
    check_length(tokens, 0);
    if (mode != FidelityMode::kPrefill && (text.prompt_tokens < 1 || text.prompt_tokens > tokens))
      refuse("text {} has {} prompt tokens, expected 1 to its {} tokens", i, text.prompt_tokens, tokens);
  }
  for (const FidelityPair& pair : pairs) {
    if (pair.text >= texts.size()) refuse("a pair names text {} of {} texts", pair.text, texts.size());
    const std::vector<std::string> faults = method_faults(pair.attention);
    if (!faults.empty()) refuse("the attention method of a pair: {}", fmt::join(faults, "; "));
    require_simulation(pair.simulated_cache, config_->head_dim, parse_device(options_->device));
    check_samples(pair.samples, static_cast<int64_t>(texts[pair.text].ids.size()), pair.attention);
    if (static_cast<int64_t>(pair.samples.size()) > config_->num_layers)
      refuse("divergences are measured, and rows counted, of schedules with an entry for each layer");
  }
}

}  // namespace allot::model
