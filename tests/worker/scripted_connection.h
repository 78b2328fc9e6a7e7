// A worker's connection with an aggregator whose every answer the test gives by hand, and with a runner that
// does what the test says.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/messages.pb.h"
#include "worker/connection.h"

namespace allot::worker {

inline constexpr Duration kDeadline = std::chrono::seconds(20);

// Long enough for a worker that connects anew, short against kDeadline.
inline constexpr Duration kDrainOfATest = std::chrono::seconds(3);

// An aggregator whose every answer the test gives by hand.
class ScriptedAggregator {
 public:
  explicit ScriptedAggregator(const std::string& bind = "tcp://127.0.0.1:*") : server_({.bind = bind}) {}
  std::string endpoint() const { return server_.endpoint(); }

  // The next message of this kind; others are passed over. An empty one after the deadline, with a failure
  // noted.
  wire::Envelope expect(wire::Envelope::BodyCase body) {
    return expect_where("of kind " + std::to_string(body),
                        [&](const wire::Envelope& m) { return m.body_case() == body; });
  }
  // The next message of a worker that holds exactly these leases.
  wire::Envelope expect_holding(std::vector<int64_t> leases) {
    return expect_where(
        "of a worker holding " + testing::PrintToString(leases),
        [&](const wire::Envelope& m) { return std::ranges::is_permutation(m.leases(), leases); });
  }
  wire::Envelope expect_where(const std::string& what,
                              const std::function<bool(const wire::Envelope&)>& fits) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      const auto message = server_.receive(std::chrono::milliseconds(100));
      if (!message) continue;
      auto decoded = wire::decode(message->frame);
      if (!std::holds_alternative<wire::Envelope>(decoded)) continue;
      wire::Envelope& envelope = std::get<wire::Envelope>(decoded);
      if (!fits(envelope)) continue;
      peer_ = message->peer;
      return envelope;
    }
    ADD_FAILURE() << "no message " << what << " came";
    return {};
  }
  // To the peer of the last message expected.
  void reply(const std::function<void(wire::Envelope*)>& fill) {
    wire::Envelope envelope;
    envelope.set_number(++number_);
    fill(&envelope);
    server_.send(peer_, wire::encode(envelope));
  }
  void reply_with_frame(std::string_view frame) { server_.send(peer_, frame); }
  void welcome(const std::string& run_id = "run", Duration heartbeat = std::chrono::milliseconds(50),
               int64_t epoch = 1) {
    reply([&](wire::Envelope* m) {
      m->mutable_welcome()->set_epoch(epoch);
      m->mutable_welcome()->mutable_spec()->set_run_id(run_id);
      m->mutable_welcome()->set_heartbeat_ms(heartbeat.count());
    });
  }
  void grant(std::vector<std::pair<int64_t, int64_t>> leases_and_episodes, bool replies = false) {
    reply([&](wire::Envelope* m) {
      for (const auto& [lease, episode] : leases_and_episodes) {
        wire::Lease& row = *m->mutable_grant()->add_leases();
        row.set_replies(replies);
        row.set_lease(lease);
        row.set_episode(episode);
        row.set_kind(wire::LEASE_KIND_ANSWERS);
        row.set_split(wire::SPLIT_HELDOUT);
        for (const int32_t samples : {33, 8}) row.add_samples(samples);
        for (const uint32_t question : {5u, 6u}) row.add_questions(question);
        row.set_sampling_seed(77);
      }
    });
  }
  void ack(const wire::Envelope& result, wire::Ack::Verdict verdict = wire::Ack::VERDICT_ACCEPTED) {
    reply([&](wire::Envelope* m) {
      m->mutable_ack()->set_lease(result.result().lease());
      m->mutable_ack()->set_episode(result.result().episode());
      m->mutable_ack()->set_verdict(verdict);
    });
  }
  void wait(bool finished) {
    reply([&](wire::Envelope* m) {
      m->mutable_wait()->set_retry_after_ms(20);
      m->mutable_wait()->set_finished(finished);
    });
  }
  const std::string& peer() const { return peer_; }

 private:
  wire::Server server_;
  std::string peer_;
  uint64_t number_ = 0;
};

// What the test sees of the runner and tells it, which lives on the worker's thread.
struct RunnerControl {
  std::mutex mutex;
  std::vector<Episode> started;
  std::vector<int64_t> cancelled;
  bool finish_episodes = true;  // else they run for ever
  std::string start_error, advance_error;
  double partial_credit = 0;   // score of questions with an odd number
  int64_t half_answered = -1;  // number of the episode that has an answer to question 6
  bool all_half_answered = false;
  std::string reply;  // of each question, where it is asked for

  std::vector<int64_t> cancelled_now() {
    const std::scoped_lock lock(mutex);
    return cancelled;
  }
};

class ScriptedRunner final : public EpisodeRunner {
 public:
  explicit ScriptedRunner(RunnerControl* control) : control_(control) {}
  int capacity() const override { return 2; }
  void start(Episode episode) override {
    const std::scoped_lock lock(control_->mutex);
    if (!control_->start_error.empty()) throw InvalidArgument(control_->start_error);
    control_->started.push_back(episode);
    running_.push_back(std::move(episode));
  }
  std::vector<EpisodeResult> advance() override {
    const std::scoped_lock lock(control_->mutex);
    if (!control_->advance_error.empty()) throw Error(control_->advance_error);
    std::vector<EpisodeResult> results;
    if (!control_->finish_episodes) return results;
    for (const Episode& episode : running_) {
      EpisodeResult& result = results.emplace_back();
      result.episode = episode.id;
      result.seconds = 1.5;
      for (const uint32_t question : episode.questions) {
        result.results.push_back(
            {question, question % 2 == 0 ? 1.0 : control_->partial_credit, Finish::kLength, 200, 50});
        if (episode.replies) result.texts.push_back({.reply = control_->reply, .answer = {}});
        done_.prompt_tokens += 200;
        done_.output_tokens += 50;
      }
    }
    running_.clear();
    return results;
  }
  EpisodeResult answered_so_far(EpisodeId episode) const override {
    const std::scoped_lock lock(control_->mutex);
    EpisodeResult result{.episode = episode, .results = {}, .seconds = 2.5, .error = ""};
    if (episode.value != control_->half_answered && !control_->all_half_answered) return result;
    result.results = {{6, 1, Finish::kStop, 100, 20}};
    if (!control_->reply.empty()) result.texts = {{.reply = control_->reply, .answer = "42"}};
    return result;
  }
  WorkDone work_done() const override { return done_; }
  void cancel(EpisodeId episode) override {
    const std::scoped_lock lock(control_->mutex);
    control_->cancelled.push_back(episode.value);
    std::erase_if(running_, [&](const Episode& running) { return running.id == episode; });
  }

 private:
  RunnerControl* control_;
  std::vector<Episode> running_;
  WorkDone done_;
};

class ConnectionTest : public testing::Test {
 protected:
  ~ConnectionTest() override {
    stop_ = true;
    if (worker_.valid()) worker_.wait();
  }

  void start_worker(bool exit_when_finished = false) {
    ConnectionOptions options{
        .endpoint = aggregator_->endpoint(), .moved = moved_, .exit_when_finished = exit_when_finished};
    options.first_retry = first_retry_;
    options.patience = patience_;
    options.resend = std::chrono::milliseconds(50);
    options.drain = drain_;
    options.load_every = load_every_;
    options.memory_use = [] { return MemoryUse{.used = 3, .total = 8}; };
    options.preempted = [this] { return preempted_; };
    worker_ = std::async(std::launch::async, [this, options] {
      wire::Hello hello;
      hello.set_worker("w");
      hello.set_device("none");
      return Connection(options).run(
          hello, [this](const wire::RunSpec&) { return std::make_unique<ScriptedRunner>(&control_); }, stop_);
    });
  }
  // A worker that is introduced and has asked for its first leases.
  void start_introduced_worker(bool exit_when_finished = false) {
    start_worker(exit_when_finished);
    aggregator_->expect(wire::Envelope::kHello);
    aggregator_->welcome();
    aggregator_->expect(wire::Envelope::kLeaseRequest);
  }

  std::optional<ScriptedAggregator> aggregator_{std::in_place};
  RunnerControl control_;
  Duration first_retry_ = kDeadline, patience_ = kDeadline, drain_ = std::chrono::milliseconds(500),
           load_every_ = kDeadline;
  std::function<std::optional<AggregatorPlace>(const AggregatorPlace&)>
      moved_;  // asked on the worker's thread
  bool preempted_ = false;
  std::atomic<bool> stop_{false};
  std::future<int> worker_;
};

}  // namespace allot::worker
