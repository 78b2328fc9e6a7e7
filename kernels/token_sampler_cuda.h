// Choosing the next token of every row of a batch on a CUDA GPU: repetition penalty, temperature, top_p, in
// the order of Hugging Face generate, by the rule of token_weights.h and without sorting the vocabulary. The
// same logits, rules and draws give the same tokens as model/sampling.h, to the last one: everything after
// the logits is float operations rounded one by one and sums of integers. Raw pointers, no LibTorch.
//
// Each call queues its work on `stream`, allocates nothing, never waits for the device and may be captured in
// a CUDA graph: every array is read when the graph runs. All functions throw InvalidArgument naming the value
// and what was expected before anything is queued, CudaError when the launch is refused.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "kernels/attention.h"
#include "kernels/attention_cuda.h"

namespace allot::kernels {

// How the token of a row is chosen: model/sampling.h's SamplingParams, rounded to float. The code that fills
// the array must check the ranges.
struct TokenRule {
  float temperature = 0;         // 0 is greedy
  float top_p = 1;               // in (0, 1]
  float repetition_penalty = 1;  // > 0
  int32_t active = 0;  // 0: a padding row; its logits are not read, chosen and seen are left as they are
};

// Words of a row of the seen tokens: one bit an id, the lowest bit first.
ALLOT_HOST_DEVICE constexpr int64_t seen_words(int32_t vocab_size) {
  return (int64_t{vocab_size} + 31) / 32;
}

// fault while every row's logits were numbers. Fill it once (int32_t); it is only ever lowered.
inline constexpr int32_t kNoFaultyRow = INT32_MAX;

// `seen` is the state of a sequence from step to step: bit `id` of its row is set once the prompt
// (mark_seen_cuda) or the output (choose_tokens_cuda) held the id.
struct ChooseTokensParams {
  int64_t rows = 0;
  int32_t vocab_size = 0;                // 1 to 2^18
  DType dtype = DType::kBFloat16;        // of logits: bfloat16 or float32
  const void* logits = nullptr;          // [rows, logits_stride], only read; aligned to 16 bytes
  int64_t logits_stride = 0;             // elements between rows; >= vocab_size, a multiple of 16 bytes
  const TokenRule* rules = nullptr;      // [rows]
  const SequenceDraws* draws = nullptr;  // [rows]
  const int32_t* positions = nullptr;    // [rows] 0-based position of the row's query: DrawRow::position
  uint32_t* seen = nullptr;              // [seen_rows, seen_words(vocab_size)]
  int64_t seen_rows = 0;
  const int32_t* seen_row = nullptr;  // [rows] distinct rows of seen; null = row i uses row i
  int32_t* chosen = nullptr;          // [rows] -1 where a logit is NaN or seen_row lies outside seen
  int32_t* fault = nullptr;           // [1] lowest row that ever got -1; null = not kept
};
void choose_tokens_cuda(const ChooseTokensParams& params, const DeviceLimits& limits, CudaStream stream);

// Puts tokens that an earlier launch has chosen into the ids of the next pass, without the host:
// ids[i] = chosen[choices[i]] where choices[i] >= 0; INT32_MAX where there is no such choice.
struct FeedTokensParams {
  int64_t tokens = 0;
  const int32_t* choices = nullptr;  // [tokens] -1 = ids[i] stays as it is
  const int32_t* chosen = nullptr;   // [chosen_rows]
  int64_t chosen_rows = 0;
  int32_t* ids = nullptr;  // [tokens]
};
void feed_tokens_cuda(const FeedTokensParams& params, const DeviceLimits& limits, CudaStream stream);

// Marks ids as seen: those of prompts, some of them or all at a time.
struct MarkSeenParams {
  int64_t tokens = 0;
  const int32_t* ids = nullptr;   // [tokens]
  const int32_t* rows = nullptr;  // [tokens] row of seen; a token with a row or id out of range is left out
  int32_t vocab_size = 0;
  uint32_t* seen = nullptr;  // [seen_rows, seen_words(vocab_size)]
  int64_t seen_rows = 0;
};
void mark_seen_cuda(const MarkSeenParams& params, const DeviceLimits& limits, CudaStream stream);

// Forgets what a row has seen, for the next sequence in its place.
struct ClearSeenParams {
  int32_t vocab_size = 0;
  uint32_t* seen = nullptr;  // [seen_rows, seen_words(vocab_size)]
  int64_t seen_rows = 0;
  int64_t row = 0;
};
void clear_seen_cuda(const ClearSeenParams& params, CudaStream stream);

}  // namespace allot::kernels
