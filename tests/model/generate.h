// Runs requests to their end and returns the results in the order of submission.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/engine.h"

namespace allot::model {

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
