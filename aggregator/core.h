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
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "aggregator/cross_check.h"
#include "aggregator/history.h"
#include "aggregator/lease_table.h"
#include "aggregator/log_limiter.h"
#include "aggregator/plan.h"
#include "aggregator/records.h"
#include "base/clock.h"
#include "base/log.h"
#include "episode/reply_text.h"
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

// Who sent a message.
struct Sender {
  std::string peer;  // routing id of the connection; replies go back to it
  // Of the sender's key; on a loopback address, which needs no key, every peer is an operator.
  Rights rights = Rights::kOperator;
  // The key's holder; empty without keys. The worker "w" of user "ann" is known as "ann/w", so that no key
  // can speak for the workers of another.
  std::string user = "";
  std::string address = "";  // from which it speaks, for the log; empty = not known
};

// The answer to a question of an evaluation.
struct GivenAnswer {
  std::string schedule;  // its label
  uint32_t repeat = 0;
  QuestionResult result;
  ReplyText text;
};

struct Outputs {
  std::vector<GivenAnswer> answers;  // to keep first: the history has no texts
  std::vector<Record> records;       // to commit, in this order
  std::vector<Reply> replies;        // to send after that
};

class Core {
 public:
  // Replays `history` into `policy`, which was made from `spec` and asked nothing yet. Throws InvalidArgument
  // for a spec that cannot run and CorruptFile when the history is not one of this spec (a proposal asked
  // again differs from the recorded one, a record does not fit the state). A run that evaluates asks `work`:
  // open episodes of its history that are not of it, or that are answered, are withdrawn.
  Core(const wire::RunSpec& spec, std::unique_ptr<policy::Policy> policy, const History& history,
       Timestamp now, EvaluationWork work = {});

  // Handles one frame of a peer, which may hold anything.
  void receive(const Sender& sender, std::string_view frame, Timestamp now);
  // What is received from now on may have waited for long: requests for leases are answered with Wait,
  // because whoever asked may have asked again since or be gone, and nobody would work on what it is granted.
  void fell_behind() { behind_ = true; }
  void caught_up() { behind_ = false; }
  // Says in the log that what `sender` sends is not read, because it sends more than that.
  void note_over_rate(const Sender& sender, double per_second, Timestamp now);
  // Counts connections that ended before a message, because their key was refused.
  void count_refused_connections(int64_t connections);
  // Expires leases and forgets peers that were silent for long. Throws Error when the run cannot go on
  // because one episode after the other fails.
  void tick(Timestamp now);
  // The most leases of a worker that does not say how many episodes it runs at once.
  static constexpr int kMaxLeasesOfAWorker = 64;
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
  // Null in a run that learns.
  const EvaluationPlan* evaluation() const { return plan_.evaluation(); }
  // True when the replay gave every policy version of the history bit for bit, not only within rounding.
  bool replayed_exactly() const { return replayed_exactly_; }
  const LeaseTable& leases() const { return leases_; }
  // Every invariant that is broken, in words; empty for a sound core. For tests.
  std::vector<std::string> broken_invariants() const;

 private:
  struct Faults {
    int in_a_row = 0;  // since the last result
    std::string last;
    int quarantines = 0;  // since the last result
    Timestamp quarantined_until;

    // Counts one more; from `bearable` on it puts the one at fault into quarantine. True when that is new.
    bool add(const std::string& reason, int bearable, Duration lease_time, Timestamp now);
    void forget();  // a result has come
  };
  // Of the workers of one key, or a single worker (holder.h).
  struct Holder {
    bool has_key = false;
    Faults faults;
    int64_t runs_at_once = 0;  // its workers that were heard of within a lease time, together
    int64_t most_leases = kMaxLeasesOfAWorker;  // see share_out()
  };
  struct Worker {
    Worker(std::string its_name, Holder* its_holder) : name(std::move(its_name)), holder(its_holder) {}

    std::string name;
    Holder* holder;
    std::string device;
    std::string build;
    int64_t episodes_done = 0;  // since this start
    Timestamp last_seen;
    bool heard_finished = false;
    bool leaving = false;  // it gave its leases back and has not asked for one since
    std::vector<RewardKind> kinds = {RewardKind::kAnswers};  // of the episodes that it runs
    int32_t capacity = 0;                                    // episodes that it runs at once; 0 = not said
    Faults faults;
    bool silent = false;                   // was found so, and said in the log
    std::optional<wire::WorkerLoad> load;  // the last it told

    bool runs(RewardKind kind) const;
    int most_leases() const;
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
    struct PastLease {
      LeaseId lease;
      std::string worker;
    };
    std::vector<PastLease> past_leases;  // that ended without a result, released ones included
    Timestamp reserved_until;            // until then for workers on which trying it makes more sense

    // How little sense it makes to try it on `worker`.
    enum class Trial { kNew, kFailedForItsHolder, kFailedOnIt };
    Trial trial_on(const std::string& worker) const;
    bool was_held(LeaseId lease, const std::string& worker) const;  // before it ended without a result
    int64_t missing() const;                                        // number of questions without an answer
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
  void call_workers_back();
  void begin_evaluation(Timestamp now);
  // Queues those of the answers that `before`, in the order of the questions, does not have.
  void give(const PlannedEpisode& episode, std::span<const QuestionResult> results,
            std::span<const ReplyText> texts, std::span<const std::optional<QuestionResult>> before);
  template <class R>
  void perform(R record);  // applies it and queues it for the history
  // Its results are in the order of the episode's questions; they need not carry the questions' numbers.
  bool tell(const EpisodeTold& told);
  void note_version(Timestamp now);

  void handle(const wire::Envelope& message, Timestamp now);
  void hello(const wire::Envelope& message, Timestamp now);
  void introduce(const wire::Envelope& message, Timestamp now);
  void lease_request(const wire::LeaseRequest& request, std::span<const int64_t> listed, Worker* worker,
                     Timestamp now);
  void result(const wire::EpisodeResult& result, Worker* worker, Timestamp now);
  void release(const wire::Release& release, Worker* worker, Timestamp now);
  void keep(const wire::PartialResult& partial, Worker* worker, Timestamp now);
  void control(const wire::Control& control, Rights rights, Timestamp now);
  std::string follow(const wire::Control& control, const std::string& by, Timestamp now);
  // The parts of follow() that have more to say; `record` has the control's values.
  std::string cordon(RunControlled record);
  std::string uncordon(RunControlled record);
  std::string want_episodes(RunControlled record);
  std::string verify_on(RunControlled record);
  std::string bound(RunControlled record);
  std::string aim_at(RunControlled record);  // a target
  void note(RunControlled record);           // carries it out and records it
  void stop_at_target(Timestamp now);
  void stop_when_settled(Timestamp now);
  // Counts the updates in a row after which less than the gain floor was left to gain.
  void note_outlook(const policy::Description& described);

  Worker& worker_of(const std::string& name);
  // How many more leases the worker may hold, and in `why_not` the reason where it is none.
  int64_t room_for(const Worker& worker, std::string* why_not) const;
  // Once a second: says which workers fell silent, and what the holders of keys may hold from now on.
  void look_at_workers(Timestamp now);
  // Holders of keys share the leases that are useful at once. What the others would run at once, up to an
  // equal share, is kept free for them.
  void share_out();
  std::optional<EpisodeId> next_episode(const Worker& worker, Timestamp now);
  EpisodeId ask(PlannedEpisode episode, Timestamp now);
  // False for a check of an episode that the worker's holder had.
  bool may_check(const Open& open, const Worker& worker) const;
  // Why a worker gets nothing though others do: all that is to be run is of kinds that it does not run. Empty
  // where that is not so.
  std::string kinds_that_it_lacks(const Worker& worker) const;
  bool was_heard(const Worker& worker, Timestamp now) const;  // within the last lease time
  bool healthy(const Worker& worker, Timestamp now) const;
  bool another_may_take(const Open& open, const Worker& worker, Timestamp now) const;
  // Whether a worker that has not failed is at work, so that failures of others do not yet speak of the run.
  bool someone_may_succeed(Timestamp now) const;
  void list_workers(Timestamp now, wire::Status* status) const;
  bool another_holder_is_present(std::string_view holder, Timestamp now) const;
  void note_failure(Worker* worker, const std::string& reason, Timestamp now);
  // Whether it gets nothing because of its faults or those of its holder's workers.
  bool quarantined(const Worker& worker, Timestamp now) const;
  // Whether an operator has cordoned it or its holder.
  bool cordoned(const Worker& worker) const;
  Timestamp quarantined_until(const Worker& worker) const;
  wire::Lease grant(EpisodeId episode, const std::string& worker, Timestamp now);
  wire::Ack judge(const wire::EpisodeResult& result, Worker* worker, Timestamp now);
  void note_foreign(const wire::EpisodeResult& result, const std::string& worker, const char* what);
  // `told` lacks its verdict and version.
  AckVerdict accept(EpisodeTold told, Worker* worker, bool live);
  static bool is_failure(LeaseEnd how);
  void fail(LeaseId lease, bool live, LeaseEnd how, const std::string& reason, Timestamp now);
  void give_up(EpisodeId episode, Timestamp now);
  // Ends an open episode, and the lease on it, because nobody wants its result any more.
  void withdraw(EpisodeId episode, const std::string& reason, Timestamp now);
  void end_lease(LeaseId lease, LeaseEnd how, const std::string& reason, Timestamp now);

  wire::Envelope& reply();  // the reply to the message being handled
  void refuse(wire::Refused::Reason reason, const std::string& message);
  // Who sent the message being handled, for the log: "ann at 10.0.0.7".
  std::string sender_text() const;
  // Writes a line to the log, unless there were many of its kind.
  template <class... Args>
  void log(LogKind kind, spdlog::level::level_enum level, fmt::format_string<Args...> format, Args&&... args);
  void log_stage();
  Duration retry_after() const;
  Duration put_off();  // when to ask again: this round grants no more leases

  wire::RunSpec spec_;
  int64_t epoch_;
  Duration spent_before_;
  Timestamp started_;
  Plan plan_;
  CrossCheck cross_check_;
  LeaseTable leases_;
  std::unordered_map<EpisodeId, Open> open_;
  bool paused_ = false;
  std::set<std::string, std::less<>> cordoned_;  // workers and holders that get no leases
  std::optional<double> target_;                 // of the recent mean reward
  bool until_settled_;                           // as long as no operator says how many episodes are wanted
  bool settled_ = false;
  int settled_updates_ = 0;              // see note_outlook()
  std::deque<RunControlled> controls_;   // the last few
  std::deque<EpisodeGivenUp> given_up_;  // the last few
  bool replayed_exactly_ = true;         // see replayed_exactly()
  policy::Description described_;        // of the policy at noted_version_, with its outlook
  int64_t noted_version_ = -1;           // the last version recorded
  wire::Counters counters_;
  std::map<std::string, Holder, std::less<>> holders_;  // of workers_
  std::map<std::string, Worker> workers_;
  std::unordered_map<std::string, Peer> peers_;  // by routing id
  std::deque<Timestamp> recent_tells_;
  int failures_in_a_row_ = 0;               // episodes given up after a failure, since the last that was told
  std::optional<Timestamp> failing_since_;  // the first failure since the last episode that was told
  std::string last_failure_;
  uint64_t number_ = 0;
  std::vector<QuestionResult> telling_;  // room of tell()
  Timestamp next_forgetting_;
  Timestamp next_look_;  // at the workers
  bool behind_ = false;  // see fell_behind()
  // Of the message being handled.
  Sender sender_;
  uint64_t answering_number_ = 0;
  Timestamp now_;  // of the message or tick being handled
  LogLimiter log_limiter_;
  std::optional<Stage> logged_stage_;
  int granted_this_round_ = 0;  // leases
  int put_off_this_round_ = 0;  // requests
  Outputs outputs_;
};

template <class R>
void Core::perform(R record) {
  apply(record);
  outputs_.records.emplace_back(std::move(record));
}

template <class... Args>
void Core::log(LogKind kind, spdlog::level::level_enum level, fmt::format_string<Args...> format,
               Args&&... args) {
  if (!spdlog::should_log(level)) return;
  const std::optional<int64_t> left_out = log_limiter_.admit(kind, now_);
  if (!left_out) return;
  const std::string more =
      *left_out == 0 ? "" : fmt::format(" ({} more {} were left out)", *left_out, plural_of(kind));
  spdlog::log(level, "{}{}", fmt::format(format, std::forward<Args>(args)...), more);
}

}  // namespace allot::aggregator
