// What an engine is asked to generate, what it gives back, and what it counts meanwhile. Torch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/philox.h"
#include "episode/finish.h"
#include "model/sampling.h"

namespace allot::model {

struct GenerationRequest {
  uint64_t id = 0;  // chosen by the caller, returned with the result; should be unique among pending requests
  std::vector<int32_t> prompt;
  // Samples per layer [layers], or kExactLayer (episode/samples.h) where its attention is exact; on the CPU
  // perhaps [layers, num_kv_heads], for experiments: that many samples for the query heads of a KV head;
  // empty = exact attention in every layer.
  std::vector<int32_t> samples;
  // Coordinates of the draws: attention draws are at (layer, head, position), the choice of a token at
  // kTokenLayer, head 0 and the position of the last token before it.
  DrawKey key;
  uint32_t question = 0;
  SamplingParams sampling;
  int32_t max_new_tokens = 0;  // >= 1
  bool ignore_eos = false;     // go on after an eos token: for benchmarks
  // Called after each token with the output so far; true ends the sequence with kStop. May be empty.
  std::function<bool(std::span<const int32_t>)> stop;
};

struct GenerationResult {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // without the prompt; ends with the eos token when finish is kEos
  Finish finish = Finish::kLength;
  int32_t prompt_tokens = 0;
};

struct EngineCounters {
  int64_t prefill_tokens = 0;  // prompt tokens
  int64_t decode_tokens = 0;  // tokens chosen by decode steps; a request's first token comes from its prefill
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

}  // namespace allot::model
