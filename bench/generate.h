// Times batched generation, the work of a tuning run: `allot bench decode` prints it, and
// bench/hf_generate.py does the same work with Hugging Face generate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "model/engine.h"

namespace allot::bench {

// Enough for everything that happens once: pages are touched, products measured, decode steps captured.
constexpr int32_t kWarmUpTokens = 8;

struct GenerateWorkload {
  int32_t prompts = 128;
  int32_t prompt_tokens = 230;   // random ids, the same for every repetition
  int32_t new_tokens = 52;       // eos does not end a sequence
  std::vector<int32_t> samples;  // per layer; empty = exact attention
  model::SamplingParams sampling;
  int32_t repetitions = 5;
  // Repetitions before those, of at most kWarmUpTokens new tokens, which are not reported.
  int32_t warm_ups = 1;
};

// A request of random token ids, a function of its number, which is also its id and question. No eos token
// ends it.
model::GenerationRequest random_request(uint32_t number, int32_t prompt_tokens, int32_t new_tokens,
                                        const std::vector<int32_t>& samples, int32_t vocab_size);

// Seconds of one repetition, from the first submit to the last token.
struct GenerateTiming {
  double total_seconds = 0;
  double prefill_seconds = 0;
  double decode_seconds = 0;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  std::vector<double> decode_steps;  // seconds of each step without a prompt, in order
};

// One timing per repetition, in order. Throws what the engine throws.
std::vector<GenerateTiming> time_generation(model::Engine& engine, const GenerateWorkload& workload);

// Submits the workload, and once all of its sequences that run at once decode, hands `steps` decode steps to
// `around`, which has to call what it is given. `steps` >= 1; the workload's new_tokens is ignored.
void run_decode_steps(model::Engine& engine, const GenerateWorkload& workload, int steps,
                      const std::function<void(const std::function<void()>& steps)>& around);
// New tokens of each sequence in that, for which the engine's cache needs room.
int32_t tokens_of_decode_steps(int steps);

// The repetition with the median total. `timings` is not empty.
GenerateTiming median(std::vector<GenerateTiming> timings);

}  // namespace allot::bench
