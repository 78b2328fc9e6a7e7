// What the tests of the engine on a CUDA device share: engines on both devices, runs of requests, and how
// tokens are judged.
//
// Sums are made in another order on the device than on the CPU, in decode than in prefill, and for one number
// of rows than for another, so tokens are not compared one by one between those. Each token is instead held
// against teacher-forced logits, with the rounding noise of the checkpoint as the measure: the distance of
// transformers' bfloat16 logits from its float32 ones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "model/engine.h"
#include "tests/kernels/cuda/cuda_launch.h"
#include "tests/model/checkpoints.h"
#include "tests/model/generate.h"
#include "tests/model/golden.h"

namespace allot::model {

inline const std::filesystem::path kDeviceModel = kCheckpoints / "llama_head64";  // 2 layers, 512 positions
inline constexpr DrawKey kOtherKey{.run_seed = 11, .sampling_seed = 13};

inline EngineOptions on_cpu(EngineOptions options = {}) {
  options.device = "cpu";
  options.dtype = kernels::DType::kBFloat16;
  if (options.cache_tokens == 0) options.cache_tokens = 8192;
  return options;
}

inline EngineOptions on_device(EngineOptions options = {}) {
  options = on_cpu(options);
  options.device = "cuda:0";
  return options;
}

// The root mean square distance of bfloat16 logits from float32 ones that rounding causes.
inline double rounding_noise(const Golden& golden) {
  return root_mean_square_difference(golden.logits_bfloat16, golden.logits);
}

inline double rounding_noise(const std::filesystem::path& checkpoint) {
  return rounding_noise(read_golden(checkpoint));
}

// How far chosen tokens are below the best logit of their rows.
struct Gaps {
  double largest = 0;
  double mean = 0;
};

// The tokens that `request` got, held against teacher-forced logits of `judge` with the draws of `request`.
inline Gaps gaps_of(Engine& judge, const GenerationRequest& request, const std::vector<int32_t>& tokens) {
  std::vector<int32_t> ids = request.prompt;
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  const std::vector<float> logits = judge.logits(ids, request.samples, request.key, request.question);
  Gaps gaps;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = logits.begin() + static_cast<int64_t>(request.prompt.size() - 1 + i) * kVocabulary;
    const double gap = *std::max_element(row, row + kVocabulary) - row[tokens[i]];
    gaps.largest = std::max(gaps.largest, gap);
    gaps.mean += gap / static_cast<double>(tokens.size());
  }
  return gaps;
}

// Greedy tokens under exact attention are best but for rounding. Two evaluations of two logits have four
// roundings of one noise each, so a gap that rounding alone opens has at most twice the noise as standard
// deviation; five of those leave no room for a wrong token, which is off by the spread of the logits.
inline double tie(double noise) {
  return 10 * noise;
}

// Steps until nothing is pending and returns the tokens in the order of `requests`, whose ids are distinct.
inline std::vector<std::vector<int32_t>> run(Engine& engine, const std::vector<GenerationRequest>& requests) {
  for (const GenerationRequest& request : requests) engine.submit(request);
  const std::vector<GenerationResult> results = run_to_end(engine);
  std::vector<std::vector<int32_t>> tokens;
  for (const GenerationRequest& request : requests) {
    const auto result = std::ranges::find(results, request.id, &GenerationResult::id);
    if (result == results.end()) {
      ADD_FAILURE() << "request " << request.id << " never finished";
      tokens.emplace_back();
    } else {
      tokens.push_back(result->tokens);
    }
  }
  return tokens;
}

// Requests with prompts of 1 to `longest` tokens, each with a question of its own.
inline std::vector<GenerationRequest> ragged_requests(size_t count, size_t longest, int32_t max_new_tokens) {
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    requests.push_back(
        request_of(i, random_prompt(static_cast<uint32_t>(i), 1 + (37 * i) % longest), max_new_tokens));
    requests.back().key = kKey;
    requests.back().question = static_cast<uint32_t>(i);
  }
  return requests;
}

class CudaEngine : public kernels::testing::CudaTest {};

}  // namespace allot::model
