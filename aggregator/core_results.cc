// Core: what becomes of leases. Results, answers of a worker that leaves, failures, and who is told to wait
// for them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "aggregator/core.h"
#include "aggregator/peer_text.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

using wire::Ack;

constexpr size_t kRecentTells = 50;
// A worker that failed so many episodes since its last result is told to wait while others are there.
constexpr int kFailuresToQuarantine = 3;
// A quarantine lasts one lease time, the next one twice as long, and so on this often.
constexpr int kMostQuarantineDoublings = 4;
// An episode that failed on one worker is kept for others for so many lease times.
constexpr int kReservedLeaseTimes = 5;

using Outcomes = google::protobuf::RepeatedPtrField<wire::QuestionOutcome>;

// Why these are no answers to questions of `episode`, each at most once and in its order; empty when they
// are.
std::string misfit(const Outcomes& outcomes, double seconds, const Episode& episode) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return fmt::format("seconds is {}, a number of at least 0 is expected", seconds);
  }
  auto next = episode.questions.begin();
  for (int i = 0; i < outcomes.size(); ++i) {
    const wire::QuestionOutcome& outcome = outcomes[i];
    const auto asked = std::find(next, episode.questions.end(), outcome.question());
    if (asked == episode.questions.end()) {
      return fmt::format(
          "outcome {} is of question {}, which episode {} does not ask there; the order of the lease's "
          "questions is "
          "expected",
          i, outcome.question(), episode.episode.value);
    }
    next = asked + 1;
    if (outcome.finish() < wire::FINISH_REASON_EOS || outcome.finish() > wire::FINISH_REASON_LENGTH) {
      return fmt::format("outcome {} has finish reason {}, 1 to 3 is expected", i,
                         static_cast<int>(outcome.finish()));
    }
    if (outcome.prompt_tokens() < 0 || outcome.output_tokens() < 0) {
      return fmt::format("outcome {} counts {} prompt and {} output tokens, at least 0 is expected", i,
                         outcome.prompt_tokens(), outcome.output_tokens());
    }
  }
  return "";
}

QuestionResult to_result(const wire::QuestionOutcome& outcome) {
  return {outcome.correct(), outcome.finish(), outcome.prompt_tokens(), outcome.output_tokens()};
}

// Fills the answers that fit the episode into the places that have none yet.
using Answers = std::vector<std::optional<QuestionResult>>;
void fill(const Outcomes& outcomes, const Episode& episode, Answers* answers) {
  answers->resize(episode.questions.size());
  size_t place = 0;
  for (const wire::QuestionOutcome& outcome : outcomes) {
    while (episode.questions[place] != outcome.question()) ++place;
    if (!(*answers)[place]) (*answers)[place] = to_result(outcome);
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

void count(wire::Counters* counters, Verdict verdict) {
  switch (verdict) {
    case Ack::VERDICT_ACCEPTED:
      counters->set_accepted(counters->accepted() + 1);
      break;
    case Ack::VERDICT_DUPLICATE:
      counters->set_duplicate(counters->duplicate() + 1);
      break;
    case Ack::VERDICT_LATE:
      counters->set_late(counters->late() + 1);
      break;
    case Ack::VERDICT_STALE:
      counters->set_stale(counters->stale() + 1);
      break;
    case Ack::VERDICT_FAILED:
      counters->set_failed(counters->failed() + 1);
      break;
    case Ack::VERDICT_REJECTED:
      counters->set_rejected(counters->rejected() + 1);
      break;
    default:
      break;
  }
}

}  // namespace

void Core::result(const wire::EpisodeResult& result, const std::string& worker, Timestamp now) {
  Ack ack = judge(result, worker, now);
  ack.set_lease(result.lease());
  ack.set_episode(result.episode());
  count(&counters_, ack.verdict());
  *reply().mutable_ack() = std::move(ack);
}

Ack Core::judge(const wire::EpisodeResult& result, const std::string& worker, Timestamp now) {
  const LeaseId lease{result.lease()};
  const EpisodeId episode{result.episode()};
  const auto verdict = [](Verdict value, std::string message) {
    Ack ack;
    ack.set_verdict(value);
    ack.set_message(std::move(message));
    return ack;
  };
  const Judgement judgement = leases_.judge(lease, episode);
  const bool live = judgement.standing == Standing::kLive;
  switch (judgement.standing) {
    case Standing::kUnknown:
      return verdict(Ack::VERDICT_REJECTED, fmt::format("run {} granted no lease {} of episode {}; forget it",
                                                        spec_.run_id(), lease.value, episode.value));
    case Standing::kDuplicate: {
      Ack ack = verdict(Ack::VERDICT_DUPLICATE, "answered before");
      ack.set_stored(judgement.stored);
      return ack;
    }
    case Standing::kSetAside:
      return verdict(Ack::VERDICT_STALE, fmt::format("episode {} was set aside after {} attempts",
                                                     episode.value, spec_.max_attempts()));
    case Standing::kLive:
      if (!leases_.held_episode(lease, worker)) {
        return verdict(Ack::VERDICT_REJECTED,
                       fmt::format("lease {} is held by another worker than {}", lease.value, worker));
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
        fmt::format("episode {} failed on {}{}: {}", episode.value, worker,
                    result.crashed() ? ", which broke" : "", one_line(result.error(), kMaxReasonBytes)));
    return verdict(Ack::VERDICT_FAILED, "noted");
  }
  const Open& open = open_.at(episode);
  std::string reason = misfit(result.outcomes(), result.seconds(), open.episode);
  Answers answers = open.kept;
  if (reason.empty()) {
    fill(result.outcomes(), open.episode, &answers);
    const auto missing = std::ranges::find_if(answers, [](const auto& answer) { return !answer; });
    if (missing != answers.end()) {
      reason =
          fmt::format("{} outcomes for {} questions; question {} has no answer", result.outcomes_size(),
                      open.missing(), open.episode.questions[static_cast<size_t>(missing - answers.begin())]);
    }
  }
  if (!reason.empty()) {
    end(LeaseEnd::kRejected,
        fmt::format("result of episode {} from {} rejected: {}", episode.value, worker, reason));
    return verdict(Ack::VERDICT_REJECTED, std::move(reason));
  }
  return verdict(accept({.episode = episode,
                         .lease = lease,
                         .results = all_of(answers),
                         .worker = worker,
                         .seconds = open.kept_seconds + result.seconds(),
                         .at = now},
                        live),
                 "");
}

Verdict Core::accept(EpisodeTold told, bool live) {
  told.verdict = live ? Ack::VERDICT_ACCEPTED : Ack::VERDICT_LATE;
  told.told_version = policy().version();
  if (!tell(told.episode, told.results)) told.verdict = Ack::VERDICT_STALE;
  const Verdict verdict = told.verdict;
  const Timestamp now = told.at;
  Worker& worker = workers_[told.worker];
  ++worker.episodes_done;
  worker.failures_in_a_row = worker.quarantines = 0;
  worker.quarantined_until = {};
  const std::optional<LeaseId> superseded = leases_.done(told.episode, told.lease, verdict);
  outputs_.records.emplace_back(std::move(told));
  if (superseded) outputs_.records.emplace_back(LeaseEnded{*superseded, LeaseEnd::kSuperseded, "", now});
  stop_at_target(now);
  note_version(now);
  failures_in_a_row_ = 0;
  recent_tells_.push_back(now);
  if (recent_tells_.size() > kRecentTells) recent_tells_.pop_front();
  return verdict;
}

void Core::fail(LeaseId lease, bool live, LeaseEnd how, const std::string& reason, Timestamp now) {
  spdlog::warn("{}", reason);
  last_failure_ = reason;
  // A lease that ended before has used up its attempt already.
  if (live) end_lease(lease, how, reason, now);
}

void Core::release(const wire::Release& release, const std::string& worker, Timestamp now) {
  const LeaseEnd how =
      release.reason() == wire::Release::REASON_PREEMPTED ? LeaseEnd::kPreempted : LeaseEnd::kReleased;
  for (const wire::PartialResult& partial : release.partial()) keep(partial, worker, now);
  for (const int64_t lease : release.leases()) {
    if (leases_.held_episode({lease}, worker)) end_lease({lease}, how, "", now);
  }
  workers_[worker].leaving = true;
  *reply().mutable_released()->mutable_leases() = release.leases();
}

// Also of a lease that has expired meanwhile: an answer depends on nothing but the episode and the question.
void Core::keep(const wire::PartialResult& partial, const std::string& worker, Timestamp now) {
  const LeaseId lease{partial.lease()};
  const EpisodeId episode{partial.episode()};
  const Standing standing = leases_.judge(lease, episode).standing;
  const bool live = standing == Standing::kLive;
  if (!live && standing != Standing::kLate)
    return;  // nothing is missing any more, or there never was such a lease
  const Episode& asked = open_.at(episode).episode;
  std::string reason = misfit(partial.outcomes(), partial.seconds(), asked);
  if (live && !leases_.held_episode(lease, worker)) reason = "the lease is held by another worker";
  if (!reason.empty()) {
    spdlog::warn("answers of episode {} from {} are not kept: {}", episode.value, worker, reason);
    counters_.set_rejected(counters_.rejected() + 1);
    return;
  }
  AnswersKept kept{.episode = episode,
                   .lease = lease,
                   .questions = {},
                   .results = {},
                   .worker = worker,
                   .seconds = partial.seconds(),
                   .at = now};
  Answers answers = open_.at(episode).kept;
  const Answers before = answers.empty() ? Answers(asked.questions.size()) : answers;
  fill(partial.outcomes(), asked, &answers);
  for (size_t place = 0; place < answers.size(); ++place) {
    if (before[place] || !answers[place]) continue;
    kept.questions.push_back(asked.questions[place]);
    kept.results.push_back(*answers[place]);
  }
  if (kept.questions.empty()) return;
  counters_.set_answers_kept(counters_.answers_kept() + std::ssize(kept.questions));
  perform(std::move(kept));
  const Open& open = open_.at(episode);
  if (open.missing() > 0) return;
  count(&counters_, accept({.episode = episode,
                            .lease = lease,
                            .results = all_of(open.kept),
                            .worker = worker,
                            .seconds = open.kept_seconds,
                            .at = now},
                           live));
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
  if (is_failure(how))
    open_.at(episode).reserved_until = now + kReservedLeaseTimes * Duration{spec_.lease_ms()};
  for (const EpisodeId exhausted : leases_.exhausted()) give_up(exhausted, now);
}

void Core::give_up(EpisodeId episode, Timestamp now) {
  const std::vector<Open::Try>& tries = open_.at(episode).tries;
  EpisodeSetAside set_aside{.episode = episode, .kind = GiveUp::kExhausted, .reason = "", .at = now};
  std::set<std::string> failed_on;
  for (const Open::Try& one : tries) {
    if (is_failure(one.how)) failed_on.insert(one.worker);
    set_aside.reason += (set_aside.reason.empty() ? "" : "; ") +
                        (one.reason.empty() ? "no word from " + one.worker : one.reason);
  }
  set_aside.reason = one_line(set_aside.reason, kMaxReasonBytes);
  if (failed_on.size() > 1) {
    set_aside.kind = GiveUp::kPoisoned;
    counters_.set_poisoned(counters_.poisoned() + 1);
  }
  if (is_failure(tries.back().how)) ++failures_in_a_row_;
  counters_.set_set_aside(counters_.set_aside() + 1);
  spdlog::warn("episode {} is set aside after {} attempts{}: {}", episode.value, tries.size(),
               failed_on.size() > 1 ? fmt::format(", it failed on {} workers", failed_on.size()) : "",
               set_aside.reason);
  perform(std::move(set_aside));
  note_version(now);
}

// ---- Workers that fail
// ----------------------------------------------------------------------------------------------

bool Core::Open::failed_on(const std::string& worker) const {
  return std::ranges::any_of(tries,
                             [&](const Try& one) { return is_failure(one.how) && one.worker == worker; });
}

int64_t Core::Open::missing() const {
  if (kept.empty()) return std::ssize(episode.questions);
  return std::ranges::count_if(kept, [](const auto& answer) { return !answer; });
}

bool Core::healthy(const Worker& worker, Timestamp now) const {
  return !worker.leaving && now - worker.last_seen <= Duration{spec_.lease_ms()} &&
         worker.quarantined_until <= now;
}

bool Core::quarantined(const std::string& name, Timestamp now) const {
  if (workers_.at(name).quarantined_until <= now) return false;
  return std::ranges::any_of(workers_, [&](const auto& other) { return healthy(other.second, now); });
}

bool Core::another_may_take(const Open& open, const std::string& name, Timestamp now) const {
  if (now >= open.reserved_until) return false;
  return std::ranges::any_of(workers_, [&](const auto& other) {
    return other.first != name && healthy(other.second, now) && !open.failed_on(other.first);
  });
}

void Core::note_failure(const std::string& name, const std::string& reason, Timestamp now) {
  Worker& worker = workers_[name];
  ++worker.failures_in_a_row;
  worker.last_failure = reason;
  if (worker.failures_in_a_row < kFailuresToQuarantine || worker.quarantined_until > now) return;
  const int doublings = std::min(worker.quarantines++, kMostQuarantineDoublings);
  worker.quarantined_until = now + Duration{spec_.lease_ms()} * (int64_t{1} << doublings);
  spdlog::warn(
      "worker {} failed {} times in a row; it gets no episode for {} s while other workers are there", name,
      worker.failures_in_a_row, (worker.quarantined_until - now).count() / 1000);
}

}  // namespace allot::aggregator
