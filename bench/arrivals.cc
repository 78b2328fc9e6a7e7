#include "bench/arrivals.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "bench/generate.h"
#include "model/kv_cache.h"

namespace allot::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

// Most tokens of a reply before the last one has its first: with chunked prefill there is a decode step after
// each pass of their prompts.
int32_t most_tokens_ahead(const ArrivalWorkload& workload, const model::EngineOptions& options) {
  if (!options.chunked_prefill_tokens) return 1;
  const int64_t passes =
      int64_t{workload.replies} * workload.reply_prompt_tokens / *options.chunked_prefill_tokens +
      workload.replies;
  return static_cast<int32_t>(std::min<int64_t>(passes, 1 << 20));
}

// Replies from the start on, whose ids are below workload.replies; each calls `token` after each of its
// tokens, and ends where that says so.
template <class Token>
void submit_replies(model::Engine& engine, const ArrivalWorkload& workload, const Token& token) {
  for (int32_t i = 0; i < workload.replies; ++i) {
    model::GenerationRequest request =
        random_request(static_cast<uint32_t>(i), workload.reply_prompt_tokens,
                       workload.reply_tokens + most_tokens_ahead(workload, engine.options()),
                       workload.samples, engine.config().vocab_size);
    request.stop = [&token, i](std::span<const int32_t>) { return token(i); };
    engine.submit(std::move(request));
  }
}

void warm_up(model::Engine& engine, const ArrivalWorkload& workload) {
  bool ended = false;
  const auto stops = [&](int32_t) { return ended; };
  submit_replies(engine, workload, stops);
  std::set<int32_t> lengths(workload.prompt_tokens.begin(), workload.prompt_tokens.end());
  auto number = static_cast<uint32_t>(workload.replies);
  const int64_t replies = engine.pending();
  for (const int32_t length : lengths)
    engine.submit(random_request(number++, length, std::min(workload.answer_tokens, 4), workload.samples,
                                 engine.config().vocab_size));
  while (engine.pending() > replies) (void)engine.step();
  ended = true;
  while (engine.pending() > 0) (void)engine.step();
}

}  // namespace

int64_t cache_tokens(const ArrivalWorkload& workload, const model::EngineOptions& options) {
  const auto whole = [size = options.page_size](int64_t tokens) {
    return model::pages_for(tokens, size) * size;
  };
  int64_t tokens = workload.replies * whole(int64_t{workload.reply_prompt_tokens} + workload.reply_tokens +
                                            most_tokens_ahead(workload, options));
  // All lengths at least, which the shorter run has.
  const size_t prompts = std::max(static_cast<size_t>(workload.arrivals), workload.prompt_tokens.size());
  for (size_t i = 0; i < prompts; ++i)
    tokens +=
        whole(int64_t{workload.prompt_tokens[i % workload.prompt_tokens.size()]} + workload.answer_tokens);
  return tokens;
}

int32_t most_sequences(const ArrivalWorkload& workload) {
  return workload.replies + std::max(workload.arrivals, static_cast<int32_t>(workload.prompt_tokens.size()));
}

ArrivalTiming time_arrivals(model::Engine& engine, const ArrivalWorkload& workload) {
  warm_up(engine, workload);
  ArrivalTiming timing;
  std::vector<Clock::time_point> last(static_cast<size_t>(workload.replies));
  std::vector<int32_t> counted(last.size());
  int32_t begun = 0;
  bool counts = false;
  const auto token = [&](int32_t reply) {
    const Clock::time_point now = Clock::now();
    Clock::time_point& before = last[static_cast<size_t>(reply)];
    if (before == Clock::time_point()) ++begun;
    if (counts) {
      timing.between.push_back(Seconds(now - before).count());
      ++timing.new_tokens;
      ++counted[static_cast<size_t>(reply)];
    }
    before = now;
    return counted[static_cast<size_t>(reply)] == workload.reply_tokens;
  };
  submit_replies(engine, workload, token);
  while (begun < workload.replies) (void)engine.step();
  counts = true;
  const Clock::time_point start = Clock::now();
  const auto due = [&](int32_t arrival) {
    return start +
           std::chrono::duration_cast<Clock::duration>(Seconds(workload.every_seconds * (arrival + 1)));
  };
  timing.first_tokens.resize(static_cast<size_t>(workload.arrivals));
  for (int32_t next = 0; next < workload.arrivals || engine.pending() > 0;) {
    if (engine.pending() == 0) std::this_thread::sleep_until(due(next));
    for (; next < workload.arrivals && due(next) <= Clock::now(); ++next) {
      const size_t length = static_cast<size_t>(next) % workload.prompt_tokens.size();
      model::GenerationRequest request =
          random_request(static_cast<uint32_t>(workload.replies + next), workload.prompt_tokens[length],
                         workload.answer_tokens, workload.samples, engine.config().vocab_size);
      timing.prompt_tokens += std::ssize(request.prompt);
      request.stop = [&, arrival = next](std::span<const int32_t> output) {
        if (output.size() == 1)
          timing.first_tokens[static_cast<size_t>(arrival)] = Seconds(Clock::now() - due(arrival)).count();
        ++timing.new_tokens;
        return false;
      };
      engine.submit(std::move(request));
    }
    (void)engine.step();
  }
  timing.seconds = Seconds(Clock::now() - start).count();
  return timing;
}

}  // namespace allot::bench
