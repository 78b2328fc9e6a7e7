// Replies that are decoded while long prompts arrive: how long each waits for its next token, and how much is
// done in all. `allot bench arrivals` prints it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/engine.h"

namespace allot::bench {

struct ArrivalWorkload {
  int32_t replies = 32;  // that run from the start on
  int32_t reply_prompt_tokens = 512;
  int32_t reply_tokens = 512;  // of each, from the moment on at which all of them have their first one
  int32_t arrivals = 4;        // prompts that come while they run
  std::vector<int32_t> prompt_tokens = {30'000};  // of those, in turn; not empty
  double every_seconds = 3;                       // the first one after as long
  int32_t answer_tokens = 16;                     // new tokens of each of those
  std::vector<int32_t> samples;                   // per layer, of all; empty = exact attention
};

// From the moment at which every reply has its first token until all has ended.
struct ArrivalTiming {
  double seconds = 0;
  std::vector<double> between;  // seconds from a token of a reply to its next one, of all replies
  std::vector<double>
      first_tokens;           // seconds from when a prompt was to come to its first token, in that order
  int64_t prompt_tokens = 0;  // of the prompts that came
  int64_t new_tokens = 0;
};

// Tokens of the KV cache that the workload needs at most in an engine of these options, and sequences that
// may run at once.
int64_t cache_tokens(const ArrivalWorkload& workload, const model::EngineOptions& options);
int32_t most_sequences(const ArrivalWorkload& workload);

// All replies end with the same step, so that no further sizes of batches come at the end. Runs the workload
// once, after a shorter one with a prompt of each length, so that sizes of batches are not new. Tokens are
// random and no eos token ends a sequence. Throws what the engine throws.
ArrivalTiming time_arrivals(model::Engine& engine, const ArrivalWorkload& workload);

}  // namespace allot::bench
