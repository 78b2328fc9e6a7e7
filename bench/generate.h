// Times batched generation, the work of a tuning run: `allot bench decode` and the stand-alone
// generate_bench print it, and bench/hf_generate.py does the same work with Hugging Face generate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "model/engine.h"

namespace allot::bench {

struct GenerateWorkload {
  int32_t prompts = 128;
  int32_t prompt_tokens = 230;   // random ids, the same for every repetition
  int32_t new_tokens = 52;       // eos does not end a sequence
  std::vector<int32_t> samples;  // per layer; empty = exact attention
  model::SamplingParams sampling;
  int32_t repetitions = 5;
  int32_t warm_ups = 1;  // repetitions before those, which are not reported
};

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

// The repetition with the median total. `timings` is not empty.
GenerateTiming median(std::vector<GenerateTiming> timings);

// The smallest value that `share` in (0, 1] of the values do not exceed. `values` is not empty.
double quantile(std::vector<double> values, double share);

}  // namespace allot::bench
