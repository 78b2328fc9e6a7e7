// An engine without a model: a token of a reply is a function of the request and its place, as the real
// engine's is.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "app/serve/batcher.h"
#include "base/error.h"

namespace allot::app {

// What the test sees of the engine, and how it holds it back; outlives the engine.
struct FakeEngineState {
  std::atomic<int> slots{4};
  std::atomic<int64_t> cancelled{0};
  std::atomic<bool> broken{false};  // the next step throws
  std::atomic<int64_t> steps{0};
  std::atomic<int64_t> most_together{0};

  // Lets the engine make `steps_more` further steps; without a call it is never held back.
  void allow(int64_t steps_more) {
    {
      const std::lock_guard lock(mutex);
      held = true;
      allowed += steps_more;
    }
    changed.notify_all();
  }
  void let_go() {
    {
      const std::lock_guard lock(mutex);
      held = false;
    }
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool held = false;
  int64_t allowed = 0;
};

class FakeEngine final : public TokenEngine {
 public:
  static constexpr int64_t kPositions = 400;
  // Ids of letters in the embedded model's tokenizer are taken as they are; 6 is one of a printable
  // character.
  static constexpr int32_t kFirstToken = 6;

  explicit FakeEngine(FakeEngineState* state) : state_(state) {}

  void submit(model::GenerationRequest request) override {
    if (request.prompt.front() == 98) throw InvalidArgument("token 98 is refused");
    const auto length = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
    if (length > kPositions) throw InvalidArgument("too long");
    sequences_.push_back({std::move(request), {}});
  }

  static int32_t token(const model::GenerationRequest& request, size_t place) {
    uint64_t mix = request.key.run_seed + 31 * uint64_t{request.key.sampling_seed} +
                   1009 * uint64_t{request.question} + 7919 * place;
    for (const int32_t id : request.prompt) mix = mix * 131 + static_cast<uint64_t>(id);
    mix ^= mix >> 29;
    return kFirstToken + static_cast<int32_t>(mix % 80);
  }

  std::vector<model::GenerationResult> step() override {
    if (state_->broken) throw Error("a logit is not a number");
    {
      std::unique_lock lock(state_->mutex);
      state_->changed.wait(lock, [this] { return !state_->held || state_->allowed > 0; });
      if (state_->held) --state_->allowed;
    }
    ++state_->steps;
    std::vector<model::GenerationResult> results;
    const size_t together = std::min<size_t>(sequences_.size(), static_cast<size_t>(state_->slots.load()));
    state_->most_together = std::max<int64_t>(state_->most_together, static_cast<int64_t>(together));
    for (size_t i = 0; i < together; ++i) {
      Sequence& sequence = sequences_[i];
      sequence.output.push_back(token(sequence.request, sequence.output.size()));
      std::optional<Finish> finish;
      if (sequence.request.stop && sequence.request.stop(sequence.output)) finish = Finish::kStop;
      if (!finish && static_cast<int32_t>(sequence.output.size()) == sequence.request.max_new_tokens)
        finish = Finish::kLength;
      if (finish)
        results.push_back({.id = sequence.request.id,
                           .tokens = sequence.output,
                           .finish = *finish,
                           .prompt_tokens = static_cast<int32_t>(sequence.request.prompt.size())});
    }
    for (const auto& result : results) remove(result.id);
    return results;
  }

  bool cancel(uint64_t id) override {
    ++state_->cancelled;
    return remove(id);
  }
  int64_t pending() const override { return static_cast<int64_t>(sequences_.size()); }

 private:
  struct Sequence {
    model::GenerationRequest request;
    std::vector<int32_t> output;
  };
  bool remove(uint64_t id) {
    return std::erase_if(sequences_, [id](const Sequence& one) { return one.request.id == id; }) > 0;
  }

  FakeEngineState* state_;
  std::deque<Sequence> sequences_;
};

// The text of a reply that a request gets alone.
inline std::string text_alone(const model::Tokenizer& tokenizer, const model::GenerationRequest& request) {
  std::vector<int32_t> tokens;
  for (int32_t place = 0; place < request.max_new_tokens; ++place)
    tokens.push_back(FakeEngine::token(request, static_cast<size_t>(place)));
  return tokenizer.decode(tokens);
}

inline model::Tokenizer embedded_tokenizer() {
  return model::Tokenizer::load(std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm");
}

}  // namespace allot::app
