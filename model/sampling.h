// Choosing the next token from a row of logits, in the order of Hugging Face generate: repetition penalty,
// temperature, top_p. Torch-free.
//
// The draw walks the nucleus in order of id: the chosen token is the lowest id at which the mass of the
// nucleus up to that id exceeds a uniform part of the whole. Masses are sums of the integer weights of
// kernels/token_weights.h, so the CUDA sampler (kernels/token_sampler_cuda.h) chooses the same token from the
// same logits. params are rounded to float.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/philox.h"

namespace allot::model {

// temperature 0 is greedy: the largest logit after the repetition penalty, the lowest id on a tie.
struct SamplingParams {
  double temperature = 0;  // >= 0
  // In (0, 1]: the smallest set of most likely tokens whose probability reaches top_p, the lowest ids first
  // where tokens are equally likely.
  double top_p = 1;
  double repetition_penalty = 1;  // > 0: a seen token's logit is divided by it when positive, else multiplied
};

// Throws InvalidArgument naming the field, its value and its range.
void validate(const SamplingParams& params);

// Index of the largest value, the lowest on a tie. `values` is not empty. -1 when a value is NaN.
int32_t argmax(std::span<const float> values);

// Throws the Error of a model that gave a logit that is NaN.
[[noreturn]] void throw_not_a_number();

// Chooses tokens; keeps its scratch memory between calls. One per thread.
class TokenSampler {
 public:
  // `logits` [vocab_size], overwritten unless the choice is a plain argmax. `seen`: the distinct ids of
  // prompt and output so far. The choice is a function of logits, params, seen and the uniform number at
  // `draw` (draw 0 of the row) alone; -1 when a logit is NaN.
  int32_t choose(std::span<float> logits, const SamplingParams& params, std::span<const int32_t> seen,
                 const DrawRow& draw);

 private:
  // Tokens heavier than `threshold` and the first `ties` of those as heavy.
  struct Nucleus {
    uint32_t threshold;
    uint32_t ties;
    uint64_t mass;
  };
  // The nucleus of weights_ with mass `least` or more.
  Nucleus find_nucleus(uint64_t least);

  std::vector<uint32_t> weights_;     // [vocab_size]
  std::vector<uint32_t> candidates_;  // [vocab_size], in find_nucleus
};

}  // namespace allot::model
