// Whatever workers, clients and strangers send: frames of any bytes and well-formed messages in any order,
// with time passing and the process dying in between. The leases stay sound, every reply can be sent, and a
// restart finds the state that was committed, bit for bit.
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/core.h"
#include "aggregator/history_memory.h"
#include "aggregator/run_spec.h"
#include "base/error.h"
#include "base/log.h"
#include "tests/aggregator/example_spec.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"
#include "wire/codec.h"

namespace allot::fuzz {
namespace {

constexpr int kMaxSteps = 24;
// Each reads the whole history, so many of them would leave time for little else.
constexpr int kMaxRestarts = 2;
constexpr int kWorkers = 3;

// Small, so that an input of a hundred bytes can bring it from the first episode to the end.
wire::RunSpec small_spec() {
  wire::RunSpec spec = aggregator::example_spec();
  spec.mutable_model()->set_layers(3);
  spec.mutable_policy()->set_total(12);
  (*spec.mutable_policy()->mutable_parameters())["pairs_per_update"] = 1;
  spec.set_episodes(6);
  spec.set_questions_per_episode(2);
  spec.mutable_task()->mutable_train()->set_questions(4);
  spec.mutable_task()->set_heldout_questions(2);
  spec.set_max_attempts(2);
  return spec;
}

class Session {
 public:
  explicit Session(ByteSource source) : source_(source), spec_(base_spec()) { start(); }

  void run() {
    for (int step = 0; step < kMaxSteps && !source_.empty(); ++step) {
      try {
        act();
      } catch (const Error&) {
        return;  // the run cannot get on; the process ends without an answer
      }
    }
    if (committed_) last_restart();
  }

 private:
  static const wire::RunSpec& base_spec() {
    static const wire::RunSpec spec = small_spec();
    return spec;
  }

  void start() {
    history_ = aggregator::open_memory_history(&store_, now_);
    core_ = std::make_unique<aggregator::Core>(spec_, policy::make_policy(aggregator::policy_config(spec_)),
                                               *history_, now_);
    commit();
  }

  void restart() {
    committed_ = false;
    ++restarts_;
    const int64_t done = core_->status(now_).episodes_done();
    core_.reset();
    history_.reset();
    start();
    require(core_->status(now_).episodes_done() == done, "a restart finds the episodes that were done");
  }

  // Compares the policy bit for bit. Once, because writing it takes a third of the time: what a restart in
  // the middle lost, a replay of the whole finds.
  void last_restart() {
    const std::string policy = core_->policy().save();
    restart();
    require(core_->policy().save() == policy, "a restart finds the policy as it was");
  }

  void commit() {
    aggregator::Outputs outputs = core_->take();
    history_->commit(outputs.records, core_->counters(), now_);
    committed_ = committed_ || !outputs.records.empty();
    for (aggregator::Reply& reply : outputs.replies) {
      for (const wire::Lease& lease : reply.envelope.grant().leases()) granted_.push_back(lease);
      const auto received = wire::decode(wire::encode(std::move(reply.envelope)));
      require(std::holds_alternative<wire::Envelope>(received), "a reply can be read");
    }
    const std::vector<std::string> broken = core_->broken_invariants();
    require(broken.empty(), broken.empty() ? "" : broken.front());
  }

  void act() {
    switch (source_.below(11)) {
      case 0: {
        const std::string peer = this->peer();
        const size_t size = source_.word();
        return deliver(peer, source_.text(size));
      }
      case 1: {
        wire::Envelope message;
        *message.mutable_hello() = aggregator::example_hello(spec_, name());
        message.mutable_hello()->set_device(text());
        return send(std::move(message));
      }
      case 2: {
        wire::Envelope message;
        message.mutable_lease_request()->set_count(source_.below(8) - 1);
        return send(std::move(message));
      }
      case 3:
      case 4: {
        wire::Envelope message;
        *message.mutable_result() = result();
        return send(std::move(message));
      }
      case 5: {
        wire::Envelope message;
        for (int count = source_.below(4); count > 0; --count)
          message.mutable_release()->add_leases(lease().lease());
        message.mutable_release()->set_reason(static_cast<wire::Release::Reason>(source_.below(4)));
        for (int count = source_.below(3); count > 0; --count)
          *message.mutable_release()->add_partial() = partial_result();
        return send(std::move(message));
      }
      case 6: {
        wire::Envelope message;
        message.mutable_heartbeat();
        return send(std::move(message));
      }
      case 7: {
        wire::Envelope message;
        message.mutable_status_request();
        return send(std::move(message));
      }
      case 8:
        now_ += Duration{source_.word() * 20};
        core_->tick(now_);
        return commit();
      case 9:
        if (restarts_ < kMaxRestarts) restart();
        return;
      case 10: {
        wire::Envelope message;
        message.mutable_control()->set_action(static_cast<wire::Control::Action>(source_.below(11)));
        message.mutable_control()->set_episodes(source_.byte() - 1);
        message.mutable_control()->set_reward(source_.byte() / 128.0 - 0.5);
        message.mutable_control()->set_worker(name());
        message.mutable_control()->set_by(text());
        return send(std::move(message));
      }
    }
  }

  std::string name() { return std::string(1, static_cast<char>('a' + source_.below(kWorkers))); }
  std::string peer() { return std::string(1, static_cast<char>('A' + source_.below(kWorkers))); }

  // As long as the limits on texts and longer, of characters of one to three bytes.
  std::string text() {
    std::string text(static_cast<size_t>(source_.below(4)), 'x');
    for (int count = source_.byte(); count > 0; --count) text += "\u4f60";
    return text;
  }

  // One that was granted, mostly.
  wire::Lease lease() {
    const auto choice = static_cast<size_t>(source_.byte());
    if (choice < granted_.size()) return granted_[granted_.size() - 1 - choice];
    wire::Lease unknown;
    unknown.set_lease(static_cast<int64_t>(choice) - 128);
    unknown.set_episode(source_.byte());
    return unknown;
  }

  wire::EpisodeResult result() {
    const wire::Lease lease = this->lease();
    const uint8_t faults = source_.byte();
    wire::EpisodeResult result;
    result.set_lease(lease.lease());
    result.set_episode(lease.episode() + (faults % 16 == 1 ? 1 : 0));
    result.set_seconds(faults % 16 == 2 ? std::numeric_limits<double>::quiet_NaN() : 0.5);
    if (faults % 16 == 3) result.set_error(text());
    for (const uint32_t question : lease.questions()) {
      wire::QuestionOutcome& outcome = *result.add_outcomes();
      outcome.set_question(question + (faults % 16 == 4 ? 1 : 0));
      outcome.set_correct(source_.below(2) != 0);
      outcome.set_finish(faults % 16 == 5 ? static_cast<wire::FinishReason>(source_.byte())
                                          : wire::FINISH_REASON_STOP);
      outcome.set_prompt_tokens(faults % 16 == 6 ? -1 : 10);
      outcome.set_output_tokens(20);
    }
    if (faults % 16 == 7) result.add_outcomes();
    if (faults % 16 == 8) {
      result.set_error("out of memory");
      result.set_crashed(true);
    }
    return result;
  }

  // The answers of a result but for the first or the last, or all of them.
  wire::PartialResult partial_result() {
    wire::EpisodeResult whole = result();
    wire::PartialResult partial;
    partial.set_lease(whole.lease());
    partial.set_episode(whole.episode());
    partial.set_seconds(whole.seconds());
    const int left_out = source_.below(3);
    for (int i = left_out == 1 ? 1 : 0; i < whole.outcomes_size() - (left_out == 2 ? 1 : 0); ++i)
      *partial.add_outcomes() = whole.outcomes(i);
    return partial;
  }

  // With the leases its sender says it holds, and now and then with a byte that the network turned.
  void send(wire::Envelope message) {
    const std::string from = peer();
    message.set_number(++number_);
    message.set_sender(from);
    for (int count = source_.below(4); count > 0; --count) message.add_leases(lease().lease());
    std::string frame = wire::encode(std::move(message));
    const uint8_t damage = source_.byte();
    if (damage >= 0xF0) frame[source_.word() % frame.size()] ^= static_cast<char>(damage & 0x0F);
    deliver(from, frame);
  }

  void deliver(const std::string& from, std::string_view frame) {
    // Peer A has no key, B a worker's and C a viewer's.
    using aggregator::Rights;
    const Rights rights = from == "A" ? Rights::kOperator : from == "B" ? Rights::kWorker : Rights::kViewer;
    core_->receive({from, rights, from == "A" ? "" : "holder-" + from}, frame, now_);
    commit();
  }

  ByteSource source_;
  const wire::RunSpec& spec_;
  Timestamp now_{Duration{1'700'000'000'000}};
  aggregator::MemoryStore store_;
  std::unique_ptr<aggregator::History> history_;
  std::unique_ptr<aggregator::Core> core_;
  std::vector<wire::Lease> granted_;
  uint64_t number_ = 0;
  int restarts_ = 0;
  bool committed_ = false;  // something since the last restart
};

}  // namespace
}  // namespace allot::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const bool quiet = [] {
    spdlog::set_level(spdlog::level::off);
    return true;
  }();
  (void)quiet;
  allot::fuzz::Session(allot::fuzz::ByteSource({data, size})).run();
  return 0;
}
