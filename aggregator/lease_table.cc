#include "aggregator/lease_table.h"

#include <fmt/format.h>

#include <stdexcept>

#include "aggregator/holder.h"

namespace allot::aggregator {
namespace {

void require(bool holds, const char* event, int64_t id, const char* expected) {
  if (!holds) throw std::logic_error(fmt::format("{} {}: {}", event, id, expected));
}

}  // namespace

bool uses_up_an_attempt(LeaseEnd how) {
  return how != LeaseEnd::kReleased && how != LeaseEnd::kPreempted && how != LeaseEnd::kWithdrawn;
}

bool LeaseTable::known(EpisodeId episode) const {
  return episode.value >= 0 && static_cast<size_t>(episode.value) < episodes_.size();
}

bool LeaseTable::known(LeaseId lease) const {
  return lease.value >= 1 && static_cast<size_t>(lease.value) <= leases_.size();
}

void LeaseTable::set_deadline(LeaseId lease, LiveLease* live, Timestamp deadline) {
  deadlines_.erase({live->deadline, lease});
  live->deadline = deadline;
  deadlines_.insert({deadline, lease});
}

void LeaseTable::drop_live(LeaseId lease, LeaseState state) {
  const auto live = live_.find(lease);
  deadlines_.erase({live->second.deadline, lease});
  const std::string& worker = live->second.worker;
  if (const auto held = held_.find(worker); --held->second == 0) held_.erase(held);
  const auto by_holder = held_by_holder_.find(holder_of(worker));
  if (--by_holder->second == 0) held_by_holder_.erase(by_holder);
  live_.erase(live);
  record(lease).state = state;
}

void LeaseTable::offer(EpisodeId episode) {
  require(episode.value == static_cast<int64_t>(episodes_.size()), "offer of episode", episode.value,
          "episodes are numbered in order");
  episodes_.emplace_back();
  open_.emplace(episode, OpenEpisode{});
  waiting_.insert(episode);
}

void LeaseTable::grant(LeaseId lease, EpisodeId episode, const std::string& worker, Timestamp now) {
  require(lease == next_lease(), "grant of lease", lease.value, "leases are numbered in order");
  require(waiting_.contains(episode), "grant of episode", episode.value, "it is not waiting");
  waiting_.erase(episode);
  open_.at(episode).live = lease;
  leases_.push_back({episode});
  const auto live = live_.emplace(lease, LiveLease{episode, worker, now}).first;
  set_deadline(lease, &live->second, now + lease_time_);
  ++held_[worker];
  ++held_by_holder_.try_emplace(std::string(holder_of(worker)), 0).first->second;
}

void LeaseTable::end(LeaseId lease, LeaseEnd how) {
  const auto live = live_.find(lease);
  require(live != live_.end(), "end of lease", lease.value, "it is not held");
  const EpisodeId episode = live->second.episode;
  OpenEpisode& open = open_.at(episode);
  switch (how) {
    case LeaseEnd::kExpired:
    case LeaseEnd::kCrashed:
      drop_live(lease, LeaseState::kExpired);
      break;
    case LeaseEnd::kReleased:
    case LeaseEnd::kPreempted:
    case LeaseEnd::kWithdrawn:
      drop_live(lease, LeaseState::kReleased);
      break;
    case LeaseEnd::kFailed:
      drop_live(lease, LeaseState::kFailed);
      break;
    case LeaseEnd::kRejected:
      drop_live(lease, LeaseState::kRejected);
      break;
    case LeaseEnd::kSuperseded:
      require(false, "end of lease", lease.value, "only done() supersedes a lease");
  }
  open.live.reset();
  if (uses_up_an_attempt(how)) ++open.attempts_used;
  (open.attempts_used < max_attempts_ ? waiting_ : exhausted_).insert(episode);
}

std::optional<LeaseId> LeaseTable::done(EpisodeId episode, LeaseId lease, AckVerdict verdict) {
  const Standing standing = judge(lease, episode).standing;
  require(standing == Standing::kLive || standing == Standing::kLate, "result of lease", lease.value,
          "its episode is not open");
  const std::optional<LeaseId> live = open_.at(episode).live;
  std::optional<LeaseId> superseded;
  if (live && *live != lease) {
    superseded = live;
    drop_live(*live, LeaseState::kSuperseded);
  } else if (live) {
    drop_live(lease, LeaseState::kAnswered);
  }
  record(lease).state = LeaseState::kAnswered;
  record(episode) = {EpisodeState::kDone, verdict};
  waiting_.erase(episode);
  exhausted_.erase(episode);
  open_.erase(episode);
  return superseded;
}

void LeaseTable::give_up(EpisodeId episode) {
  require(exhausted_.contains(episode), "giving up episode", episode.value,
          "it has attempts left or is not open");
  withdraw(episode);
}

void LeaseTable::withdraw(EpisodeId episode) {
  require(waiting_.contains(episode) || exhausted_.contains(episode), "withdrawing episode", episode.value,
          "it is leased or not open");
  waiting_.erase(episode);
  exhausted_.erase(episode);
  open_.erase(episode);
  record(episode).state = EpisodeState::kGivenUp;
}

std::vector<int64_t> LeaseTable::renew(const std::string& worker, std::span<const int64_t> leases,
                                       Timestamp now) {
  std::vector<int64_t> unknown;
  for (const int64_t lease : leases) {
    const auto live = live_.find(LeaseId{lease});
    if (live != live_.end() && live->second.worker == worker) {
      set_deadline(live->first, &live->second, now + lease_time_);
    } else {
      unknown.push_back(lease);
    }
  }
  return unknown;
}

void LeaseTable::renew_all(Timestamp now) {
  for (auto& [lease, live] : live_) set_deadline(lease, &live, now + lease_time_);
}

void LeaseTable::set_max_attempts(int max_attempts) {
  max_attempts_ = max_attempts;
  for (const auto& [episode, open] : open_) {
    if (open.live) continue;
    const bool may_wait = open.attempts_used < max_attempts_;
    (may_wait ? exhausted_ : waiting_).erase(episode);
    (may_wait ? waiting_ : exhausted_).insert(episode);
  }
}

std::optional<EpisodeId> LeaseTable::next_waiting() const {
  if (waiting_.empty()) return std::nullopt;
  return *waiting_.begin();
}

int LeaseTable::attempt(EpisodeId open_episode) const {
  return open_.at(open_episode).attempts_used + 1;
}

std::vector<LeaseId> LeaseTable::due(Timestamp now) const {
  std::vector<LeaseId> leases;
  for (const auto& [deadline, lease] : deadlines_) {
    if (deadline > now) break;
    leases.push_back(lease);
  }
  return leases;
}

std::optional<Timestamp> LeaseTable::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

std::vector<EpisodeId> LeaseTable::exhausted() const {
  return {exhausted_.begin(), exhausted_.end()};
}

Judgement LeaseTable::judge(LeaseId lease, EpisodeId episode) const {
  if (!known(lease) || record(lease).episode != episode) return {Standing::kUnknown};
  const LeaseState state = record(lease).state;
  if (state == LeaseState::kFailed) return {Standing::kDuplicate, AckVerdict::kFailed};
  if (state == LeaseState::kRejected) return {Standing::kDuplicate, AckVerdict::kRejected};
  switch (record(episode).state) {
    case EpisodeState::kDone:
      return {Standing::kDuplicate, record(episode).verdict};
    case EpisodeState::kGivenUp:
      return {Standing::kGivenUp};
    case EpisodeState::kOpen:
      break;
  }
  return {state == LeaseState::kLive ? Standing::kLive : Standing::kLate};
}

std::optional<EpisodeId> LeaseTable::held_episode(LeaseId lease, const std::string& worker) const {
  const auto live = live_.find(lease);
  if (live == live_.end() || live->second.worker != worker) return std::nullopt;
  return live->second.episode;
}

std::vector<LeaseId> LeaseTable::held_by(const std::string& worker) const {
  std::vector<LeaseId> leases;
  for (const auto& [lease, live] : live_) {
    if (live.worker == worker) leases.push_back(lease);
  }
  return leases;
}

int LeaseTable::num_held(const std::string& worker) const {
  const auto found = held_.find(worker);
  return found == held_.end() ? 0 : found->second;
}

int64_t LeaseTable::num_held_by_holder(std::string_view holder) const {
  const auto found = held_by_holder_.find(holder);
  return found == held_by_holder_.end() ? 0 : found->second;
}

std::vector<std::string> LeaseTable::broken_invariants() const {
  std::vector<std::string> broken;
  const auto check = [&](bool holds, const char* what, int64_t id) {
    if (!holds) broken.push_back(fmt::format("{} ({})", what, id));
  };
  for (const auto& [episode, open] : open_) {
    check(known(episode) && record(episode).state == EpisodeState::kOpen, "open episode is recorded as open",
          episode.value);
    const int places =
        int{open.live.has_value()} + int{waiting_.contains(episode)} + int{exhausted_.contains(episode)};
    check(places == 1, "open episode is in one place: leased, waiting or exhausted", episode.value);
    if (open.live) {
      check(live_.contains(*open.live), "the lease of a leased episode is live", open.live->value);
    } else {
      check(exhausted_.contains(episode) == (open.attempts_used >= max_attempts_),
            "out of attempts exactly when exhausted", episode.value);
    }
  }
  for (const EpisodeId episode : waiting_)
    check(open_.contains(episode), "waiting episode is open", episode.value);
  for (const EpisodeId episode : exhausted_)
    check(open_.contains(episode), "exhausted episode is open", episode.value);
  for (const auto& [lease, live] : live_) {
    check(known(lease) && record(lease).state == LeaseState::kLive, "live lease is recorded as live",
          lease.value);
    const auto open = open_.find(live.episode);
    check(open != open_.end() && open->second.live == lease, "a live lease is the lease of its open episode",
          lease.value);
    check(deadlines_.contains({live.deadline, lease}), "a live lease has a deadline", lease.value);
  }
  std::unordered_map<std::string, int> held;
  std::map<std::string, int64_t, std::less<>> held_by_holder;
  for (const auto& [lease, live] : live_) {
    ++held[live.worker];
    ++held_by_holder[std::string(holder_of(live.worker))];
  }
  check(held == held_, "live leases of each worker", std::ssize(held));
  check(held_by_holder == held_by_holder_, "live leases of each holder", std::ssize(held_by_holder));
  check(deadlines_.size() == live_.size(), "one deadline per live lease",
        static_cast<int64_t>(deadlines_.size()));
  size_t open_records = 0;
  for (const EpisodeRecord& episode : episodes_) open_records += episode.state == EpisodeState::kOpen;
  check(open_records == open_.size(), "episodes recorded as open", static_cast<int64_t>(open_records));
  size_t live_records = 0;
  for (const LeaseRecord& lease : leases_) live_records += lease.state == LeaseState::kLive;
  check(live_records == live_.size(), "leases recorded as live", static_cast<int64_t>(live_records));
  return broken;
}

}  // namespace allot::aggregator
