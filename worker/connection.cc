#include "worker/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/episode_codec.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::worker {
namespace {

using namespace std::chrono_literals;
using wire::Ack;
using wire::Envelope;

// How often to check the stop flag when nothing else happens.
constexpr Duration kPoll = 100ms;
// Of the outcomes in one message; the rest of a frame holds the leases and what is around them.
constexpr size_t kMostBytes = wire::kMaxRequestBytes / 4 * 3;

// Sets lease, episode, seconds and results of a wire::EpisodeResult or a wire::PartialResult.
template <class Message>
void fill(const EpisodeResult& result, LeaseId lease, Message* message) {
  message->set_lease(lease.value);
  message->set_episode(result.episode.value);
  message->set_seconds(result.seconds);
  wire::fill(result.results, result.texts, message);
}

wire::EpisodeResult failure(LeaseId lease, EpisodeId episode, const std::string& reason) {
  wire::EpisodeResult message;
  message.set_lease(lease.value);
  message.set_episode(episode.value);
  message.set_error(reason);
  return message;
}

}  // namespace

// One call of run(). Reconnecting replaces only the socket: running episodes and results without an Ack are
// kept, and the next hello lists their leases.
class Connection::Session {
 public:
  Session(const ConnectionOptions& options, const wire::Hello& hello, const RunnerFactory& factory)
      : options_(options),
        hello_(hello),
        factory_(factory),
        aggregator_{options.endpoint, options.keys},
        resend_(options.resend),
        patience_(options.patience),
        longest_retry_(options.longest_retry),
        retry_(options.first_retry) {
    connect(aggregator_);
    say_hello();
  }

  int run(const std::atomic<bool>& stop) {
    while (!stop) {
      if (finished_ && options_.exit_when_finished && held_leases().empty()) {
        spdlog::info("the run is finished");
        return 0;
      }
      step();
    }
    if (!running_.empty()) spdlog::info("stopping: giving {} leases back", running_.size());
    deliver();
    return 0;
  }

 private:
  struct Unacked {
    wire::EpisodeResult result;
    std::optional<Timestamp> sent;  // on this connection
  };

  // The aggregator's silence is judged right after all waiting messages were read, and before the runner,
  // which may take long, works.
  void step() {
    receive(idle_time());
    connect_anew_if_silent();
    connect_anew_if_settled();
    if (!draining_) work();
    if (introduced_) send_what_is_due();
  }

  Duration idle_time() const {
    if (!running_.empty() && !draining_) return Duration::zero();
    if (draining_ || !introduced_ || request_sent_) return kPoll;
    return std::clamp(next_request_ - clock_.now(), Duration{1}, kPoll);
  }

  // ---- Sending

  void send(Envelope message) {
    message.set_number(++number_);
    message.set_sender(hello_.worker());
    message.set_epoch(epoch_);
    for (const int64_t lease : held_leases()) message.add_leases(lease);
    client_->send(wire::encode(std::move(message)));
    ++messages_;
    last_sent_ = clock_.now();
    if (!unanswered_since_) unanswered_since_ = last_sent_;
  }

  void connect(const AggregatorPlace& place) {
    client_.emplace(place.endpoint, place.keys);
    messages_ = 0;
  }

  // Leases of running episodes and of results without an Ack.
  std::vector<int64_t> held_leases() const {
    std::vector<int64_t> leases;
    for (const auto& [episode, lease] : running_) leases.push_back(lease.value);
    for (const auto& [lease, unacked] : unacked_) leases.push_back(lease.value);
    return leases;
  }

  // A Grant to an earlier connection never arrives.
  bool grant_may_come() const { return introduced_ && request_sent_; }

  void say_hello() {
    introduced_ = false;
    Envelope message;
    *message.mutable_hello() = hello_;
    send(std::move(message));
    hello_deadline_ = clock_.now() + retry_;
  }

  void connect_anew_if_silent() {
    const Timestamp now = clock_.now();
    const bool unwelcome = !introduced_ && now >= hello_deadline_;
    const bool silent = introduced_ && unanswered_since_ && now - *unanswered_since_ >= patience_;
    if (!unwelcome && !silent) return;
    retry_ = std::min(2 * retry_, longest_retry_);
    const auto failure = client_->handshake_failure();
    spdlog::warn("no answer from {}{}; connecting again, waiting up to {} ms", aggregator_.endpoint,
                 failure ? " (" + *failure + ")" : "", retry_.count());
    // A new socket has a new routing id: replies that were under way to the old one never arrive.
    if (!follow()) {
      if (unwelcome && aggregator_.keys) aggregator_.keys->try_other_server();
      connect(aggregator_);
    }
    say_hello();
  }

  // Reconnects to save the aggregator's memory (wire/endpoint.h), but only when nothing is under way: a Grant
  // sent to the old connection would be lost.
  void connect_anew_if_settled() {
    if (!introduced_ || draining_ || messages_ < wire::kMessagesOfAConnection) return;
    if (unanswered_since_ || request_sent_ || !unacked_.empty()) return;
    connect(aggregator_);
    say_hello();
  }

  // Connects to the aggregator's new place; false when it has not moved, or when connecting there fails.
  bool follow() {
    if (!options_.moved) return false;
    try {
      std::optional<AggregatorPlace> place = options_.moved(aggregator_);
      if (!place) return false;
      connect(*place);
      if (place->endpoint == aggregator_.endpoint) {
        spdlog::info("the keys for {} have been changed", place->endpoint);
      } else {
        spdlog::info("the aggregator has moved from {} to {}", aggregator_.endpoint, place->endpoint);
      }
      aggregator_ = std::move(*place);
      return true;
    } catch (const std::exception& error) {
      spdlog::warn("cannot follow the aggregator, trying {} again: {}", aggregator_.endpoint, error.what());
      return false;
    }
  }

  void send_what_is_due() {
    const Timestamp now = clock_.now();
    const auto unanswered = [&](const std::optional<Timestamp>& sent) {
      return sent && now - *sent < resend_;
    };
    for (auto& [lease, unacked] : unacked_) {
      if (unanswered(unacked.sent)) continue;
      unacked.sent = now;
      Envelope message;
      *message.mutable_result() = unacked.result;
      send(std::move(message));
    }
    if (draining_) {
      if (running_.empty() || unanswered(release_sent_)) return;
      release_sent_ = now;
      for (Envelope& message : releases()) send(std::move(message));
      return;
    }
    const int wanted = runner_->capacity() - static_cast<int>(running_.size());
    if (wanted > 0 && now >= next_request_ && !unanswered(request_sent_)) {
      request_sent_ = now;
      Envelope message;
      message.mutable_lease_request()->set_count(wanted);
      // The Hello was said before the runner was there to know it.
      message.mutable_lease_request()->set_capacity(runner_->capacity());
      send(std::move(message));
    }
    if (now - last_sent_ >= heartbeat_) {
      Envelope message;
      message.mutable_heartbeat();
      send(std::move(message));
    }
  }

  // All running leases, with the answers there are; several messages where one could not hold these. Answers
  // to one lease that no message holds are left out.
  std::vector<Envelope> releases() const {
    const bool preempted = options_.preempted && options_.preempted();
    std::vector<Envelope> messages;
    size_t bytes = 0;
    for (const auto& [episode, lease] : running_) {
      wire::PartialResult partial;
      const EpisodeResult answered = runner_->answered_so_far(episode);
      if (!answered.results.empty()) fill(answered, lease, &partial);
      size_t own_bytes = partial.ByteSizeLong();
      if (own_bytes > kMostBytes) {
        partial.Clear();
        own_bytes = 0;
      }
      bytes += own_bytes;
      if (messages.empty() || bytes > kMostBytes) {
        messages.emplace_back().mutable_release()->set_reason(preempted ? wire::Release::REASON_PREEMPTED
                                                                        : wire::Release::REASON_STOPPED);
        bytes = own_bytes;
      }
      wire::Release& body = *messages.back().mutable_release();
      body.add_leases(lease.value);
      if (partial.outcomes_size() > 0) *body.add_partial() = std::move(partial);
    }
    return messages;
  }

  // ---- Receiving

  // Handles all messages that have arrived; waits up to `timeout` for the first.
  void receive(Duration timeout) {
    while (const std::optional<std::string> frame = client_->receive(timeout)) {
      timeout = Duration::zero();
      unanswered_since_.reset();
      const auto decoded = wire::decode(*frame);
      if (const auto* fault = std::get_if<wire::DecodeFailure>(&decoded)) {
        if (fault->fault == wire::DecodeFault::kOtherVersion) {
          throw Mismatch(fmt::format("cannot work for {}: {}", aggregator_.endpoint, fault->message));
        }
        spdlog::warn("dropped a message from {}: {}", aggregator_.endpoint, fault->message);
        continue;
      }
      handle(std::get<Envelope>(decoded));
    }
  }

  void handle(const Envelope& message) {
    switch (message.body_case()) {
      case Envelope::kWelcome:
        return welcome(message.welcome());
      case Envelope::kRefused:
        return refused(message.refused());
      case Envelope::kGrant:
        request_sent_.reset();
        release_sent_.reset();
        for (const wire::Lease& lease : message.grant().leases()) start(lease);
        return;
      case Envelope::kWait:
        request_sent_.reset();
        next_request_ =
            clock_.now() + Duration{std::clamp<int64_t>(message.wait().retry_after_ms(), 1, 60'000)};
        finished_ = message.wait().finished();
        if (std::exchange(reason_to_wait_, message.wait().message()) != reason_to_wait_ &&
            !reason_to_wait_.empty())
          spdlog::warn("{} has nothing for this worker: {}", aggregator_.endpoint, reason_to_wait_);
        return;
      case Envelope::kAck:
        return acked(message.ack());
      case Envelope::kReleased:
        for (const int64_t lease : message.released().leases()) forget({lease});
        return;
      case Envelope::kHeartbeatReply:
        for (const int64_t lease : message.heartbeat_reply().unknown_leases()) forget({lease});
        return;
      default:
        spdlog::warn("dropped a message {}, which is not for a worker", wire::body_name(message));
    }
  }

  void welcome(const wire::Welcome& welcome) {
    if (!runner_) {
      wire::check_version(welcome.spec());
      spec_ = welcome.spec();
      runner_ = factory_(spec_);
      told_load_at_ = clock_.now();
      hello_.set_capacity(runner_->capacity());
    } else if (welcome.spec().run_id() != spec_.run_id() ||
               !wire::differences(spec_, welcome.spec()).empty()) {
      throw Mismatch(fmt::format(
          "{} serves run '{}' now, this worker was started for run '{}'; start a worker for the new run",
          aggregator_.endpoint, welcome.spec().run_id(), spec_.run_id()));
    }
    if (welcome.epoch() != epoch_) {
      spdlog::info("connected to {}, run {} epoch {}", aggregator_.endpoint, spec_.run_id(), welcome.epoch());
    }
    if (welcome.epoch() < epoch_) {
      spdlog::warn(
          "{} is of epoch {} after one of epoch {}: its history was restored from an older copy, or a newer "
          "aggregator has replaced it and it will end at its next lease",
          aggregator_.endpoint, welcome.epoch(), epoch_);
    }
    epoch_ = welcome.epoch();
    heartbeat_ = Duration{std::max<int64_t>(welcome.heartbeat_ms(), 1)};
    // To wait for longer than a lease would cost all leases.
    if (spec_.lease_ms() > 0) patience_ = std::min(patience_, Duration{spec_.lease_ms()});
    introduced_ = true;
    retry_ = std::min(options_.first_retry, longest_retry_);
    next_request_ = Timestamp{};
    forget_what_was_sent();
  }

  // On a new connection, or to an aggregator that was started again.
  void forget_what_was_sent() {
    for (auto& [lease, unacked] : unacked_) unacked.sent.reset();
    request_sent_.reset();
    release_sent_.reset();
  }

  void refused(const wire::Refused& refused) {
    switch (refused.reason()) {
      case wire::Refused::REASON_NOT_INTRODUCED:
        // The aggregator was started again on the same address, and the socket reconnected by itself. One
        // hello is enough for all messages that were sent before it.
        if (introduced_) say_hello();
        return;
      case wire::Refused::REASON_MALFORMED:
        spdlog::error("{} could not read a message: {}", aggregator_.endpoint, refused.message());
        return;
      default:
        throw Mismatch(fmt::format("{} refuses this worker: {}", aggregator_.endpoint, refused.message()));
    }
  }

  void start(const wire::Lease& lease) {
    const LeaseId id{lease.lease()};
    const EpisodeId episode{lease.episode()};
    // After its lease expired, an episode can be granted again, under a new lease, to a worker that
    // still runs it.
    if (const auto running = running_.find(episode); running != running_.end()) {
      running->second = id;
      return;
    }
    if (draining_) {
      running_[episode] = id;  // kept only so that it is given back
      return;
    }
    running_[episode] = id;
    try {
      runner_->start(wire::episode_of(lease));
    } catch (const std::exception& error) {
      running_.erase(episode);
      unacked_[id] = {failure(id, episode, error.what()), {}};
    }
  }

  void acked(const Ack& ack) {
    const bool waiting = unacked_.erase({ack.lease()}) > 0;
    if (waiting && (ack.verdict() == Ack::VERDICT_REJECTED || ack.verdict() == Ack::VERDICT_FAILED)) {
      spdlog::warn("lease {} of episode {}: {}", ack.lease(), ack.episode(), ack.message());
    }
  }

  // Stops work on a lease that the aggregator no longer expects. A finished result is delivered nevertheless:
  // it may still be useful.
  void forget(LeaseId lease) {
    const auto running = std::ranges::find(running_, lease, [](const auto& entry) { return entry.second; });
    if (running == running_.end()) return;
    if (!draining_) runner_->cancel(running->first);
    running_.erase(running);
  }

  // ---- Working

  void work() {
    if (running_.empty()) return;
    try {
      for (const EpisodeResult& result : runner_->advance()) {
        const auto running = running_.find(result.episode);
        if (running == running_.end()) continue;  // forgotten meanwhile
        wire::EpisodeResult message;
        fill(result, running->second, &message);
        message.set_error(result.error);
        // A longer frame would end the connection, again and again.
        if (message.ByteSizeLong() > kMostBytes)
          message = failure(running->second, result.episode,
                            fmt::format("its {} replies take {} bytes, and a message holds {}",
                                        result.results.size(), message.ByteSizeLong(), kMostBytes));
        if (clock_.now() - told_load_at_ >= options_.load_every) tell_load(message.mutable_load());
        unacked_[running->second] = {std::move(message), {}};
        running_.erase(running);
      }
    } catch (const std::exception& error) {
      for (const auto& [episode, lease] : std::exchange(running_, {})) {
        wire::EpisodeResult message = failure(lease, episode, error.what());
        message.set_crashed(true);
        unacked_[lease] = {std::move(message), {}};
      }
      deliver();
      throw;
    }
  }

  void tell_load(wire::WorkerLoad* load) {
    const WorkDone done = runner_->work_done();
    const Timestamp now = clock_.now();
    load->set_seconds(std::chrono::duration<double>(now - told_load_at_).count());
    load->set_prompt_tokens(done.prompt_tokens - told_load_.prompt_tokens);
    load->set_output_tokens(done.output_tokens - told_load_.output_tokens);
    load->set_busy_seconds(done.busy_seconds - told_load_.busy_seconds);
    load->set_slot_seconds(done.slot_seconds - told_load_.slot_seconds);
    if (options_.memory_use) {
      const MemoryUse memory = options_.memory_use();
      load->set_memory_used_bytes(memory.used);
      load->set_memory_total_bytes(memory.total);
    }
    told_load_ = done;
    told_load_at_ = now;
  }

  // Runs until every lease is settled: each result acked, each other lease released, those of a Grant that is
  // under way too. From here on the shorter waiting times of a drain apply: an aggregator that was restarted
  // a moment ago must hear of this worker before it leaves, and messages to its predecessor are lost.
  void deliver() {
    draining_ = true;
    resend_ = std::min(resend_, options_.drain / 6);
    patience_ = std::min(patience_, options_.drain / 3);
    longest_retry_ = std::min(longest_retry_, options_.drain / 3);
    retry_ = std::min(options_.first_retry, longest_retry_);
    hello_deadline_ = std::min(hello_deadline_, clock_.now() + retry_);
    const Timestamp deadline = clock_.now() + options_.drain;
    const auto settled = [&] { return held_leases().empty() && !grant_may_come(); };
    while (!settled() && clock_.now() < deadline) step();
    if (!held_leases().empty()) {
      spdlog::warn("leaving with {} leases unanswered; they will expire", held_leases().size());
    }
  }

  const ConnectionOptions& options_;
  wire::Hello hello_;
  const RunnerFactory& factory_;
  SystemClock clock_;
  AggregatorPlace aggregator_;
  std::optional<wire::Client> client_;
  int messages_ = 0;  // sent on this connection
  uint64_t number_ = 0;

  // As in the options; shorter while draining.
  Duration resend_;
  Duration patience_;
  Duration longest_retry_;

  bool introduced_ = false;
  Duration retry_;
  Timestamp hello_deadline_;
  Timestamp last_sent_;
  std::optional<Timestamp> unanswered_since_;  // the first message sent after the last one heard
  Duration heartbeat_{1000};
  int64_t epoch_ = 0;
  wire::RunSpec spec_;

  std::unique_ptr<EpisodeRunner> runner_;
  WorkDone told_load_;  // when a result last said what was done
  Timestamp told_load_at_;
  std::map<EpisodeId, LeaseId> running_;
  std::map<LeaseId, Unacked> unacked_;
  std::optional<Timestamp> request_sent_;  // a LeaseRequest that is not answered yet
  std::optional<Timestamp> release_sent_;
  Timestamp next_request_;
  bool finished_ = false;
  std::string reason_to_wait_;  // last reason given to this worker in particular
  bool draining_ = false;       // no episode is started or worked on any more
};

Connection::Connection(ConnectionOptions options) : options_(std::move(options)) {
  const wire::Client check(options_.endpoint, options_.keys);
}

Connection::~Connection() = default;

int Connection::run(const wire::Hello& hello, const RunnerFactory& factory, const std::atomic<bool>& stop) {
  return Session(options_, hello, factory).run(stop);
}

}  // namespace allot::worker
