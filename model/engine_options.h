// What an engine is asked for when it is made. Torch-free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/method.h"

namespace allot::model {

struct EngineOptions {
  std::string device = "cpu";  // "cpu", "cuda" (= "cuda:0") or "cuda:N"
  // The seed of weights made at random (random_weights.h); nothing = those of the directory's checkpoint.
  std::optional<uint64_t> random_weights = std::nullopt;
  kernels::DType dtype = kernels::DType::kBFloat16;  // of weights, activations and cache; logits are float32
  kernels::AttentionMethod attention = {};
  int32_t page_size = 16;
  int32_t max_sequences = 256;  // decoded together
  int64_t cache_tokens = 0;  // capacity of the KV cache; 0 = max_sequences * max_position_embeddings, bounded
                             // by what is free
  // Prompt tokens processed in one forward pass, or one more; >= 2. Nothing = as prefill_chunk() says.
  std::optional<int32_t> prefill_chunk_tokens = std::nullopt;
  // For benchmarks: every prompt is taken to be in the cache, but for its last token, without being computed.
  // Replies are then meaningless: in place of the prompt's keys and values are finite numbers of any kind,
  // with which the backend fills the cache when it is made.
  bool skip_prefill = false;
  int threads = 0;  // 0 = all cores
};

// On a GPU a pass costs the same launches however many tokens it has; on a CPU its activations should stay
// in the caches.
inline int32_t prefill_chunk(const EngineOptions& options) {
  return options.prefill_chunk_tokens.value_or(options.device == "cpu" ? 2048 : 8192);
}

// New tokens of one forward pass at most.
inline int64_t max_pass_tokens(const EngineOptions& options) {
  return std::max<int64_t>(int64_t{prefill_chunk(options)} + 1, options.max_sequences);
}

}  // namespace allot::model
