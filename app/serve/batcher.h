// Requests of many threads on one engine. A thread of its own runs the engine step by step; between two steps
// requests join the running batch and leave it. What a request gets depends on nothing but itself: its draws
// are at coordinates that it brings along.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "app/serve/pending_reply.h"
#include "model/engine.h"
#include "model/tokenizer.h"

namespace allot::app {

// What the batcher needs of an engine; model::Engine says what the functions do. Tests have one without a
// model.
class TokenEngine {
 public:
  virtual ~TokenEngine() = default;
  virtual void submit(model::GenerationRequest request) = 0;
  virtual std::vector<model::GenerationResult> step() = 0;
  virtual bool cancel(uint64_t id) = 0;
  virtual int64_t pending() const = 0;
};

struct BatcherCounters {
  int64_t running = 0;  // requests that the engine has, waiting in it or decoded
  int64_t accepted = 0;
  int64_t refused = 0;  // by the engine, or because too many waited
  int64_t finished = 0;
  int64_t cancelled = 0;
  int64_t failed = 0;
  int64_t prompt_tokens = 0;  // of finished ones, as the next
  int64_t output_tokens = 0;
  int64_t steps = 0;
  int64_t step_requests = 0;  // requests in the engine, summed over steps
};

class TooManyRequests : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Batcher {
 public:
  struct Options {
    int64_t most_requests = 512;  // in the engine, running or waiting; further ones are refused
  };

  // `tokenizer` outlives the batcher.
  Batcher(std::unique_ptr<TokenEngine> engine, const model::Tokenizer& tokenizer, const Options& options);
  ~Batcher();  // end()
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // Hands a request over and waits until the engine has taken it, which is after the step that runs. id and
  // stop of the request are the batcher's. A reply ends before the first of `stops`. Throws what the engine
  // throws of a request, TooManyRequests, and Error when the engine has failed or the batcher ends.
  std::shared_ptr<PendingReply> submit(model::GenerationRequest request, std::vector<std::string> stops);
  // The reply leaves the batch before the next step; nobody looks at it any more.
  void cancel(const PendingReply& reply);

  // From now on every submit fails; what runs goes on.
  void refuse_further();
  // Ends what runs, refuses what comes, and returns when the engine does nothing any more.
  void end();
  bool failed() const;
  BatcherCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::app
