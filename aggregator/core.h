// The aggregator without sockets, files or clocks: a message and a time go in, replies and records come out.
// Everything it knows follows from the spec and the records, so a restart on the same history continues where
// the last one ended.
//
// The order that makes it safe: receive() and tick() change the state and queue records and replies; the edge
// takes both, commits the records, and only then sends the replies. When the commit fails the process ends
// without having answered.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aggregator/history.h"
#include "aggregator/lease_table.h"
#include "aggregator/plan.h"
#include "aggregator/records.h"
#include "base/clock.h"
#include "policy/policy.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

struct Reply {
  std::string peer;
  wire::Envelope envelope;
};

struct Outputs {
  std::vector<Record> records;  // to commit, in this order
  std::vector<Reply> replies;   // to send after that
};

class Core {
 public:
  // Replays `history` into `policy`, which was made from `spec` and asked nothing yet. Throws InvalidArgument
  // for a spec that cannot run and CorruptFile when the history is not one of this spec (a proposal asked
  // again differs from the recorded one, a record does not fit the state).
  Core(const wire::RunSpec& spec, std::unique_ptr<policy::Policy> policy, const History& history,
       Timestamp now);

  // One frame of a peer; it may hold anything.
  void receive(const std::string& peer, std::string_view frame, Timestamp now);
  // Expires leases and forgets peers that were silent for long. Throws Error when the run cannot get on:
  // episodes fail one after the other whatever is tried.
  void tick(Timestamp now);
  // What was queued since the last call.
  [[nodiscard]] Outputs take();

  Stage stage() const { return plan_.stage(); }
  // True once every worker has been told that the run is finished.
  bool everyone_heard_finished() const;
  const wire::Counters& counters() const { return counters_; }
  wire::Status status(Timestamp now) const;
  const policy::Policy& policy() const { return plan_.policy(); }
  const LeaseTable& leases() const { return leases_; }

 private:
  struct Worker {
    std::string device;
    std::string build;
    int64_t episodes_done = 0;  // since this start
    Timestamp last_seen;
    bool heard_finished = false;
  };
  struct Peer {
    std::string worker;  // its name; empty for a client
    Timestamp last_seen;
  };

  // State changes that a record stands for: of the history at the start, and of perform().
  void apply(const EpisodeAsked& asked);
  void apply(const LeaseGranted& granted);
  void apply(const LeaseEnded& ended);
  void apply(const EpisodeTold& told);
  void apply(const EpisodeSetAside& set_aside);
  void apply(const VersionReached& reached);
  template <class R>
  void perform(R record);  // applies it and queues it for the history
  bool tell(EpisodeId episode, const std::vector<QuestionResult>& results);
  void note_version(Timestamp now);

  void handle(const wire::Envelope& message, const std::string& peer, Timestamp now);
  void hello(const wire::Envelope& message, Timestamp now);
  void introduce(const wire::Envelope& message, Timestamp now);
  void lease_request(const wire::LeaseRequest& request, const std::string& worker, Timestamp now);
  void result(const wire::EpisodeResult& result, const std::string& worker, Timestamp now);
  void release(const wire::Release& release, const std::string& worker, Timestamp now);

  std::optional<EpisodeId> next_episode(Timestamp now);
  wire::Lease grant(EpisodeId episode, const std::string& worker, Timestamp now);
  wire::Ack judge(const wire::EpisodeResult& result, const std::string& worker, Timestamp now);
  Verdict accept(const wire::EpisodeResult& result, bool live, const std::string& worker, Timestamp now);
  void fail(LeaseId lease, bool live, LeaseEnd how, const std::string& reason, Timestamp now);
  void end_lease(LeaseId lease, LeaseEnd how, const std::string& reason, Timestamp now);

  wire::Envelope& reply();  // to the message being handled
  void refuse(wire::Refused::Reason reason, const std::string& message);
  Duration retry_after() const;

  wire::RunSpec spec_;
  int64_t epoch_;
  Duration spent_before_;
  Timestamp started_;
  Plan plan_;
  LeaseTable leases_;
  std::unordered_map<EpisodeId, Episode> open_;  // asked, neither told nor set aside
  int64_t noted_version_ = -1;                   // the last version recorded
  wire::Counters counters_;
  std::map<std::string, Worker> workers_;
  std::unordered_map<std::string, Peer> peers_;  // by routing id
  std::deque<Timestamp> recent_tells_;
  int failures_in_a_row_ = 0;  // episodes set aside after a failure, since the last that was told
  std::string last_failure_;
  uint64_t number_ = 0;
  Timestamp next_forgetting_;
  std::string answering_peer_;  // of the message being handled
  uint64_t answering_number_ = 0;
  Outputs outputs_;
};

}  // namespace allot::aggregator
