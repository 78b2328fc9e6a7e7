// Requests whose replies end in every way, and replies to compare: one engine's against another's.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/engine.h"
#include "tests/model/generate.h"

namespace allot::model {

inline constexpr SamplingParams kDrawn{.temperature = 1, .top_p = 0.95, .repetition_penalty = 1.2};

// Prompts of 1 to 90 tokens whose replies end by an eos token, by their own stop, or by their length.
inline std::vector<GenerationRequest> mixed_requests(size_t count) {
  std::vector<GenerationRequest> requests;
  for (size_t i = 0; i < count; ++i) {
    GenerationRequest request = request_of(i, random_prompt(static_cast<uint32_t>(i), 1 + (37 * i) % 90),
                                           static_cast<int32_t>(1 + (7 * i) % 19));
    request.samples = {3, 5};
    request.key = kKey;
    request.question = static_cast<uint32_t>(i);
    request.sampling = kDrawn;
    request.ignore_eos = false;
    if (i % 3 == 1) {
      request.stop = [length = 1 + i % 7](std::span<const int32_t> output) {
        return output.size() == length;
      };
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

// The same, but that each has so many new tokens, whatever they are.
inline std::vector<GenerationRequest> unstopped_requests(size_t count, int32_t new_tokens) {
  std::vector<GenerationRequest> requests = mixed_requests(count);
  for (GenerationRequest& request : requests) {
    request.max_new_tokens = new_tokens;
    request.ignore_eos = true;
    request.stop = nullptr;
  }
  return requests;
}

struct Reply {
  std::vector<int32_t> tokens;
  Finish finish;
  int32_t prompt_tokens;
  friend bool operator==(const Reply&, const Reply&) = default;
};
inline std::map<uint64_t, Reply> replies_of(const std::vector<GenerationResult>& results) {
  std::map<uint64_t, Reply> replies;
  for (const GenerationResult& result : results) {
    const Reply reply{result.tokens, result.finish, result.prompt_tokens};
    EXPECT_TRUE(replies.emplace(result.id, reply).second) << result.id << " ended twice";
  }
  return replies;
}

inline std::map<uint64_t, Reply> run(Engine& engine, const std::vector<GenerationRequest>& requests) {
  for (const GenerationRequest& request : requests) engine.submit(request);
  return replies_of(run_to_end(engine));
}

}  // namespace allot::model
