// Core: how leases end. Results, answers of a worker that leaves, failures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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
// An episode that failed is reserved for this many lease times for workers on which trying it makes more
// sense, one whose lease expired for one.
constexpr int kReservedLeaseTimes = 5;
// More than an episode takes, so that no worker can spoil the sums of a run for good.
constexpr double kMostSeconds = 30 * 24 * 3600;
constexpr int32_t kMostTokens = 1 << 24;

// Reads the answers of a wire::EpisodeResult or wire::PartialResult. They must answer questions of `episode`,
// each at most once and in the episode's order; returns what is wrong with them, empty when nothing is.
template <class Message>
std::string read_answers(const Message& message, const Episode& episode,
                         std::vector<QuestionResult>* results) {
  const double seconds = message.seconds();
  if (!(seconds >= 0 && seconds <= kMostSeconds))
    return fmt::format("seconds is {}, 0 to {} is expected", seconds, kMostSeconds);
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
    if (result.prompt_tokens > kMostTokens || result.output_tokens > kMostTokens) {
      return fmt::format("outcome {} has {} tokens of prompt and {} of reply, at most {} are expected", i,
                         result.prompt_tokens, result.output_tokens, kMostTokens);
    }
    if (!std::isfinite(result.score) || !kind.holds(result.score)) {
      return fmt::format("outcome {} has score {}, {} to {} is expected of {}", i, result.score, kind.low,
                         kind.high, kind.name);
    }
  }
  return "";
}

// Whether a worker may have done that; what it tells goes to the operator's figures as it is.
bool is_possible(const wire::WorkerLoad& load) {
  constexpr double kRounding = 1.01;  // of clocks
  const auto is_count = [](int64_t tokens) { return tokens >= 0 && tokens <= int64_t{1} << 40; };
  return load.seconds() > 0 && load.seconds() <= kMostSeconds && is_count(load.prompt_tokens()) &&
         is_count(load.output_tokens()) && load.busy_seconds() >= 0 &&
         load.busy_seconds() <= kRounding * load.seconds() && load.slot_seconds() >= 0 &&
         load.slot_seconds() <= kRounding * load.busy_seconds() && load.memory_used_bytes() >= 0 &&
         load.memory_used_bytes() <= load.memory_total_bytes();
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
  if (result.has_load() && is_possible(result.load())) worker->load = result.load();
  Ack ack = judge(result, worker, now);
  ack.set_lease(result.lease());
  ack.set_episode(result.episode());
  *reply().mutable_ack() = std::move(ack);
}

void Core::note_foreign(const wire::EpisodeResult& result, const std::string& worker, const char* what) {
  counters_.set_foreign(counters_.foreign() + 1);
  log(LogKind::kRejected, spdlog::level::warn, "rejected a result of {} ({}) for lease {} of episode {}, {}",
      worker, sender_text(), result.lease(), result.episode(), what);
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
      note_foreign(result, worker->name, "which was never granted");
      return verdict(AckVerdict::kRejected, fmt::format("run {} granted no lease {} of episode {}; forget it",
                                                        spec_.run_id(), lease.value, episode.value));
    case Standing::kDuplicate: {
      Ack ack = verdict(AckVerdict::kDuplicate, "answered before");
      ack.set_stored(to_wire(judgement.stored));
      return ack;
    }
    case Standing::kGivenUp:
      return verdict(AckVerdict::kStale, fmt::format("episode {} was given up", episode.value));
    case Standing::kLive:
      if (!leases_.held_episode(lease, worker->name)) {
        note_foreign(result, worker->name, "which another worker holds");
        return verdict(AckVerdict::kRejected,
                       fmt::format("lease {} is held by another worker than {}", lease.value, worker->name));
      }
      break;
    case Standing::kLate:
      if (!open_.at(episode).was_held(lease, worker->name)) {
        note_foreign(result, worker->name, "which another worker held");
        return verdict(AckVerdict::kRejected,
                       fmt::format("lease {} was held by another worker than {}", lease.value, worker->name));
      }
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
  std::vector<ReplyText> texts;
  if (reason.empty() && open.episode.replies) reason = wire::read_replies(result, &texts);
  const std::vector<QuestionResult> sent = open.episode.replies ? results : std::vector<QuestionResult>();
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
  if (open.episode.replies) give(open.episode, sent, texts, open.kept);
  return verdict(accept({.episode = episode,
                         .lease = lease,
                         .results = std::move(results),
                         .worker = worker->name,
                         .seconds = open.kept_seconds + result.seconds(),
                         .at = now},
                        worker, live),
                 "");
}

void Core::give(const PlannedEpisode& episode, std::span<const QuestionResult> results,
                std::span<const ReplyText> texts, std::span<const std::optional<QuestionResult>> before) {
  size_t place = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    while (episode.questions[place] != results[i].question) ++place;
    if (!before.empty() && before[place]) continue;
    outputs_.answers.push_back(
        {.schedule = episode.label, .repeat = episode.sampling_seed, .result = results[i], .text = texts[i]});
  }
}

AckVerdict Core::accept(EpisodeTold told, Worker* worker, bool live) {
  told.verdict = live ? AckVerdict::kAccepted : AckVerdict::kLate;
  told.told_version = policy().version();
  const int64_t checked = open_.at(told.episode).episode.group;
  const int64_t disagreements = cross_check_.tally().all().disagreements;
  if (!tell(told)) told.verdict = AckVerdict::kStale;
  if (const int64_t more = cross_check_.tally().all().disagreements - disagreements; more > 0) {
    log(LogKind::kDisagreement, spdlog::level::warn,
        "{} of {} grades that {} reports of episode {} are not those that it was told with", more,
        told.results.size(), worker->name, checked);
  }
  const AckVerdict verdict = told.verdict;
  const Timestamp now = told.at;
  ++worker->episodes_done;
  worker->faults.forget();
  worker->holder->faults.forget();
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
  log(LogKind::kFailure, spdlog::level::warn, "{}", reason);
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
  const PlannedEpisode& asked = open_.at(episode).episode;
  std::vector<QuestionResult> results;
  std::string reason = read_answers(partial, asked, &results);
  std::vector<ReplyText> texts;
  if (reason.empty() && asked.replies) reason = wire::read_replies(partial, &texts);
  const bool its_own = live ? leases_.held_episode(lease, worker->name).has_value()
                            : open_.at(episode).was_held(lease, worker->name);
  if (!its_own) reason = "the lease is another worker's";
  if (!reason.empty()) {
    log(LogKind::kRejected, spdlog::level::warn, "answers of episode {} from {} are not kept: {}",
        episode.value, worker->name, reason);
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
  if (asked.replies) give(asked, results, texts, before);
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
  const int reserved = is_failure(how) ? kReservedLeaseTimes : how == LeaseEnd::kExpired ? 1 : 0;
  if (reserved > 0) open_.at(episode).reserved_until = now + reserved * leases_.lease_time();
  for (const EpisodeId exhausted : leases_.exhausted()) give_up(exhausted, now);
}

}  // namespace allot::aggregator
