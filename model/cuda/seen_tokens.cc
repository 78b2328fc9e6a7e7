#include "model/cuda/seen_tokens.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/token_sampler_cuda.h"

namespace allot::model::cuda {

SeenTokens::SeenTokens(int32_t slots, int32_t vocab_size, cudaStream_t stream)
    : slots_(slots),
      vocab_size_(vocab_size),
      seen_(slots * kernels::seen_words(vocab_size) * int64_t{sizeof(uint32_t)}) {
  check(cudaMemsetAsync(seen_.data(), 0, seen_.size(), stream), "cudaMemsetAsync");
}

void SeenTokens::open(int32_t slot, std::span<const int32_t> prompt) {
  opened_[slot].assign(prompt.begin(), prompt.end());
}

void SeenTokens::queue(const kernels::DeviceLimits& limits, cudaStream_t stream) {
  if (opened_.empty()) return;
  int64_t tokens = 0;
  for (const auto& [slot, prompt] : opened_) {
    tokens += std::ssize(prompt);
    kernels::clear_seen_cuda({.vocab_size = vocab_size_, .seen = data(), .seen_rows = slots_, .row = slot},
                             stream);
  }
  const int64_t bytes = 2 * tokens * int64_t{sizeof(int32_t)};
  if (bytes > staging_.size()) {
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    staging_ = PinnedBuffer(bytes + bytes / 2);
    prompts_ = DeviceBuffer(bytes + bytes / 2);
  }
  sent_.synchronize();
  int32_t* id = staging_.as<int32_t>();
  int32_t* row = id + tokens;
  for (const auto& [slot, prompt] : opened_) {
    id = std::ranges::copy(prompt, id).out;
    row = std::fill_n(row, prompt.size(), slot);
  }
  check(cudaMemcpyAsync(prompts_.data(), staging_.data(), bytes, cudaMemcpyHostToDevice, stream),
        "cudaMemcpyAsync");
  sent_.record(stream);
  kernels::mark_seen_cuda({.tokens = tokens,
                           .ids = prompts_.as<int32_t>(),
                           .rows = prompts_.as<int32_t>() + tokens,
                           .vocab_size = vocab_size_,
                           .seen = data(),
                           .seen_rows = slots_},
                          limits, stream);
  opened_.clear();
}

}  // namespace allot::model::cuda
