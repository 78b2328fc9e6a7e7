// The aggregator without sockets, files or clocks: a message and a time go in, replies and records come out.
// Everything it knows follows from the spec and the records, so a restart on the same history continues where
// the last one ended.
//
// The order of steps makes this safe: receive() and tick() change the state and queue records and replies;
// the caller takes both, commits the records, and only then sends the replies. When the commit fails, the
// process ends without having answered.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
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

// What a peer may do besides reading the status.
enum class Rights : uint8_t {
  kViewer,    // nothing
  kWorker,    // work
  kOperator,  // and control the run
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

  // Handles one frame of a peer, which may hold anything. `rights` are those of the peer's key; on a
  // loopback address, which needs no key, every peer is an operator. `user` names the key's holder and is
  // empty without keys: the worker "w" of user "ann" is known as "ann/w", so that no key can speak for the
  // workers of another.
  void receive(const std::string& peer, std::string_view frame, Timestamp now,
               Rights rights = Rights::kOperator, const std::string& user = "");
  // Expires leases and forgets peers that were silent for long. Throws Error when the run cannot go on
  // because one episode after the other fails.
  void tick(Timestamp now);
  // Follows what an operator asks for as the process starts. Throws Mismatch where control() would refuse it.
  void steer(const wire::Control& control, Timestamp now);
  // Returns what was queued since the last call, and ends a round. In each round at most kMaxLeasesPerRound
  // leases are granted; workers that ask for more are told to come back, one after the other.
  static constexpr int kMaxLeasesPerRound = 512;
  [[nodiscard]] Outputs take();

  Stage stage() const { return plan_.stage(); }
  // True once every worker has been told that the run is finished.
  bool everyone_heard_finished() const;
  const wire::Counters& counters() const { return counters_; }
  wire::Status status(Timestamp now) const;
  const policy::Policy& policy() const { return plan_.policy(); }
  // True when the replay gave every policy version of the history bit for bit, not only within rounding.
  bool replayed_exactly() const { return replayed_exactly_; }
  const LeaseTable& leases() const { return leases_; }
  // Every invariant that is broken, in words; empty for a sound core. For tests.
  std::vector<std::string> broken_invariants() const;

 private:
  struct Worker {
    explicit Worker(std::string its_name) : name(std::move(its_name)) {}

    std::string name;
    std::string device;
    std::string build;
    int64_t episodes_done = 0;  // since this start
    Timestamp last_seen;
    bool heard_finished = false;
    bool leaving = false;  // it gave its leases back and has not asked for one since
    std::vector<RewardKind> kinds = {RewardKind::kAnswers};  // of the episodes that it runs
    int32_t capacity = 0;                                    // episodes that it runs at once; 0 = not said
    int failures_in_a_row = 0;
    std::string last_failure;
    int quarantines = 0;  // since its last result
    Timestamp quarantined_until;

    bool runs(RewardKind kind) const;
  };
  // An open episode: asked, but neither told nor given up.
  struct Open {
    PlannedEpisode episode;
    std::vector<std::optional<QuestionResult>> kept;  // in the order of the questions; empty = none
    double kept_seconds = 0;
    struct Attempt {
      std::string worker;
      LeaseEnd how;
      std::string reason;
    };
    std::vector<Attempt> attempts;  // those that ended without a result, without releases
    Timestamp reserved_until;       // until then only for workers on which it has not failed

    bool failed_on(const std::string& worker) const;
    int64_t missing() const;  // number of questions without an answer
  };
  struct Peer {
    std::string worker;  // its name; empty for a client
    Timestamp last_seen;
  };

  // The state change of each kind of record, both when the history is replayed at the start and in perform().
  void apply(const EpisodeAsked& asked);
  void apply(const LeaseGranted& granted);
  void apply(const LeaseEnded& ended);
  void apply(const EpisodeTold& told);
  void apply(const EpisodeGivenUp& given_up);
  void apply(const VersionReached& reached);
  void apply(const AnswersKept& kept);
  void apply(const RunControlled& controlled);
  template <class R>
  void perform(R record);  // applies it and queues it for the history
  // Its results are in the order of the episode's questions; they need not carry the questions' numbers.
  bool tell(const EpisodeTold& told);
  void note_version(Timestamp now);

  void handle(const wire::Envelope& message, const std::string& peer, Timestamp now);
  void hello(const wire::Envelope& message, Timestamp now);
  void introduce(const wire::Envelope& message, Timestamp now);
  void lease_request(const wire::LeaseRequest& request, Worker* worker, Timestamp now);
  void result(const wire::EpisodeResult& result, Worker* worker, Timestamp now);
  void release(const wire::Release& release, Worker* worker, Timestamp now);
  void keep(const wire::PartialResult& partial, Worker* worker, Timestamp now);
  void control(const wire::Control& control, Rights rights, Timestamp now);
  std::string follow(const wire::Control& control, const std::string& by, Timestamp now);
  void stop_at_target(Timestamp now);
  void stop_when_settled(Timestamp now);
  // Counts the updates in a row after which less than the gain floor was left to gain.
  void note_outlook(const policy::Description& described);

  Worker& worker_of(const std::string& name) { return workers_.try_emplace(name, name).first->second; }
  std::optional<EpisodeId> next_episode(const Worker& worker, Timestamp now);
  // Why a worker gets nothing though others do: all that is to be run is of kinds that it does not run. Empty
  // where that is not so.
  std::string kinds_that_it_lacks(const Worker& worker) const;
  bool was_heard(const Worker& worker, Timestamp now) const;  // within the last lease time
  bool healthy(const Worker& worker, Timestamp now) const;
  bool another_may_take(const Open& open, const Worker& worker, Timestamp now) const;
  // Whether a worker that has not failed is at work, so that failures of others do not yet speak of the run.
  bool someone_may_succeed(Timestamp now) const;
  void list_workers(Timestamp now, wire::Status* status) const;
  void note_failure(Worker* worker, const std::string& reason, Timestamp now);
  bool quarantined(const Worker& worker, Timestamp now) const;
  wire::Lease grant(EpisodeId episode, const std::string& worker, Timestamp now);
  wire::Ack judge(const wire::EpisodeResult& result, Worker* worker, Timestamp now);
  // `told` lacks its verdict and version.
  AckVerdict accept(EpisodeTold told, Worker* worker, bool live);
  void fail(LeaseId lease, bool live, LeaseEnd how, const std::string& reason, Timestamp now);
  void give_up(EpisodeId episode, Timestamp now);
  void end_lease(LeaseId lease, LeaseEnd how, const std::string& reason, Timestamp now);

  wire::Envelope& reply();  // the reply to the message being handled
  void refuse(wire::Refused::Reason reason, const std::string& message);
  Duration retry_after() const;
  Duration put_off();  // when to ask again: this round grants no more leases

  wire::RunSpec spec_;
  int64_t epoch_;
  Duration spent_before_;
  Timestamp started_;
  Plan plan_;
  LeaseTable leases_;
  std::unordered_map<EpisodeId, Open> open_;
  bool paused_ = false;
  std::optional<double> target_;  // of the recent mean reward
  bool until_settled_;            // as long as no operator says how many episodes are wanted
  bool settled_ = false;
  int settled_updates_ = 0;              // see note_outlook()
  std::deque<RunControlled> controls_;   // the last few
  std::deque<EpisodeGivenUp> given_up_;  // the last few
  bool replayed_exactly_ = true;         // see replayed_exactly()
  policy::Description described_;        // of the policy at noted_version_, with its outlook
  int64_t noted_version_ = -1;           // the last version recorded
  wire::Counters counters_;
  std::map<std::string, Worker> workers_;
  std::unordered_map<std::string, Peer> peers_;  // by routing id
  std::deque<Timestamp> recent_tells_;
  int failures_in_a_row_ = 0;               // episodes given up after a failure, since the last that was told
  std::optional<Timestamp> failing_since_;  // the first failure since the last episode that was told
  std::string last_failure_;
  uint64_t number_ = 0;
  std::vector<QuestionResult> telling_;  // room of tell()
  Timestamp next_forgetting_;
  std::string answering_peer_;  // who sent the message being handled
  uint64_t answering_number_ = 0;
  int granted_this_round_ = 0;  // leases
  int put_off_this_round_ = 0;  // requests
  Outputs outputs_;
};

template <class R>
void Core::perform(R record) {
  apply(record);
  outputs_.records.emplace_back(std::move(record));
}

}  // namespace allot::aggregator
