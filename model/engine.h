// Batched generation with a schedule per sequence: a paged KV cache, continuous batching, dense or sampled prefill.
// The header is free of LibTorch, so that only the files that build tensors pay for its headers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/estimator.h"
#include "model/model_config.h"

namespace allot::model {

// How a token is chosen. temperature 0 is greedy. Order of the steps as in Hugging Face generate: repetition penalty
// (over prompt and output), temperature, top_p.
struct SamplingParams {
  double temperature = 0;
  double top_p = 1;
  double repetition_penalty = 1;
};

enum class FinishReason { kEos, kStop, kLength };

struct GenerationRequest {
  uint64_t id = 0;  // the caller's; returned with the result
  std::vector<int32_t> prompt;
  // Samples per layer [layers]; empty = exact attention in every layer.
  std::vector<int32_t> samples;
  DrawKey key;
  uint32_t question = 0;
  SamplingParams sampling;
  int32_t max_new_tokens = 0;
  // Asked after each token with the output so far; true ends the sequence with kStop. May be empty.
  std::function<bool(std::span<const int32_t>)> stop;
};

struct GenerationResult {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // without the prompt; ends with the eos token when finish is kEos
  FinishReason finish = FinishReason::kLength;
  int32_t prompt_tokens = 0;
};

enum class PrefillMode { kDense, kSampled };

struct EngineOptions {
  kernels::DType dtype = kernels::DType::kBFloat16;  // of weights, activations and cache
  kernels::Estimator estimator = kernels::Estimator::kSys;
  PrefillMode prefill = PrefillMode::kSampled;
  int32_t tile = 256;                // keys per tile of `prop` and `flash`
  kernels::ScoreStage score_stage = kernels::ScoreStage::kExact;
  int32_t score_budget = 0;
  bool mean_group_query = false;
  int32_t page_size = 16;
  int32_t max_sequences = 256;       // decoded together
  int64_t cache_tokens = 0;          // capacity of the KV cache; 0 = max_sequences * max_position_embeddings, bounded by
                                     // what is free
  int32_t prefill_chunk_tokens = 2048;  // prompt tokens processed in one forward pass
  int threads = 0;                   // 0 = all cores
};

struct EngineCounters {
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

class Engine {
 public:
  // Loads a Hugging Face directory. Throws the errors of the readers, and Unsupported when a tensor has a dtype or shape
  // the architecture does not have (naming the tensor, found and expected).
  Engine(const std::filesystem::path& model_directory, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const ModelConfig& config() const;
  const GenerationDefaults& generation_defaults() const;
  const EngineOptions& options() const;

  // Queues a request. Throws InvalidArgument when the prompt is empty or has an id beyond the vocabulary, when prompt and
  // new tokens exceed the model's positions or the cache's capacity, or when `samples` has another length than layers.
  void submit(GenerationRequest request);
  // Sequences queued or in flight.
  int64_t pending() const;
  // Admits queued requests while there is room, runs one forward pass (a prefill chunk or one decode step for all) and
  // returns what finished.
  std::vector<GenerationResult> step();
  // Drops the request with this id, wherever it is; false when it is unknown.
  bool cancel(uint64_t id);

  // Float32 logits of every position [ids.size(), vocab_size] of one teacher-forced pass.
  std::vector<float> logits(std::span<const int32_t> ids, std::span<const int32_t> samples, DrawKey key,
                            uint32_t question);

  const EngineCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::model
