// What answers prompts: texts in, texts out, many at a time. The real one runs a model
// (worker/engine_generator.h); tests put a function behind it.
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
  uint64_t id = 0;  // the caller's, not used twice at a time; returned with the reply
  std::string text;
  std::vector<int32_t> samples;  // [layers]; empty = dense
  DrawKey key;
  uint32_t question = 0;  // coordinate of the draws
  // Whether the reply so far holds its final answer; asked only after a piece of text with one of
  // `completing` characters. May be empty: the reply ends where the model ends it.
  std::function<bool(std::string_view)> complete;
  std::string_view completing;  // outlives the prompt's answer
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
  // Prompts answered together; more wait their turn.
  virtual int32_t max_prompts() const = 0;
  // Throws InvalidArgument for a prompt that cannot be answered: too long, or `samples` of another
  // length than layers.
  virtual void submit(const Prompt& prompt) = 0;
  // Works for a while (one step of the model) and returns the replies that ended. Empty and at once
  // when nothing waits.
  virtual std::vector<Reply> step() = 0;
  // Forgets a prompt; unknown ids are ignored.
  virtual void cancel(uint64_t id) = 0;
};

}  // namespace allot::evaluation
