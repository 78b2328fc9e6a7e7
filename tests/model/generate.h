// Requests for the checkpoints of tests/data/parity, and their results in the order of submission.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/engine.h"
#include "model/fidelity.h"

namespace allot::model {

inline constexpr DrawKey kKey{.run_seed = 11, .sampling_seed = 12};

inline EngineOptions small_engine(kernels::DType dtype = kernels::DType::kFloat32) {
  EngineOptions options;
  options.dtype = dtype;
  options.cache_tokens = 8192;
  return options;
}

// Random ids of a vocabulary of 96, without the first two, which are special.
inline std::vector<int32_t> random_prompt(uint32_t seed, size_t length) {
  std::vector<int32_t> prompt;
  for (size_t i = 0; i < length; ++i) {
    prompt.push_back(
        2 + static_cast<int32_t>(draw_bits({.key = {}, .question = seed}, static_cast<uint32_t>(i)) % 94));
  }
  return prompt;
}

inline FidelityText text_of(uint32_t seed, size_t length, int32_t prompt_tokens = 1) {
  return {.ids = random_prompt(seed, length), .prompt_tokens = prompt_tokens, .key = kKey, .question = seed};
}

// Greedy, under exact attention, to its full length whatever the tokens.
inline GenerationRequest request_of(uint64_t id, std::vector<int32_t> prompt, int32_t max_new_tokens) {
  GenerationRequest request;
  request.id = id;
  request.prompt = std::move(prompt);
  request.max_new_tokens = max_new_tokens;
  request.ignore_eos = true;
  return request;
}

// Steps until nothing is pending. Results by id, rising.
inline std::vector<GenerationResult> run_to_end(Engine& engine) {
  std::vector<GenerationResult> results;
  while (engine.pending() > 0) {
    for (GenerationResult& result : engine.step()) results.push_back(std::move(result));
  }
  std::ranges::sort(results, {}, &GenerationResult::id);
  return results;
}

// What the requests of one call of generate have in common.
struct GenerateOptions {
  std::vector<int32_t> samples = {};
  DrawKey key = {};
  SamplingParams sampling = {};
  int32_t max_new_tokens = 8;
};

// Request i has id and question i.
inline std::vector<GenerationResult> generate(Engine& engine,
                                              const std::vector<std::vector<int32_t>>& prompts,
                                              const GenerateOptions& options) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    GenerationRequest request;
    request.id = i;
    request.prompt = prompts[i];
    request.samples = options.samples;
    request.key = options.key;
    request.question = static_cast<uint32_t>(i);
    request.sampling = options.sampling;
    request.max_new_tokens = options.max_new_tokens;
    engine.submit(std::move(request));
  }
  return run_to_end(engine);
}

inline std::vector<std::vector<int32_t>> tokens_of(const std::vector<GenerationResult>& results) {
  std::vector<std::vector<int32_t>> tokens;
  for (const GenerationResult& result : results) tokens.push_back(result.tokens);
  return tokens;
}

}  // namespace allot::model
