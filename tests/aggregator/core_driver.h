// A core and its history without sockets: messages go in as bytes, records are committed, replies come back.
// The history is in memory or in SQLite, and both survive crash(), which forgets everything else.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/core.h"
#include "aggregator/history_memory.h"
#include "aggregator/holder.h"
#include "aggregator/run_spec.h"
#include "base/clock.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/example_spec.h"
#include "wire/codec.h"

namespace allot::aggregator {

enum class Storage { kMemory, kSqlite };
inline std::string storage_name(const testing::TestParamInfo<Storage>& param) {
  return param.param == Storage::kMemory ? "Memory" : "Sqlite";
}

class CoreDriver {
 public:
  using MakePolicy = std::unique_ptr<policy::Policy> (*)(const policy::PolicyConfig& config);

  CoreDriver(Storage storage, wire::RunSpec spec, MakePolicy make_policy = policy::make_policy)
      : storage_(storage), spec_(std::move(spec)), make_policy_(make_policy) {
    open();
  }
  // Of a run that evaluates: `work` says at each start what is asked, and `keep` takes the answers.
  CoreDriver(Storage storage, wire::RunSpec spec, std::function<EvaluationWork()> work,
             std::function<void(std::span<const GivenAnswer>)> keep)
      : storage_(storage), spec_(std::move(spec)), work_(std::move(work)), keep_(std::move(keep)) {
    open();
  }

  // Opens the history again and replays it, as after kill -9.
  void crash() {
    core_.reset();
    history_.reset();
    open();
  }

  // As after kill -9 between keeping the answers that the next message brings and committing it.
  void crash_before_commit(bool on) { crash_before_commit_ = on; }

  // From now on worker "ann/w" speaks by the key of ann, as "w".
  void use_keys() { keys_ = true; }

  // One poll round with one message; the replies to it.
  std::vector<wire::Envelope> send_frame(const Sender& sender, std::string_view frame) {
    core_->receive(sender, frame, clock_.now());
    return commit();
  }
  std::vector<wire::Envelope> tick() {
    core_->tick(clock_.now());
    return commit();
  }
  // As above for a message of worker `name` that holds `leases`; its one reply.
  wire::Envelope send(const std::string& name, wire::Envelope message, std::vector<int64_t> leases = {}) {
    message.set_number(++number_);
    message.set_sender(name);
    message.mutable_leases()->Assign(leases.begin(), leases.end());
    if (keys_ && message.has_hello())
      message.mutable_hello()->set_worker(name.substr(holder_of(name).size() + 1));
    const Sender sender{.peer = fmt::format("peer of {}", name),
                        .rights = keys_ ? Rights::kWorker : Rights::kOperator,
                        .user = keys_ ? std::string(holder_of(name)) : ""};
    std::vector<wire::Envelope> replies = send_frame(sender, wire::encode(message));
    if (std::exchange(crashed_, false)) return {};
    EXPECT_EQ(replies.size(), 1u);
    if (replies.empty()) return {};
    EXPECT_EQ(replies[0].in_reply_to(), number_);
    return replies[0];
  }

  wire::Envelope hello(const std::string& name, std::vector<int64_t> leases = {}) {
    wire::Envelope message;
    *message.mutable_hello() = example_hello(spec_, name);
    return send(name, std::move(message), std::move(leases));
  }
  // Of a worker that says which kinds of episodes it runs.
  wire::Envelope hello_with_kinds(const std::string& name, const std::vector<wire::LeaseKind>& kinds) {
    wire::Envelope message;
    *message.mutable_hello() = example_hello(spec_, name);
    for (const wire::LeaseKind kind : kinds) message.mutable_hello()->add_kinds(kind);
    return send(name, std::move(message));
  }
  wire::Envelope request(const std::string& name, int count, std::vector<int64_t> leases = {},
                         int capacity = 0) {
    wire::Envelope message;
    message.mutable_lease_request()->set_count(count);
    message.mutable_lease_request()->set_capacity(capacity);
    return send(name, std::move(message), std::move(leases));
  }
  std::vector<wire::Lease> leases(const std::string& name, int count) {
    const wire::Envelope reply = request(name, count);
    return {reply.grant().leases().begin(), reply.grant().leases().end()};
  }
  wire::Ack answer(const std::string& name, const wire::EpisodeResult& result) {
    wire::Envelope message;
    *message.mutable_result() = result;
    return send(name, std::move(message), {result.lease()}).ack();
  }
  std::vector<int64_t> heartbeat(const std::string& name, std::vector<int64_t> leases) {
    wire::Envelope message;
    message.mutable_heartbeat();
    const wire::Envelope reply = send(name, std::move(message), std::move(leases));
    return {reply.heartbeat_reply().unknown_leases().begin(), reply.heartbeat_reply().unknown_leases().end()};
  }

  // Says that `lease` cannot be run.
  wire::Ack fail(const std::string& name, const wire::Lease& lease, const std::string& error) {
    wire::EpisodeResult result;
    result.set_lease(lease.lease());
    result.set_episode(lease.episode());
    result.set_error(error);
    return answer(name, result);
  }
  // Gives `lease` back with the answers to its questions at `places`, of which every second is right.
  void release(const std::string& name, const wire::Lease& lease, std::vector<int> places,
               wire::Release::Reason reason = wire::Release::REASON_PREEMPTED) {
    wire::Envelope message;
    wire::Release& release = *message.mutable_release();
    release.set_reason(reason);
    release.add_leases(lease.lease());
    if (!places.empty()) *release.add_partial() = partial_of(lease, places);
    send(name, std::move(message), {lease.lease()});
  }
  wire::ControlReply control(wire::Control control, const std::string& by = "ann") {
    wire::Envelope message;
    *message.mutable_control() = std::move(control);
    message.mutable_control()->set_by(by);
    return send("operator", std::move(message)).control_reply();
  }
  wire::ControlReply control(wire::Control::Action action, int64_t episodes = 0, double reward = 0) {
    wire::Control control;
    control.set_action(action);
    control.set_episodes(episodes);
    control.set_reward(reward);
    return this->control(std::move(control));
  }
  // All records of one kind.
  template <class R>
  std::vector<R> records_of() const {
    std::vector<R> found;
    for (const Record& record : records()) {
      if (const auto* one = std::get_if<R>(&record)) found.push_back(*one);
    }
    return found;
  }

  static wire::PartialResult partial_of(const wire::Lease& lease, const std::vector<int>& places) {
    wire::PartialResult partial;
    partial.set_lease(lease.lease());
    partial.set_episode(lease.episode());
    partial.set_seconds(0.25);
    for (const int place : places) {
      wire::QuestionOutcome& outcome = *partial.add_outcomes();
      outcome.set_question(lease.questions(place));
      outcome.set_correct(place % 2 == 0);
      outcome.set_finish(wire::FINISH_REASON_LENGTH);
      outcome.set_prompt_tokens(100 + place);
      outcome.set_output_tokens(10);
    }
    return partial;
  }

  Core& core() { return *core_; }
  History& history() { return *history_; }
  ManualClock& clock() { return clock_; }
  const wire::RunSpec& spec() const { return spec_; }
  wire::Status status() const { return core_->status(clock_.now()); }
  std::vector<Record> records() const {
    std::vector<Record> all;
    history_->replay([&](const Record& record) { all.push_back(record); });
    return all;
  }
  std::unique_ptr<History> open_history() {
    if (storage_ == Storage::kMemory) return open_memory_history(&memory_, clock_.now());
    return open_sqlite_history(directory_.path() / "history.sqlite", "test", clock_.now());
  }
  std::filesystem::path file() const { return directory_.path() / "history.sqlite"; }

 private:
  void open() {
    history_ = open_history();
    core_ = spec_.has_evaluation()
                ? std::make_unique<Core>(spec_, make_learner(spec_), *history_, clock_.now(), work_())
                : std::make_unique<Core>(spec_, make_policy_(policy_config(spec_)), *history_, clock_.now());
    EXPECT_TRUE(commit().empty());
  }
  std::vector<wire::Envelope> commit() {
    Outputs outputs = core_->take();
    if (!outputs.answers.empty()) keep_(outputs.answers);
    if (!outputs.answers.empty() && crash_before_commit_) {
      crash_before_commit_ = false;
      crashed_ = true;
      crash();
      return {};
    }
    history_->commit(outputs.records, core_->counters(), clock_.now());
    std::vector<wire::Envelope> replies;
    for (Reply& reply : outputs.replies) replies.push_back(std::move(reply.envelope));
    EXPECT_EQ(core_->broken_invariants(), std::vector<std::string>{});
    return replies;
  }

  Storage storage_;
  wire::RunSpec spec_;
  MakePolicy make_policy_ = nullptr;
  std::function<EvaluationWork()> work_;
  std::function<void(std::span<const GivenAnswer>)> keep_;
  bool crash_before_commit_ = false;
  bool crashed_ = false;  // while the last message was handled
  ManualClock clock_{Timestamp{Duration{1'700'000'000'000}}};
  TemporaryDirectory directory_;
  MemoryStore memory_;
  std::unique_ptr<History> history_;
  std::unique_ptr<Core> core_;
  uint64_t number_ = 0;
  bool keys_ = false;
};

// A core that the tests of a suite are run on with each storage.
class CoreDriverTest : public testing::TestWithParam<Storage> {
 protected:
  wire::Lease lease(const std::string& worker) {
    const std::vector<wire::Lease> leases = driver_.leases(worker, 1);
    EXPECT_EQ(leases.size(), 1u) << "for " << worker;
    return leases.empty() ? wire::Lease() : leases[0];
  }
  // A sign of life that lists no lease.
  void alive(const std::string& worker) { driver_.heartbeat(worker, {}); }

  CoreDriver driver_{GetParam(), example_spec()};
};

// The answer to a lease, `correct` of its questions right.
inline wire::EpisodeResult result_of(const wire::Lease& lease, int correct) {
  wire::EpisodeResult result;
  result.set_lease(lease.lease());
  result.set_episode(lease.episode());
  result.set_seconds(0.5);
  for (const uint32_t question : lease.questions()) {
    wire::QuestionOutcome& outcome = *result.add_outcomes();
    outcome.set_question(question);
    outcome.set_correct(correct-- > 0);
    outcome.set_finish(wire::FINISH_REASON_STOP);
    outcome.set_prompt_tokens(200);
    outcome.set_output_tokens(50);
  }
  return result;
}

// Leases until nothing is left, answering each with as many right answers as the first layer has samples, at
// most all.
inline void finish(CoreDriver* driver, const std::string& worker) {
  while (true) {
    const std::vector<wire::Lease> leases = driver->leases(worker, 3);
    if (leases.empty()) return;
    for (const wire::Lease& lease : leases) {
      driver->answer(worker, result_of(lease, lease.samples_size() == 0 ? 4 : lease.samples(0) / 4));
    }
  }
}

}  // namespace allot::aggregator
