// Core: how leases end. Results, answers of a worker that leaves, failures, and which workers have to wait
// because of their failures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "aggregator/core.h"
#include "aggregator/peer_text.h"
#include "aggregator/wire_conversion.h"
#include "base/log.h"
#include "wire/episode_codec.h"

namespace allot::aggregator {
namespace {

using wire::Ack;

constexpr size_t kRecentTells = 50;
// A worker that failed this many episodes since its last result is told to wait (quarantined) while other
// workers are there.
constexpr int kFailuresToQuarantine = 3;
// The first quarantine of a worker lasts one lease time; each further one lasts twice as long, up to
// this many doublings.
constexpr int kMostQuarantineDoublings = 4;
// An episode that failed on one worker is reserved for other workers for this many lease times.
constexpr int kReservedLeaseTimes = 5;

// Reads the answers of a wire::EpisodeResult or wire::PartialResult. They must answer questions of `episode`,
// each at most once and in the episode's order; returns what is wrong with them, empty when nothing is.
template <class Message>
std::string read_answers(const Message& message, const Episode& episode,
                         std::vector<QuestionResult>* results) {
  const double seconds = message.seconds();
  if (!std::isfinite(seconds) || seconds < 0) {
    return fmt::format("seconds is {}, a number of at least 0 is expected", seconds);
  }
  if (std::string fault = wire::read_results(message, results); !fault.empty()) return fault;
  const RewardKindRow& kind = row_of(episode.kind);
  auto next = episode.questions.begin();
  for (size_t i = 0; i < results->size(); ++i) {
    const QuestionResult& result = (*results)[i];
    const auto asked = std::find(next, episode.questions.end(), result.question);
    if (asked == episode.questions.end()) {
      return fmt::format(
          "outcome {} is of question {}, which episode {} does not ask there; the order of the lease's "
          "questions is expected",
          i, result.question, episode.id.value);
    }
    next = asked + 1;
    if (!std::isfinite(result.score) || !kind.holds(result.score)) {
      return fmt::format("outcome {} has score {}, {} to {} is expected of {}", i, result.score, kind.low,
                         kind.high, kind.name);
    }
  }
  return "";
}

// Fills in the answers to those of the episode's questions that have none yet.
using Answers = std::vector<std::optional<QuestionResult>>;
void fill(std::span<const QuestionResult> results, const Episode& episode, Answers* answers) {
  answers->resize(episode.questions.size());
  size_t place = 0;
  for (const QuestionResult& result : results) {
    while (episode.questions[place] != result.question) ++place;
    if (!(*answers)[place]) (*answers)[place] = result;
  }
}

std::vector<QuestionResult> all_of(const Answers& answers) {
  std::vector<QuestionResult> results;
  for (const auto& answer : answers) results.push_back(answer.value());
  return results;
}

bool is_failure(LeaseEnd how) {
  return how == LeaseEnd::kFailed || how == LeaseEnd::kRejected || how == LeaseEnd::kCrashed;
}

void count(wire::Counters* counters, AckVerdict verdict) {
  switch (verdict) {
    case AckVerdict::kAccepted:
      counters->set_accepted(counters->accepted() + 1);
      break;
    case AckVerdict::kDuplicate:
      counters->set_duplicate(counters->duplicate() + 1);
      break;
    case AckVerdict::kLate:
      counters->set_late(counters->late() + 1);
      break;
    case AckVerdict::kStale:
      counters->set_stale(counters->stale() + 1);
      break;
    case AckVerdict::kFailed:
      counters->set_failed(counters->failed() + 1);
      break;
    case AckVerdict::kRejected:
      counters->set_rejected(counters->rejected() + 1);
      break;
    default:
      break;
  }
}

}  // namespace

void Core::result(const wire::EpisodeResult& result, Worker* worker, Timestamp now) {
  Ack ack = judge(result, worker, now);
  ack.set_lease(result.lease());
  ack.set_episode(result.episode());
  *reply().mutable_ack() = std::move(ack);
}

Ack Core::judge(const wire::EpisodeResult& result, Worker* worker, Timestamp now) {
  const LeaseId lease{result.lease()};
  const EpisodeId episode{result.episode()};
  const auto verdict = [this](AckVerdict value, std::string message) {
    count(&counters_, value);
    Ack ack;
    ack.set_verdict(to_wire(value));
    ack.set_message(std::move(message));
    return ack;
  };
  const Judgement judgement = leases_.judge(lease, episode);
  const bool live = judgement.standing == Standing::kLive;
  switch (judgement.standing) {
    case Standing::kUnknown:
      return verdict(AckVerdict::kRejected, fmt::format("run {} granted no lease {} of episode {}; forget it",
                                                        spec_.run_id(), lease.value, episode.value));
    case Standing::kDuplicate: {
      Ack ack = verdict(AckVerdict::kDuplicate, "answered before");
      ack.set_stored(to_wire(judgement.stored));
      return ack;
    }
    case Standing::kGivenUp:
      return verdict(AckVerdict::kStale, fmt::format("episode {} was given up after {} attempts",
                                                     episode.value, leases_.max_attempts()));
    case Standing::kLive:
      if (!leases_.held_episode(lease, worker->name)) {
        return verdict(AckVerdict::kRejected,
                       fmt::format("lease {} is held by another worker than {}", lease.value, worker->name));
      }
      break;
    case Standing::kLate:
      break;
  }
  const auto end = [&](LeaseEnd how, const std::string& reason) {
    if (live) note_failure(worker, reason, now);
    fail(lease, live, how, reason, now);
  };
  if (!result.error().empty()) {
    if (result.crashed()) counters_.set_crashed(counters_.crashed() + 1);
    end(LeaseEnd::kFailed,
        fmt::format("episode {} failed on {}{}: {}", episode.value, worker->name,
                    result.crashed() ? ", which broke" : "", one_line(result.error(), kMaxReasonBytes)));
    return verdict(AckVerdict::kFailed, "noted");
  }
  const Open& open = open_.at(episode);
  std::vector<QuestionResult> results;
  std::string reason = read_answers(result, open.episode, &results);
  // Most results answer all questions, and nothing was kept before.
  if (reason.empty() && (!open.kept.empty() || results.size() < open.episode.questions.size())) {
    Answers answers = open.kept;
    fill(results, open.episode, &answers);
    const auto missing = std::ranges::find_if(answers, [](const auto& answer) { return !answer; });
    if (missing != answers.end()) {
      reason =
          fmt::format("{} outcomes for {} questions; question {} has no answer", result.outcomes_size(),
                      open.missing(), open.episode.questions[static_cast<size_t>(missing - answers.begin())]);
    } else {
      results = all_of(answers);
    }
  }
  if (!reason.empty()) {
    end(LeaseEnd::kRejected,
        fmt::format("result of episode {} from {} rejected: {}", episode.value, worker->name, reason));
    return verdict(AckVerdict::kRejected, std::move(reason));
  }
  return verdict(accept({.episode = episode,
                         .lease = lease,
                         .results = std::move(results),
                         .worker = worker->name,
                         .seconds = open.kept_seconds + result.seconds(),
                         .at = now},
                        worker, live),
                 "");
}

AckVerdict Core::accept(EpisodeTold told, Worker* worker, bool live) {
  told.verdict = live ? AckVerdict::kAccepted : AckVerdict::kLate;
  told.told_version = policy().version();
  if (!tell(told)) told.verdict = AckVerdict::kStale;
  const AckVerdict verdict = told.verdict;
  const Timestamp now = told.at;
  ++worker->episodes_done;
  worker->failures_in_a_row = worker->quarantines = 0;
  worker->quarantined_until = {};
  const std::optional<LeaseId> superseded = leases_.done(told.episode, told.lease, verdict);
  outputs_.records.emplace_back(std::move(told));
  if (superseded) outputs_.records.emplace_back(LeaseEnded{*superseded, LeaseEnd::kSuperseded, "", now});
  stop_at_target(now);
  note_version(now);
  failures_in_a_row_ = 0;
  failing_since_.reset();
  recent_tells_.push_back(now);
  if (recent_tells_.size() > kRecentTells) recent_tells_.pop_front();
  return verdict;
}

void Core::fail(LeaseId lease, bool live, LeaseEnd how, const std::string& reason, Timestamp now) {
  spdlog::warn("{}", reason);
  last_failure_ = reason;
  if (!failing_since_) failing_since_ = now;
  // A lease that has already ended has used up its attempt.
  if (live) end_lease(lease, how, reason, now);
}

void Core::release(const wire::Release& release, Worker* worker, Timestamp now) {
  const LeaseEnd how =
      release.reason() == wire::Release::REASON_PREEMPTED ? LeaseEnd::kPreempted : LeaseEnd::kReleased;
  for (const wire::PartialResult& partial : release.partial()) keep(partial, worker, now);
  for (const int64_t lease : release.leases()) {
    if (leases_.held_episode({lease}, worker->name)) end_lease({lease}, how, "", now);
  }
  worker->leaving = true;
  *reply().mutable_released()->mutable_leases() = release.leases();
}

// Answers under a lease that has expired meanwhile are kept too: an answer depends on nothing but the episode
// and the question.
void Core::keep(const wire::PartialResult& partial, Worker* worker, Timestamp now) {
  const LeaseId lease{partial.lease()};
  const EpisodeId episode{partial.episode()};
  const Standing standing = leases_.judge(lease, episode).standing;
  const bool live = standing == Standing::kLive;
  if (!live && standing != Standing::kLate)
    return;  // no answer is missing any more, or there never was such a lease
  const Episode& asked = open_.at(episode).episode;
  std::vector<QuestionResult> results;
  std::string reason = read_answers(partial, asked, &results);
  if (live && !leases_.held_episode(lease, worker->name)) reason = "the lease is held by another worker";
  if (!reason.empty()) {
    spdlog::warn("answers of episode {} from {} are not kept: {}", episode.value, worker->name, reason);
    counters_.set_rejected(counters_.rejected() + 1);
    return;
  }
  AnswersKept kept{.episode = episode,
                   .lease = lease,
                   .results = {},
                   .worker = worker->name,
                   .seconds = partial.seconds(),
                   .at = now};
  Answers answers = open_.at(episode).kept;
  const Answers before = answers.empty() ? Answers(asked.questions.size()) : answers;
  fill(results, asked, &answers);
  for (size_t place = 0; place < answers.size(); ++place) {
    if (before[place] || !answers[place]) continue;
    kept.results.push_back(*answers[place]);
  }
  if (kept.results.empty()) return;
  counters_.set_answers_kept(counters_.answers_kept() + std::ssize(kept.results));
  perform(std::move(kept));
  const Open& open = open_.at(episode);
  if (open.missing() > 0) return;
  count(&counters_, accept({.episode = episode,
                            .lease = lease,
                            .results = all_of(open.kept),
                            .worker = worker->name,
                            .seconds = open.kept_seconds,
                            .at = now},
                           worker, live));
}

void Core::end_lease(LeaseId lease, LeaseEnd how, const std::string& reason, Timestamp now) {
  const EpisodeId episode = leases_.episode(lease);
  perform(LeaseEnded{lease, how, reason, now});
  const auto add = [](int64_t count) { return count + 1; };
  if (how == LeaseEnd::kExpired || how == LeaseEnd::kCrashed) counters_.set_expired(add(counters_.expired()));
  if (how == LeaseEnd::kExpired) counters_.set_timed_out(add(counters_.timed_out()));
  if (how == LeaseEnd::kCrashed) counters_.set_crashed(add(counters_.crashed()));
  if (how == LeaseEnd::kReleased || how == LeaseEnd::kPreempted)
    counters_.set_released(add(counters_.released()));
  if (how == LeaseEnd::kPreempted) counters_.set_preempted(add(counters_.preempted()));
  if (is_failure(how)) open_.at(episode).reserved_until = now + kReservedLeaseTimes * leases_.lease_time();
  for (const EpisodeId exhausted : leases_.exhausted()) give_up(exhausted, now);
}

void Core::give_up(EpisodeId episode, Timestamp now) {
  const std::vector<Open::Attempt>& attempts = open_.at(episode).attempts;
  EpisodeGivenUp given_up{.episode = episode, .kind = GiveUp::kExhausted, .reason = "", .at = now};
  std::set<std::string> failed_on;
  for (const Open::Attempt& attempt : attempts) {
    if (is_failure(attempt.how)) failed_on.insert(attempt.worker);
    given_up.reason += (given_up.reason.empty() ? "" : "; ") +
                       (attempt.reason.empty() ? "no word from " + attempt.worker : attempt.reason);
  }
  given_up.reason = one_line(given_up.reason, kMaxReasonBytes);
  if (failed_on.size() > 1) {
    given_up.kind = GiveUp::kPoisoned;
    counters_.set_poisoned(counters_.poisoned() + 1);
  }
  if (is_failure(attempts.back().how)) ++failures_in_a_row_;
  counters_.set_set_aside(counters_.set_aside() + 1);
  spdlog::warn("episode {} is given up after {} attempts{}: {}", episode.value, attempts.size(),
               failed_on.size() > 1 ? fmt::format(", it failed on {} workers", failed_on.size()) : "",
               given_up.reason);
  perform(std::move(given_up));
  note_version(now);
}

// ---- Workers that fail

bool Core::Open::failed_on(const std::string& worker) const {
  return std::ranges::any_of(
      attempts, [&](const Attempt& attempt) { return is_failure(attempt.how) && attempt.worker == worker; });
}

int64_t Core::Open::missing() const {
  if (kept.empty()) return std::ssize(episode.questions);
  return std::ranges::count_if(kept, [](const auto& answer) { return !answer; });
}

bool Core::Worker::runs(RewardKind kind) const {
  return std::ranges::find(kinds, kind) != kinds.end();
}

bool Core::was_heard(const Worker& worker, Timestamp now) const {
  return now - worker.last_seen <= leases_.lease_time();
}

bool Core::healthy(const Worker& worker, Timestamp now) const {
  return !worker.leaving && was_heard(worker, now) && worker.quarantined_until <= now;
}

bool Core::quarantined(const Worker& worker, Timestamp now) const {
  if (worker.quarantined_until <= now) return false;
  return std::ranges::any_of(workers_, [&](const auto& other) {
    return healthy(other.second, now) &&
           std::ranges::all_of(worker.kinds, [&](RewardKind kind) { return other.second.runs(kind); });
  });
}

bool Core::another_may_take(const Open& open, const Worker& worker, Timestamp now) const {
  if (now >= open.reserved_until) return false;
  return std::ranges::any_of(workers_, [&](const auto& other) {
    return other.first != worker.name && healthy(other.second, now) && other.second.runs(open.episode.kind) &&
           !open.failed_on(other.first);
  });
}

// A worker that succeeded before counts for as long as it works on something, any other for one lease time
// after the failures began: else names that are new each time would put off the end for ever.
bool Core::someone_may_succeed(Timestamp now) const {
  const bool failing_for_long = failing_since_ && now - *failing_since_ > leases_.lease_time();
  const std::map<std::string, int> held = leases_.leases_per_worker();
  return std::ranges::any_of(workers_, [&](const auto& entry) {
    const Worker& worker = entry.second;
    return worker.failures_in_a_row == 0 && held.contains(worker.name) &&
           (worker.episodes_done > 0 || !failing_for_long);
  });
}

void Core::note_failure(Worker* worker, const std::string& reason, Timestamp now) {
  ++worker->failures_in_a_row;
  worker->last_failure = reason;
  if (worker->failures_in_a_row < kFailuresToQuarantine || worker->quarantined_until > now) return;
  const int doublings = std::min(worker->quarantines++, kMostQuarantineDoublings);
  worker->quarantined_until = now + leases_.lease_time() * (int64_t{1} << doublings);
  spdlog::warn(
      "worker {} failed {} times in a row; it gets no episode for {} s while other workers are there",
      worker->name, worker->failures_in_a_row, (worker->quarantined_until - now).count() / 1000);
}

}  // namespace allot::aggregator
