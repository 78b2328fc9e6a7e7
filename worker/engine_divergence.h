// A meter that runs a model: texts to tokens, the engine's fidelity primitive, divergences.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "evaluation/divergence_meter.h"
#include "model/fidelity.h"
#include "worker/engine_generator.h"

namespace allot::worker {

class EngineDivergence final : public evaluation::DivergenceMeter {
 public:
  // Uses the engine and the tokenizer of `generator`, which outlives it and has no prompt in flight during
  // measure(). Attention is the engine's method; a reply is measured as the engine would generate it, behind
  // a sampled prompt or, where its prefill is dense, an exact one.
  explicit EngineDivergence(EngineGenerator* generator);

  int64_t tokens_at_once() const override;
  int64_t tokens(const evaluation::MeteredText& text) override;
  std::vector<evaluation::MeteredDivergence> measure(std::span<const evaluation::MeteredText> texts,
                                                     std::span<const evaluation::MeteredPair> pairs) override;

 private:
  struct Tokens {
    std::vector<int32_t> ids;  // of the prompt and the reply, as many as the model has positions for
    int32_t prompt_tokens = 0;
    bool cut = false;
  };
  const Tokens& tokenised(const evaluation::MeteredText& text);

  EngineGenerator& generator_;
  std::unordered_map<std::string, Tokens> texts_;  // by prompt and reply: each question comes again
};

}  // namespace allot::worker
