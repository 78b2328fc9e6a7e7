// The interface of what answers prompts: texts in, texts out, many at a time. The real one runs a model
// (worker/engine_generator.h); tests use a function.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "episode/finish.h"

namespace allot::evaluation {

struct Prompt {
  uint64_t id = 0;  // chosen by the caller, unique among prompts in flight; returned with the reply
  std::string text;
  std::vector<int32_t> samples;  // [layers], as in an Episode; empty = dense
  DrawKey key;
  uint32_t question = 0;  // number of the question, a coordinate of its draws
  // Whether the reply so far holds its final answer; called only after a piece of text with one of the
  // `completing` characters. May be empty: the reply ends where the model ends it.
  std::function<bool(std::string_view)> complete;
  std::string_view completing;  // outlives the prompt's reply
  // Where there are any, nothing is generated: the reply is the one of these texts that the model takes for
  // the most likely to follow the prompt, the first of equal ones.
  std::vector<std::string> continuations = {};
  // Called after each token with the text that it adds, perhaps none; whole characters only, so that a reply
  // which ends within one has more text than these pieces. May be empty.
  std::function<void(const std::string&)> on_text = {};
};

struct Reply {
  uint64_t id = 0;
  std::string text;
  Finish finish = Finish::kLength;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
};

class Generator {
 public:
  virtual ~Generator() = default;
  // How many prompts are answered together; further ones wait their turn.
  virtual int32_t max_prompts() const = 0;
  // Throws InvalidArgument for a prompt that cannot be answered: too long, or `samples` of another
  // length than layers.
  virtual void submit(const Prompt& prompt) = 0;
  // Works for a while (one step of the model) and returns the replies that ended. Returns at once, with none,
  // when no prompt is in flight.
  virtual std::vector<Reply> step() = 0;
  // Forgets a prompt; unknown ids are ignored.
  virtual void cancel(uint64_t id) = 0;
};

}  // namespace allot::evaluation
