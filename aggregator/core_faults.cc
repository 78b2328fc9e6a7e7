// Core: whose fault it is. Which workers have to wait because of their failures, who may try an episode that
// failed, when it is given up, and how the holders of keys share what there is to run.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "aggregator/core.h"
#include "aggregator/holder.h"
#include "aggregator/peer_text.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

// A worker that failed this many episodes since its last result is told to wait (quarantined) while other
// workers are there, and all workers of a holder after this many failures of them together, while those of
// other holders are there.
constexpr int kBearableOfAWorker = 3;
constexpr int kBearableOfAHolder = 9;
// The first quarantine lasts one lease time; each further one lasts twice as long, up to this many doublings.
constexpr int kMostQuarantineDoublings = 4;
constexpr Duration kLookEvery = 1s;
// A worker that says it runs more at once than this is taken at this.
constexpr int32_t kMostAtOnce = 4096;

}  // namespace

bool Core::is_failure(LeaseEnd how) {
  return how == LeaseEnd::kFailed || how == LeaseEnd::kRejected || how == LeaseEnd::kCrashed;
}

// ---- Episodes that fail

Core::Open::Trial Core::Open::trial_on(const std::string& worker) const {
  Trial trial = Trial::kNew;
  for (const Attempt& attempt : attempts) {
    if (is_failure(attempt.how) && attempt.worker == worker) return Trial::kFailedOnIt;
    if (holder_of(attempt.worker) == holder_of(worker)) trial = Trial::kFailedForItsHolder;
  }
  return trial;
}

bool Core::Open::was_held(LeaseId lease, const std::string& worker) const {
  return std::ranges::any_of(
      past_leases, [&](const PastLease& past) { return past.lease == lease && past.worker == worker; });
}

int64_t Core::Open::missing() const {
  if (kept.empty()) return std::ssize(episode.questions);
  return std::ranges::count_if(kept, [](const auto& answer) { return !answer; });
}

bool Core::another_may_take(const Open& open, const Worker& worker, Timestamp now) const {
  if (open.attempts.empty() || now >= open.reserved_until) return false;
  const Open::Trial trial = open.trial_on(worker.name);
  if (trial == Open::Trial::kNew) return false;
  return std::ranges::any_of(workers_, [&](const auto& other) {
    return healthy(other.second, now) && other.second.runs(open.episode.kind) &&
           may_check(open, other.second) && open.trial_on(other.first) < trial;
  });
}

// Poisoned is what failed for different holders; where one holder has all the workers, on different ones.
void Core::give_up(EpisodeId episode, Timestamp now) {
  const std::vector<Open::Attempt>& attempts = open_.at(episode).attempts;
  EpisodeGivenUp given_up{.episode = episode, .kind = GiveUp::kExhausted, .reason = "", .at = now};
  std::set<std::string_view> workers;
  std::set<std::string_view> holders;
  for (const Open::Attempt& attempt : attempts) {
    if (is_failure(attempt.how)) {
      workers.insert(attempt.worker);
      holders.insert(holder_of(attempt.worker));
    }
    given_up.reason += (given_up.reason.empty() ? "" : "; ") +
                       (attempt.reason.empty() ? "no word from " + attempt.worker : attempt.reason);
  }
  given_up.reason = one_line(given_up.reason, kMaxReasonBytes);
  const bool differ =
      holders.size() > 1 || (workers.size() > 1 && !another_holder_is_present(*holders.begin(), now));
  if (differ) {
    given_up.kind = GiveUp::kPoisoned;
    counters_.set_poisoned(counters_.poisoned() + 1);
  }
  if (is_failure(attempts.back().how)) ++failures_in_a_row_;
  counters_.set_set_aside(counters_.set_aside() + 1);
  log(LogKind::kGivenUp, spdlog::level::warn, "episode {} is given up after {} attempts{}: {}", episode.value,
      attempts.size(), differ ? fmt::format(", it failed on {} workers", workers.size()) : "",
      given_up.reason);
  perform(std::move(given_up));
  note_version(now);
}

void Core::withdraw(EpisodeId episode, const std::string& reason, Timestamp now) {
  if (const auto lease = leases_.live_lease(episode)) end_lease(*lease, LeaseEnd::kWithdrawn, reason, now);
  // It is given up already where its attempts are used up, by a limit that was lowered while it was leased.
  if (open_.contains(episode)) perform(EpisodeGivenUp{episode, GiveUp::kWithdrawn, reason, now});
}

// ---- Workers that fail

bool Core::Faults::add(const std::string& reason, int bearable, Duration lease_time, Timestamp now) {
  ++in_a_row;
  last = reason;
  if (in_a_row < bearable || quarantined_until > now) return false;
  const int doublings = std::min(quarantines++, kMostQuarantineDoublings);
  quarantined_until = now + lease_time * (int64_t{1} << doublings);
  return true;
}

void Core::Faults::forget() {
  in_a_row = quarantines = 0;
  quarantined_until = {};
}

bool Core::Worker::runs(RewardKind kind) const {
  return std::ranges::find(kinds, kind) != kinds.end();
}

int Core::Worker::most_leases() const {
  return capacity > 0 ? std::min(capacity, kMostAtOnce) : kMaxLeasesOfAWorker;
}

Core::Worker& Core::worker_of(const std::string& name) {
  const auto found = workers_.find(name);
  if (found != workers_.end()) return found->second;
  Holder& holder = holders_.try_emplace(std::string(holder_of(name))).first->second;
  next_look_ = {};  // others may have to share with it
  return workers_.try_emplace(name, name, &holder).first->second;
}

bool Core::was_heard(const Worker& worker, Timestamp now) const {
  return now - worker.last_seen <= leases_.lease_time();
}

bool Core::healthy(const Worker& worker, Timestamp now) const {
  return !worker.leaving && was_heard(worker, now) && !cordoned(worker) && quarantined_until(worker) <= now;
}

bool Core::cordoned(const Worker& worker) const {
  return !cordoned_.empty() &&
         (cordoned_.contains(worker.name) || cordoned_.contains(holder_of(worker.name)));
}

bool Core::another_holder_is_present(std::string_view holder, Timestamp now) const {
  return std::ranges::any_of(workers_, [&](const auto& entry) {
    return holder_of(entry.first) != holder && was_heard(entry.second, now) && !cordoned(entry.second);
  });
}

Timestamp Core::quarantined_until(const Worker& worker) const {
  return std::max(worker.faults.quarantined_until, worker.holder->faults.quarantined_until);
}

bool Core::quarantined(const Worker& worker, Timestamp now) const {
  if (quarantined_until(worker) <= now) return false;
  // What its holder's workers did bars it only from what those of other holders can do.
  const bool itself = worker.faults.quarantined_until > now;
  return std::ranges::any_of(workers_, [&](const auto& entry) {
    const Worker& other = entry.second;
    return (itself || other.holder != worker.holder) && healthy(other, now) &&
           std::ranges::all_of(worker.kinds, [&](RewardKind kind) { return other.runs(kind); });
  });
}

// A worker that succeeded before counts for as long as it works on something, any other for one lease time
// after the failures began: else names that are new each time would put off the end for ever.
bool Core::someone_may_succeed(Timestamp now) const {
  const bool failing_for_long = failing_since_ && now - *failing_since_ > leases_.lease_time();
  return std::ranges::any_of(workers_, [&](const auto& entry) {
    const Worker& worker = entry.second;
    return worker.faults.in_a_row == 0 && leases_.num_held(worker.name) > 0 &&
           (worker.episodes_done > 0 || !failing_for_long);
  });
}

void Core::note_failure(Worker* worker, const std::string& reason, Timestamp now) {
  const Duration lease_time = leases_.lease_time();
  const auto seconds = [&](const Faults& faults) { return (faults.quarantined_until - now).count() / 1000; };
  if (worker->faults.add(reason, kBearableOfAWorker, lease_time, now)) {
    log(LogKind::kWaiting, spdlog::level::warn,
        "worker {} failed {} times in a row; it gets no episode for {} s while other workers are there",
        worker->name, worker->faults.in_a_row, seconds(worker->faults));
  }
  const std::string_view holder = holder_of(worker->name);
  if (holder == worker->name) return;  // that was all of it
  Faults& faults = worker->holder->faults;
  if (faults.add(reason, kBearableOfAHolder, lease_time, now)) {
    log(LogKind::kWaiting, spdlog::level::warn,
        "workers of {} failed {} times in a row; they get no episode for {} s while workers of others are there",
        holder, faults.in_a_row, seconds(faults));
  }
}

// ---- How much workers and holders may hold

int64_t Core::room_for(const Worker& worker, std::string* why_not) const {
  const int64_t held = leases_.num_held(worker.name);
  int64_t room = worker.most_leases() - held;
  if (room <= 0) {
    *why_not = fmt::format("worker {} holds {} leases, as many as it runs at once ({})", worker.name, held,
                           worker.most_leases());
  }
  if (const std::optional<int64_t> useful = plan_.useful_at_once())
    room = std::min(room, *useful - static_cast<int64_t>(leases_.num_live()));
  if (!worker.holder->has_key) return std::max<int64_t>(room, 0);
  const std::string_view holder = holder_of(worker.name);
  const int64_t share = worker.holder->most_leases - leases_.num_held_by_holder(holder);
  if (share <= 0 && room > 0) {
    *why_not = fmt::format("workers of {} hold {} leases, their share beside those of others", holder,
                           leases_.num_held_by_holder(holder));
  }
  return std::max<int64_t>(std::min(room, share), 0);
}

void Core::look_at_workers(Timestamp now) {
  next_look_ = now + kLookEvery;
  for (auto& [holder_name, holder] : holders_) holder.runs_at_once = 0;
  for (auto& [worker_name, worker] : workers_) {
    if (was_heard(worker, now)) {
      worker.silent = false;
      if (!worker.leaving && !cordoned(worker)) worker.holder->runs_at_once += worker.most_leases();
    } else if (!std::exchange(worker.silent, true) && !worker.leaving && !worker.heard_finished) {
      log(LogKind::kWorkerSilent, spdlog::level::warn, "no word from worker {} for {} s", worker_name,
          (now - worker.last_seen).count() / 1000);
    }
  }
  share_out();
}

void Core::share_out() {
  int64_t holders = 0;
  for (const auto& [holder_name, holder] : holders_) holders += holder.has_key && holder.runs_at_once > 0;
  if (holders == 0) return;
  const int64_t useful = std::min(plan_.useful_at_once().value_or(std::numeric_limits<int64_t>::max()),
                                  std::max<int64_t>(plan_.remaining(), 1));
  const int64_t equal = useful / holders;
  int64_t kept_free = 0;
  for (const auto& [holder_name, holder] : holders_)
    if (holder.has_key) kept_free += std::min(holder.runs_at_once, equal);
  for (auto& [holder_name, holder] : holders_)
    holder.most_leases = useful - (kept_free - std::min(holder.runs_at_once, equal));
}

}  // namespace allot::aggregator
