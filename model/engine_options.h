// The options with which an engine is made. Torch-free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/key_format.h"
#include "kernels/method.h"
#include "model/weight_storage.h"

namespace allot::model {

struct EngineOptions {
  std::string device = "cpu";  // as parse_device (base/device.h) reads it
  // The seed of weights made at random (random_weights.h); nothing = those of the directory's checkpoint.
  std::optional<uint64_t> random_weights = std::nullopt;
  // The directory of a LoRA adapter (adapter.h) that is merged into the checkpoint's weights; not with random
  // ones.
  std::optional<std::filesystem::path> adapter = std::nullopt;
  kernels::DType dtype = kernels::DType::kBFloat16;  // of weights, activations and cache; logits are float32
  // Of the weights of products; 8 bits only on a CUDA device of compute capability 8.9 and newer.
  WeightStorage weights = WeightStorage::kDtype;
  // Of the KV cache. Others than 16-bit are for CUDA devices, heads of 64 and 128, pages of a multiple of 16
  // tokens, and estimators that have kernels for them.
  kernels::KeyFormat keys = kernels::KeyFormat::kSixteenBits;
  kernels::AttentionMethod attention = {};
  int32_t page_size = 16;
  int32_t max_sequences = 256;  // decoded together
  // Capacity of the KV cache; 0 = what max_sequences sequences can use, bounded by the free memory.
  int64_t cache_tokens = 0;
  // Most tokens of a sequence, prompt and reply, and of a text of fidelity(), where that is known beforehand.
  // Nothing = max_position_embeddings. It only bounds the cache, of which several processes on one GPU each
  // need their part; a longer sequence is served where there is room.
  std::optional<int64_t> sequence_tokens = std::nullopt;
  // Prompt tokens processed in one forward pass, or one more; >= 2. Nothing = as prefill_chunk() says.
  std::optional<int32_t> prefill_chunk_tokens = std::nullopt;
  // Chunked prefill: most prompt tokens, or one more, between two tokens of every reply that is being
  // decoded, 2 to prefill_chunk(). Nothing = prompts that wait are computed first and replies wait for them,
  // which is best for batches that come at once.
  std::optional<int32_t> chunked_prefill_tokens = std::nullopt;
  // For benchmarks: treats every prompt, except for its last token, as already in the cache, without
  // computing it. Replies are then meaningless: the backend fills the cache with arbitrary finite numbers
  // when it is made, and these take the place of the prompt's keys and values.
  bool skip_prefill = false;
  bool count_execution = false;  // keep what each layer does (Engine::execution())
  int threads = 0;               // 0 = all cores
};

// On a GPU a pass costs the same number of launches however many tokens it has; on a CPU its activations
// should stay in the caches.
inline int32_t prefill_chunk(const EngineOptions& options) {
  return options.prefill_chunk_tokens.value_or(options.device == "cpu" ? 2048 : 8192);
}

// What serving has for chunked_prefill_tokens: a chunk takes a small part of a second on a device for which
// the model is meant, and still computes prompts nearly as fast as long ones do (docs/internals/engine.md).
inline int32_t serving_chunk(const EngineOptions& options) {
  return options.device == "cpu" ? 128 : 2048;
}

// Most new tokens of one forward pass.
inline int64_t max_pass_tokens(const EngineOptions& options) {
  return std::max<int64_t>(int64_t{prefill_chunk(options)} + 1, options.max_sequences);
}

}  // namespace allot::model
