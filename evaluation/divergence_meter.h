// The interface of what measures divergences: how far the next-token distributions over a given reply are
// from those of exact attention, under a schedule. The real one runs a model (worker/engine_divergence.h);
// tests use a function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/philox.h"
#include "episode/finish.h"

namespace allot::evaluation {

// A prompt with a reply, which nobody generated.
struct MeteredText {
  std::string prompt;
  std::string reply;
  DrawKey key;
  uint32_t question = 0;  // a coordinate of the draws
};

// A text under a schedule.
struct MeteredPair {
  size_t text = 0;
  std::vector<int32_t> samples;  // [layers], as in an Episode; empty = exact, which diverges by nothing
};

struct MeteredDivergence {
  double divergence = 0;         // mean over the reply's positions, nats
  Finish finish = Finish::kEos;  // kLength: the model has no positions for the rest of the reply
  int32_t prompt_tokens = 0;
  int32_t reply_tokens = 0;
};

class DivergenceMeter {
 public:
  virtual ~DivergenceMeter() = default;
  // How many tokens, each text's once for each of its pairs, make a call worth its while; more are only
  // longer without a word to anyone.
  virtual int64_t tokens_at_once() const = 0;
  // Of a text. Throws InvalidArgument where its prompt is too long.
  virtual int64_t tokens(const MeteredText& text) = 0;
  // In the order of the pairs. The pairs of a text share one pass of exact attention. Results depend on text
  // and pair alone. Throws InvalidArgument, and has measured nothing, for a text that is too long or a
  // schedule that does not fit the model.
  virtual std::vector<MeteredDivergence> measure(std::span<const MeteredText> texts,
                                                 std::span<const MeteredPair> pairs) = 0;
};

}  // namespace allot::evaluation
