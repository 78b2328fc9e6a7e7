#include "app/serve/batcher.h"

#include <fmt/format.h>

#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "app/serve/stop_scanner.h"
#include "base/error.h"
#include "base/log.h"
#include "model/text_stream.h"

namespace allot::app {
namespace {

// Text of a reply's tokens up to a stop string. Lives in the engine thread.
struct ReplyText {
  model::TextStream stream;
  StopScanner scanner;
};

struct Arrival {
  model::GenerationRequest request;
  std::vector<std::string> stops;
  std::shared_ptr<PendingReply> reply;
  std::promise<void> taken;
};

}  // namespace

struct Batcher::Impl {
  struct Running {
    std::shared_ptr<PendingReply> reply;
    std::shared_ptr<ReplyText> text;
  };

  void run();
  // Waits for work; false when the batcher ends.
  bool wait(std::vector<Arrival>* arrivals, std::vector<uint64_t>* leaving);
  void take(Arrival arrival);
  void leave(uint64_t id);
  void finish(const model::GenerationResult& result);
  void fail(const std::string& why);
  template <class Change>
  void count(Change change) {
    const std::lock_guard lock(mutex);
    change(&counters);
    counters.running = std::ssize(running);
  }

  std::unique_ptr<TokenEngine> engine;
  const model::Tokenizer* tokenizer = nullptr;
  Options options;

  mutable std::mutex mutex;
  std::condition_variable work;
  std::vector<Arrival> inbox;
  std::vector<uint64_t> departures;
  std::string refusal;  // not empty: why nothing is taken any more
  bool ending = false;
  bool engine_failed = false;
  uint64_t next_id = 1;
  int64_t expected = 0;  // in the inbox or running
  BatcherCounters counters;

  std::unordered_map<uint64_t, Running> running;  // of the engine thread alone, as the next
  Deliveries deliveries;
  std::thread thread;
};

bool Batcher::Impl::wait(std::vector<Arrival>* arrivals, std::vector<uint64_t>* leaving) {
  std::unique_lock lock(mutex);
  work.wait(lock, [this] { return ending || !inbox.empty() || !departures.empty() || !running.empty(); });
  *arrivals = std::exchange(inbox, {});
  *leaving = std::exchange(departures, {});
  return !ending;
}

void Batcher::Impl::take(Arrival arrival) {
  const uint64_t id = arrival.request.id;
  auto text = std::make_shared<ReplyText>(
      ReplyText{model::TextStream(*tokenizer), StopScanner(std::move(arrival.stops))});
  arrival.request.stop = [this, reply = arrival.reply, text](std::span<const int32_t> output) {
    std::string shown = text->scanner.add(text->stream.add(output));
    if (!shown.empty()) deliveries.add(reply, {.text = std::move(shown)});
    return text->scanner.stopped();
  };
  try {
    engine->submit(std::move(arrival.request));
  } catch (...) {
    count([this](BatcherCounters* counted) {
      ++counted->refused;
      --expected;
    });
    arrival.taken.set_exception(std::current_exception());
    return;
  }
  running.emplace(id, Running{arrival.reply, text});
  count([](BatcherCounters* counted) { ++counted->accepted; });
  arrival.taken.set_value();
}

void Batcher::Impl::leave(uint64_t id) {
  if (running.erase(id) == 0) return;  // it ended before
  engine->cancel(id);
  count([this](BatcherCounters* counted) {
    ++counted->cancelled;
    --expected;
  });
}

void Batcher::Impl::finish(const model::GenerationResult& result) {
  const auto found = running.find(result.id);
  if (found == running.end()) return;
  const Running ended = std::move(found->second);
  running.erase(found);
  const auto tokens = static_cast<int32_t>(result.tokens.size());
  // An end token is text for nobody; the engine does not show it to `stop`.
  std::string text = ended.text->scanner.add(ended.text->stream.rest(result.tokens));
  if (!ended.text->scanner.stopped()) text += ended.text->scanner.rest();
  count([&](BatcherCounters* counted) {
    ++counted->finished;
    counted->prompt_tokens += result.prompt_tokens;
    counted->output_tokens += tokens;
    --expected;
  });
  deliveries.add(ended.reply,
                 {.text = std::move(text), .ended = true, .finish = result.finish, .output_tokens = tokens});
}

void Batcher::Impl::fail(const std::string& why) {
  for (auto& [id, request] : running) deliveries.add(request.reply, {.ended = true, .failure = why});
  deliveries.send();
  const auto failed = std::ssize(running);
  running.clear();
  std::vector<Arrival> waiting;
  {
    const std::lock_guard lock(mutex);
    refusal = why;
    waiting = std::exchange(inbox, {});
    counters.failed += failed;
    counters.running = 0;
    expected = 0;
  }
  for (Arrival& arrival : waiting) arrival.taken.set_exception(std::make_exception_ptr(Error(why)));
}

void Batcher::Impl::run() {
  std::vector<Arrival> arrivals;
  std::vector<uint64_t> leaving;
  try {
    while (wait(&arrivals, &leaving)) {
      for (Arrival& arrival : arrivals) take(std::move(arrival));
      for (const uint64_t id : leaving) leave(id);
      if (running.empty()) continue;
      const int64_t together = engine->pending();
      for (const model::GenerationResult& result : engine->step()) finish(result);
      deliveries.send();
      count([together](BatcherCounters* counted) {
        ++counted->steps;
        counted->step_requests += together;
      });
    }
  } catch (const std::exception& error) {
    spdlog::error("the engine failed: {}", error.what());
    {
      const std::lock_guard lock(mutex);
      engine_failed = true;
    }
    fail(fmt::format("the engine failed: {}", error.what()));
    return;
  }
  for (Arrival& arrival : arrivals)
    arrival.taken.set_exception(std::make_exception_ptr(Error("the server ends")));
  for (const auto& [id, request] : running) engine->cancel(id);
  fail("the server ends");
}

Batcher::Batcher(std::unique_ptr<TokenEngine> engine, const model::Tokenizer& tokenizer,
                 const Options& options)
    : impl_(std::make_unique<Impl>()) {
  impl_->engine = std::move(engine);
  impl_->tokenizer = &tokenizer;
  impl_->options = options;
  impl_->thread = std::thread([this] { impl_->run(); });
}

Batcher::~Batcher() {
  end();
}

void Batcher::end() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->ending = true;
  }
  impl_->work.notify_one();
  if (impl_->thread.joinable()) impl_->thread.join();
}

std::shared_ptr<PendingReply> Batcher::submit(model::GenerationRequest request,
                                              std::vector<std::string> stops) {
  std::shared_ptr<PendingReply> reply;
  std::future<void> taken;
  {
    const std::lock_guard lock(impl_->mutex);
    if (!impl_->refusal.empty()) throw Error(impl_->refusal);
    if (impl_->expected >= impl_->options.most_requests) {
      ++impl_->counters.refused;
      throw TooManyRequests(
          fmt::format("{} requests run or wait, which is the limit; try again later", impl_->expected));
    }
    ++impl_->expected;
    reply = std::make_shared<PendingReply>(impl_->next_id++);
    request.id = reply->id();
    Arrival arrival{std::move(request), std::move(stops), reply, {}};
    taken = arrival.taken.get_future();
    impl_->inbox.push_back(std::move(arrival));
  }
  impl_->work.notify_one();
  taken.get();
  return reply;
}

void Batcher::cancel(const PendingReply& reply) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->departures.push_back(reply.id());
  }
  impl_->work.notify_one();
}

void Batcher::refuse_further() {
  const std::lock_guard lock(impl_->mutex);
  if (impl_->refusal.empty()) impl_->refusal = "the server ends";
}

bool Batcher::failed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->engine_failed;
}

BatcherCounters Batcher::counters() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counters;
}

}  // namespace allot::app
