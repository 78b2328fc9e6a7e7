// Choosing the next token from a row of logits, in the order of Hugging Face generate: repetition penalty,
// temperature, top_p. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"

namespace allot::model {

// temperature 0 is greedy: the largest logit after the repetition penalty, the lowest id on a tie.
struct SamplingParams {
  double temperature = 0;  // >= 0
  double top_p = 1;  // in (0, 1]: the smallest set of most likely tokens whose probability reaches top_p
  double repetition_penalty = 1;  // > 0: a seen token's logit is divided by it when positive, else multiplied
};

// Throws InvalidArgument naming the field, its value and its range.
void validate(const SamplingParams& params);

// Index of the largest value, the lowest on a tie. `values` is not empty. -1 when a value is NaN.
int32_t argmax(std::span<const float> values);

// Chooses tokens; keeps its scratch memory between calls. One per thread.
class TokenSampler {
 public:
  // `logits` [vocab_size], overwritten unless the choice is a plain argmax. `seen`: the distinct ids of
  // prompt and output so far. The choice is a function of logits, params, seen and the uniform number at
  // `draw` (draw 0 of the row) alone. Throws Error when a logit is NaN.
  int32_t choose(std::span<float> logits, const SamplingParams& params, std::span<const int32_t> seen,
                 const DrawRow& draw);

 private:
  std::vector<float> weights_;       // exp(logit - largest), [vocab_size]
  std::vector<int32_t> candidates_;  // ids ordered as a heap by weight
};

}  // namespace allot::model
