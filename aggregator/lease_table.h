// Who works on what until when: the state machine of open episodes and their leases. Pure: time comes in as
// an argument, nothing is written here, and the same events in the same order give the same state, so a
// restart replays them.
//
//   offered ─▶ waiting ─▶ leased ─▶ done
//                 ▲         ├─▶ expired, crashed, failed, rejected: waiting again, one attempt used up
//                 └─────────┴─▶ released, preempted, withdrawn: waiting again, no attempt used up
//   waiting with no attempt left, or not wanted any more ─▶ given up
//
// While its episode is not done, a result is still accepted from a lease that expired or was released; the
// lease that another worker holds by then is superseded. A finished episode costs a few bytes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/strong_id.h"

namespace allot::aggregator {

// What a worker is told of its result.
enum class AckVerdict : uint8_t {
  kNone,
  kAccepted,
  kDuplicate,  // answered before; the stored verdict is final
  kLate,       // came after the lease had expired, but is used
  kStale,      // stored, too old to learn from
  kFailed,     // an error was noted; the episode will be offered again or given up
  kRejected,   // does not fit its lease
};

enum class LeaseEnd : uint8_t {
  kExpired,     // its deadline passed
  kReleased,    // given back by a worker that a person stopped
  kFailed,      // its episode could not be run
  kRejected,    // its result did not fit
  kSuperseded,  // a late result of another lease answered its episode
  kPreempted,   // given back by a worker whose machine is being taken away
  kCrashed,     // its worker came back without it
  kWithdrawn,   // its episode is not wanted any more
};

// Of its episode. Only an end that says something of the episode does.
bool uses_up_an_attempt(LeaseEnd how);

// What a result is, judged by its lease and episode alone.
enum class Standing : uint8_t {
  kLive,       // the lease is held
  kLate,       // the lease expired or was released, and the episode is not done
  kDuplicate,  // the lease was answered or the episode is done: the stored verdict is final
  kGivenUp,    // the episode was given up
  kUnknown,    // no such lease, or it is of another episode
};

struct Judgement {
  Standing standing;
  AckVerdict stored = AckVerdict::kNone;  // of a duplicate
};

class LeaseTable {
 public:
  // A lease runs for `lease_time` after its grant or last renewal; an episode is given up after
  // `max_attempts` leases that expired, crashed, failed or were rejected. Both positive.
  LeaseTable(Duration lease_time, int max_attempts) : lease_time_(lease_time), max_attempts_(max_attempts) {}

  // Events. Episodes are numbered 0, 1, 2, … and leases 1, 2, 3, … in the order of these calls; an
  // event that does not fit the state (a bug, or a history that was tampered with) throws
  // std::logic_error and changes nothing.
  void offer(EpisodeId episode);
  void grant(LeaseId lease, EpisodeId episode, const std::string& worker, Timestamp now);
  void end(LeaseId lease, LeaseEnd how);  // not kSuperseded, which done() does
  // The result of `lease` was stored. Returns the lease of another worker that this supersedes.
  std::optional<LeaseId> done(EpisodeId episode, LeaseId lease, AckVerdict verdict);
  void give_up(EpisodeId episode);   // that is exhausted
  void withdraw(EpisodeId episode);  // that waits or is exhausted: nobody wants its result any more
  // Renews those of `leases` that `worker` holds; returns the others, which it should stop working on.
  std::vector<int64_t> renew(const std::string& worker, std::span<const int64_t> leases, Timestamp now);
  // After a restart: gives every live lease a whole lease time in which its worker can be heard of again.
  void renew_all(Timestamp now);
  // Of leases that are granted or renewed from now on.
  void set_lease_time(Duration lease_time) { lease_time_ = lease_time; }
  // Episodes that wait with that many attempts behind them are exhausted from now on.
  void set_max_attempts(int max_attempts);

  Duration lease_time() const { return lease_time_; }
  int max_attempts() const { return max_attempts_; }

  // Questions.
  std::optional<EpisodeId> next_waiting() const;  // the oldest with an attempt left
  const std::set<EpisodeId>& waiting() const { return waiting_; }
  LeaseId next_lease() const { return {static_cast<int64_t>(leases_.size()) + 1}; }
  int attempt(EpisodeId open_episode) const;  // number of the next or current attempt: 1, 2, …
  std::optional<LeaseId> live_lease(EpisodeId open_episode) const { return open_.at(open_episode).live; }
  std::vector<LeaseId> due(Timestamp now) const;
  std::optional<Timestamp> next_deadline() const;
  std::vector<EpisodeId> exhausted() const;  // to be given up
  Judgement judge(LeaseId lease, EpisodeId episode) const;
  std::optional<EpisodeId> held_episode(LeaseId lease,
                                        const std::string& worker) const;  // when `worker` holds it
  std::vector<LeaseId> held_by(const std::string& worker) const;
  const std::string& holder(LeaseId live_lease) const { return live_.at(live_lease).worker; }
  EpisodeId episode(LeaseId live_lease) const { return live_.at(live_lease).episode; }
  bool is_live(LeaseId lease) const { return live_.contains(lease); }
  size_t num_open() const { return open_.size(); }
  size_t num_live() const { return live_.size(); }
  int num_held(const std::string& worker) const;
  int64_t num_held_by_holder(std::string_view holder) const;  // by all its workers (holder.h)

  // Every invariant that is broken, in words; empty for a sound table. For tests.
  std::vector<std::string> broken_invariants() const;

 private:
  enum class EpisodeState : uint8_t { kOpen, kDone, kGivenUp };
  enum class LeaseState : uint8_t { kLive, kExpired, kReleased, kFailed, kRejected, kSuperseded, kAnswered };
  struct EpisodeRecord {
    EpisodeState state = EpisodeState::kOpen;
    AckVerdict verdict = AckVerdict::kNone;
  };
  struct LeaseRecord {
    EpisodeId episode;
    LeaseState state = LeaseState::kLive;
  };
  struct OpenEpisode {
    int attempts_used = 0;
    std::optional<LeaseId> live;
  };
  struct LiveLease {
    EpisodeId episode;
    std::string worker;
    Timestamp deadline;
  };

  bool known(EpisodeId episode) const;
  bool known(LeaseId lease) const;
  LeaseRecord& record(LeaseId lease) { return leases_[static_cast<size_t>(lease.value - 1)]; }
  const LeaseRecord& record(LeaseId lease) const { return leases_[static_cast<size_t>(lease.value - 1)]; }
  EpisodeRecord& record(EpisodeId episode) { return episodes_[static_cast<size_t>(episode.value)]; }
  const EpisodeRecord& record(EpisodeId episode) const {
    return episodes_[static_cast<size_t>(episode.value)];
  }
  void set_deadline(LeaseId lease, LiveLease* live, Timestamp deadline);
  void drop_live(LeaseId lease, LeaseState state);

  Duration lease_time_;
  int max_attempts_;
  std::vector<EpisodeRecord> episodes_;  // [episode]
  std::vector<LeaseRecord> leases_;      // [lease - 1]
  std::map<EpisodeId, OpenEpisode> open_;
  std::set<EpisodeId> waiting_;    // open, not leased, attempts left
  std::set<EpisodeId> exhausted_;  // open, not leased, no attempt left
  std::map<LeaseId, LiveLease> live_;
  std::set<std::pair<Timestamp, LeaseId>> deadlines_;  // of live_
  // Numbers of live leases; none without any.
  std::unordered_map<std::string, int> held_;
  std::map<std::string, int64_t, std::less<>> held_by_holder_;
};

}  // namespace allot::aggregator
