#include "aggregator/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "aggregator/run_spec.h"
#include "base/error.h"
#include "base/log.h"
#include "wire/codec.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;
using wire::Ack;
using wire::Refused;

constexpr int kMaxLeasesPerRequest = 64;
constexpr size_t kMaxNameBytes = 200;
constexpr size_t kMaxReasonBytes = 1000;
constexpr size_t kRecentTells = 50;
// Episodes given up after a failure, one after the other, with no success in between: then the fault is in
// the run.
constexpr int kMaxFailuresInARow = 5;
// A worker that failed so many episodes since its last result is told to wait while others are there.
constexpr int kFailuresToQuarantine = 3;
// A quarantine lasts one lease time, the next one twice as long, and so on this often.
constexpr int kMostQuarantineDoublings = 4;
// An episode that failed on one worker is kept for others for so many lease times.
constexpr int kReservedLeaseTimes = 5;
constexpr size_t kGivenUpShown = 20;
constexpr size_t kSteeringShown = 50;
constexpr int64_t kMostEpisodes = 1'000'000'000;
// A peer silent for this long, and for ten leases, is forgotten; it is told to introduce itself when it comes
// back.
constexpr Duration kForgetAfter = 10min;

// Peers' text as it goes into the log and the history: one line, not too long.
std::string one_line(std::string text, size_t limit) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7F; }, ' ');
  if (text.size() > limit) text.resize(limit);
  return text;
}

bool is_name(const std::string& text) {
  return !text.empty() && text.size() <= kMaxNameBytes && text == one_line(text, kMaxNameBytes);
}

// Doubles are compared within rounding: a run may move to a machine whose exp() differs in the last bit.
bool close(double a, double b) {
  return a == b || std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

bool same(const Episode& a, const Episode& b) {
  return a.episode == b.episode && a.stage == b.stage && a.label == b.label && a.group == b.group &&
         a.samples == b.samples && a.questions == b.questions && a.sampling_seed == b.sampling_seed &&
         a.policy_version == b.policy_version && close(a.log_prob, b.log_prob);
}

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

template <class T>
void push_bounded(std::deque<T>* queue, T value, size_t most) {
  queue->push_back(std::move(value));
  if (queue->size() > most) queue->pop_front();
}

std::span<const int64_t> listed_leases(const wire::Envelope& message) {
  return {message.leases().data(), static_cast<size_t>(message.leases_size())};
}

wire::Control::Action to_wire(Steering action) {
  switch (action) {
    case Steering::kPause:
      return wire::Control::ACTION_PAUSE;
    case Steering::kResume:
      return wire::Control::ACTION_RESUME;
    case Steering::kStop:
      return wire::Control::ACTION_STOP;
    case Steering::kTarget:
      return wire::Control::ACTION_TARGET;
    case Steering::kEpisodes:
      return wire::Control::ACTION_EPISODES;
  }
  return wire::Control::ACTION_UNSPECIFIED;
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

Core::Core(const wire::RunSpec& spec, std::unique_ptr<policy::Policy> policy, const History& history,
           Timestamp now)
    : spec_(spec),
      epoch_(history.epoch()),
      spent_before_(history.spent_before()),
      started_(now),
      plan_((validate(spec), spec), std::move(policy)),
      leases_(Duration{spec.lease_ms()}, spec.max_attempts()),
      counters_(history.counters()) {
  int64_t replayed = 0;
  try {
    history.replay([&](const Record& record) {
      std::visit([this](const auto& one) { apply(one); }, record);
      ++replayed;
    });
  } catch (const std::logic_error& error) {
    throw CorruptFile(
        fmt::format("the history contradicts itself at record {}: {}; restore a copy or start a new run",
                    replayed, error.what()));
  }
  leases_.renew_all(now);
  note_version(now);
}

// ---- Applying records
// ----------------------------------------------------------------------------------------------

void Core::apply(const EpisodeAsked& asked) {
  const std::optional<Episode> again = plan_.next();
  if (!again || !same(*again, asked.episode)) {
    throw CorruptFile(fmt::format(
        "episode {} of the history is not the one that the spec gives when it is asked again; spec.json "
        "or the history was changed, or they were written by another release of the policy",
        asked.episode.episode.value));
  }
  open_[asked.episode.episode].episode = asked.episode;
  leases_.offer(asked.episode.episode);
}

void Core::apply(const LeaseGranted& granted) {
  leases_.grant(granted.lease, granted.episode, granted.worker, granted.at);
}

void Core::apply(const LeaseEnded& ended) {
  if (ended.how == LeaseEnd::kSuperseded) return;  // done with the outcome that superseded it
  if (!leases_.is_live(ended.lease))
    throw std::logic_error(fmt::format("lease {} ends twice", ended.lease.value));
  const EpisodeId episode = leases_.episode(ended.lease);
  std::string worker = leases_.holder(ended.lease);
  leases_.end(ended.lease, ended.how);
  if (ended.how == LeaseEnd::kReleased || ended.how == LeaseEnd::kPreempted) return;
  open_.at(episode).tries.push_back({std::move(worker), ended.how, ended.reason});
}

void Core::apply(const EpisodeTold& told) {
  const bool used = tell(told.episode, told.results);
  if (used != (told.verdict != Ack::VERDICT_STALE)) {
    throw std::logic_error(fmt::format("the outcome of episode {} was {}stale and is not so again",
                                       told.episode.value, used ? "" : "not "));
  }
  leases_.done(told.episode, told.lease, told.verdict);
}

void Core::apply(const EpisodeSetAside& set_aside) {
  leases_.set_aside(set_aside.episode);
  plan_.set_aside(open_.at(set_aside.episode).episode);
  open_.erase(set_aside.episode);
  push_bounded(&given_up_, set_aside, kGivenUpShown);
}

void Core::apply(const AnswersKept& kept) {
  const auto found = open_.find(kept.episode);
  if (found == open_.end())
    throw std::logic_error(
        fmt::format("answers of episode {} are kept, which is not open", kept.episode.value));
  Open& open = found->second;
  const std::vector<uint32_t>& questions = open.episode.questions;
  open.kept.resize(questions.size());
  for (size_t i = 0; i < kept.questions.size(); ++i) {
    const auto asked = std::ranges::find(questions, kept.questions[i]);
    if (asked == questions.end() || open.kept[static_cast<size_t>(asked - questions.begin())]) {
      throw std::logic_error(
          fmt::format("the answer to question {} of episode {} is kept, which is not asked",
                      kept.questions[i], kept.episode.value));
    }
    open.kept[static_cast<size_t>(asked - questions.begin())] = kept.results[i];
  }
  open.kept_seconds += kept.seconds;
}

void Core::apply(const Steered& steered) {
  switch (steered.action) {
    case Steering::kPause:
      paused_ = true;
      break;
    case Steering::kResume:
      paused_ = false;
      break;
    case Steering::kTarget:
      target_ = steered.reward;
      break;
    case Steering::kStop:
    case Steering::kEpisodes:
      target_.reset();
      plan_.want(steered.episodes);
      break;
  }
  push_bounded(&steering_, steered, kSteeringShown);
}

void Core::apply(const VersionReached& reached) {
  const std::vector<double> shares = policy().shares();
  if (reached.version != policy().version() || !std::ranges::equal(shares, reached.shares, close)) {
    throw CorruptFile(fmt::format(
        "the history holds policy version {} where replaying it gives version {} or other shares; it was "
        "changed or written by another release of the policy",
        reached.version, policy().version()));
  }
  noted_version_ = reached.version;
}

bool Core::tell(EpisodeId episode, const std::vector<QuestionResult>& results) {
  const auto open = open_.find(episode);
  if (open == open_.end())
    throw std::logic_error(fmt::format("episode {} is told but not open", episode.value));
  if (results.size() != open->second.episode.questions.size()) {
    throw std::logic_error(fmt::format("episode {} is told {} results to {} questions", episode.value,
                                       results.size(), open->second.episode.questions.size()));
  }
  const bool used = plan_.tell(open->second.episode, results);
  open_.erase(open);
  return used;
}

template <class R>
void Core::perform(R record) {
  apply(record);
  outputs_.records.emplace_back(std::move(record));
}

void Core::note_version(Timestamp now) {
  if (policy().version() == noted_version_) return;
  noted_version_ = policy().version();
  const std::vector<double> shares = policy().shares();
  outputs_.records.emplace_back(
      VersionReached{noted_version_, shares, policy().recommend().samples, policy::entropy(shares), now});
}

// ---- Messages
// ------------------------------------------------------------------------------------------------------

void Core::receive(const std::string& peer, std::string_view frame, Timestamp now, Rights rights) {
  answering_peer_ = peer;
  const auto decoded = wire::decode(frame);
  if (const auto* failure = std::get_if<wire::DecodeFailure>(&decoded)) {
    counters_.set_malformed(counters_.malformed() + 1);
    spdlog::warn("dropped a message: {}", failure->message);
    answering_number_ = failure->number;
    refuse(failure->fault == wire::DecodeFault::kOtherVersion ? Refused::REASON_PROTOCOL_VERSION
                                                              : Refused::REASON_MALFORMED,
           failure->message);
    return;
  }
  const auto& message = std::get<wire::Envelope>(decoded);
  answering_number_ = message.number();
  if (message.has_control()) return control(message.control(), rights, now);
  handle(message, peer, now);
}

void Core::handle(const wire::Envelope& message, const std::string& peer, Timestamp now) {
  if (message.has_hello()) return hello(message, now);
  if (message.has_status_request()) {
    *reply().mutable_status() = status(now);
    return;
  }
  const auto known = peers_.find(peer);
  if (known == peers_.end() || known->second.worker.empty()) {
    return refuse(Refused::REASON_NOT_INTRODUCED,
                  fmt::format("{} before hello; say hello first", wire::body_name(message)));
  }
  if (message.epoch() != 0 && message.epoch() != epoch_) {
    return refuse(Refused::REASON_NOT_INTRODUCED,
                  fmt::format("{} by the welcome of epoch {}, this is epoch {}; say hello first",
                              wire::body_name(message), message.epoch(), epoch_));
  }
  // Any message is a sign of life, and renews the leases it lists.
  const std::string& worker = known->second.worker;
  known->second.last_seen = workers_[worker].last_seen = now;
  const std::vector<int64_t> unknown = leases_.renew(worker, listed_leases(message), now);
  switch (message.body_case()) {
    case wire::Envelope::kLeaseRequest:
      return lease_request(message.lease_request(), worker, now);
    case wire::Envelope::kResult:
      return result(message.result(), worker, now);
    case wire::Envelope::kRelease:
      return release(message.release(), worker, now);
    case wire::Envelope::kHeartbeat:
      reply().mutable_heartbeat_reply()->mutable_unknown_leases()->Add(unknown.begin(), unknown.end());
      return;
    default:
      return refuse(Refused::REASON_MALFORMED,
                    fmt::format("{} is not for an aggregator", wire::body_name(message)));
  }
}

void Core::hello(const wire::Envelope& message, Timestamp now) {
  const wire::Hello& hello = message.hello();
  if (!hello.client()) {
    if (!is_name(hello.worker())) {
      return refuse(Refused::REASON_MALFORMED, fmt::format("worker name '{}' is not 1 to {} printable bytes",
                                                           one_line(hello.worker(), 40), kMaxNameBytes));
    }
    std::vector<std::string> model = wire::differences(spec_.model(), hello.model());
    if (!model.empty()) {
      return refuse(
          Refused::REASON_MODEL,
          fmt::format(
              "the run's model '{}' is not the worker's '{}': {}; give the worker the model of the run",
              spec_.model().id(), one_line(hello.model().id(), kMaxNameBytes), fmt::join(model, ", ")));
    }
    std::vector<std::string> data = wire::differences(spec_.task().train(), hello.train());
    if (spec_.task().heldout_questions() > 0) {
      std::ranges::move(wire::differences(spec_.task().heldout(), hello.heldout()), std::back_inserter(data));
    }
    if (!data.empty()) {
      return refuse(
          Refused::REASON_DATASET,
          fmt::format("the run's data files are not the worker's: {}; give the worker the files of the run",
                      fmt::join(data, ", ")));
    }
    introduce(message, now);
  }
  peers_[answering_peer_] = {hello.client() ? "" : hello.worker(), now};
  wire::Welcome& welcome = *reply().mutable_welcome();
  welcome.set_epoch(epoch_);
  *welcome.mutable_spec() = spec_;
  welcome.set_heartbeat_ms(std::clamp<int64_t>(spec_.lease_ms() / 4, 1, 10'000));
}

void Core::introduce(const wire::Envelope& message, Timestamp now) {
  const wire::Hello& hello = message.hello();
  Worker& worker = workers_[hello.worker()];
  worker.device = one_line(hello.device(), kMaxNameBytes);
  worker.build = one_line(hello.build(), kMaxNameBytes);
  worker.last_seen = now;
  worker.heard_finished = false;
  worker.leaving = false;
  spdlog::info("worker {} ({}, build {}) is here with {} leases", hello.worker(), worker.device, worker.build,
               message.leases_size());
  leases_.renew(hello.worker(), listed_leases(message), now);
  // A worker of this name that lists a lease no more has died since, or never got its Grant.
  for (const LeaseId lease : leases_.held_by(hello.worker())) {
    if (std::ranges::find(message.leases(), lease.value) == message.leases().end()) {
      end_lease(lease, LeaseEnd::kCrashed,
                fmt::format("{} came back without lease {} of episode {}", hello.worker(), lease.value,
                            leases_.episode(lease).value),
                now);
    }
  }
}

void Core::lease_request(const wire::LeaseRequest& request, const std::string& worker, Timestamp now) {
  wire::Grant grant_body;
  workers_[worker].leaving = false;
  const bool barred = paused_ || quarantined(worker, now);
  const int wanted = barred ? 0 : std::min(request.count(), kMaxLeasesPerRequest);
  while (grant_body.leases_size() < wanted) {
    const std::optional<EpisodeId> episode = next_episode(worker, now);
    if (!episode) break;
    *grant_body.add_leases() = grant(*episode, worker, now);
  }
  if (grant_body.leases_size() > 0) {
    *reply().mutable_grant() = std::move(grant_body);
    return;
  }
  wire::Wait& wait = *reply().mutable_wait();
  wait.set_retry_after_ms(retry_after().count());
  wait.set_finished(stage() == Stage::kFinished);
  if (wait.finished()) {
    workers_[worker].heard_finished = true;
  } else if (paused_) {
    wait.set_paused(true);
  } else if (barred) {
    const Worker& broken = workers_.at(worker);
    wait.set_retry_after_ms((broken.quarantined_until - now).count());
    wait.set_message(
        fmt::format("worker {} failed {} episodes in a row and waits while other workers go on; the last "
                    "failure: {}",
                    worker, broken.failures_in_a_row, broken.last_failure));
  }
}

// ---- Workers that fail

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
  spdlog::warn("worker {} failed {} episodes in a row; it gets none for {} s while other workers are there",
               name, worker.failures_in_a_row, (worker.quarantined_until - now).count() / 1000);
}

// With many workers waiting, each asks less often, so that together they stay below about 500 questions a
// second.
Duration Core::retry_after() const {
  return std::clamp(Duration{2} * static_cast<int64_t>(workers_.size()), Duration{100}, Duration{10'000});
}

std::optional<EpisodeId> Core::next_episode(const std::string& worker, Timestamp now) {
  for (const EpisodeId waiting : leases_.waiting()) {
    const Open& open = open_.at(waiting);
    if (!open.failed_on(worker) || !another_may_take(open, worker, now)) return waiting;
  }
  std::optional<Episode> asked = plan_.next();
  if (!asked) return std::nullopt;
  const EpisodeId episode = asked->episode;
  leases_.offer(episode);
  open_[episode].episode = *asked;
  outputs_.records.emplace_back(EpisodeAsked{std::move(*asked), now});
  return episode;
}

wire::Lease Core::grant(EpisodeId id, const std::string& worker, Timestamp now) {
  const Open& open = open_.at(id);
  const Episode& episode = open.episode;
  const LeaseGranted granted{leases_.next_lease(), id, leases_.attempt(id), worker, now};
  perform(granted);
  counters_.set_granted(counters_.granted() + 1);
  wire::Lease lease;
  lease.set_lease(granted.lease.value);
  lease.set_episode(id.value);
  lease.set_attempt(granted.attempt);
  lease.set_kind(wire::LEASE_KIND_ANSWERS);
  lease.set_split(episode.stage == Stage::kLearn ? wire::SPLIT_TRAIN : wire::SPLIT_HELDOUT);
  lease.mutable_samples()->Add(episode.samples.begin(), episode.samples.end());
  for (size_t place = 0; place < episode.questions.size(); ++place) {
    if (open.kept.empty() || !open.kept[place]) lease.add_questions(episode.questions[place]);
  }
  lease.set_sampling_seed(episode.sampling_seed);
  lease.set_policy_version(episode.policy_version);
  lease.set_deadline_ms(spec_.lease_ms());
  return lease;
}

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
      reason = fmt::format("{} outcomes for {} questions; question {} has no answer", result.outcomes_size(),
                           open.missing(),
                           open.episode.questions[static_cast<size_t>(missing - answers.begin())]);
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
  push_bounded(&recent_tells_, now, kRecentTells);
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

// ---- Steering

void Core::control(const wire::Control& control, Rights rights, Timestamp now) {
  wire::ControlReply answer;
  const std::string by = one_line(control.by(), kMaxNameBytes);
  if (rights != Rights::kOperator) {
    answer.set_message("this key may work for the run, not steer it; use an operator's key");
  } else if (by.empty()) {
    answer.set_message("the history notes who steers a run; give a name");
  } else {
    const size_t before = outputs_.records.size();
    answer.set_message(steer(control, by, now));
    answer.set_done(outputs_.records.size() > before);
    if (answer.done())
      spdlog::info("{} by {}: {}", wire::Control::Action_Name(control.action()), by, answer.message());
  }
  *reply().mutable_control_reply() = std::move(answer);
}

// Follows the wish, with a record of it, or refuses, without one; says which.
std::string Core::steer(const wire::Control& control, const std::string& by, Timestamp now) {
  const bool finished = stage() == Stage::kFinished;
  const auto record = [&](Steering action) {
    perform(Steered{.action = action,
                    .episodes = action == Steering::kStop ? plan_.learned() : control.episodes(),
                    .reward = control.reward(),
                    .by = by,
                    .at = now});
    note_version(now);
  };
  switch (control.action()) {
    case wire::Control::ACTION_PAUSE:
      if (finished) return "the run is finished";
      record(Steering::kPause);
      return fmt::format("paused; {} leases still run", leases_.num_live());
    case wire::Control::ACTION_RESUME:
      if (!paused_) return "the run is not paused";
      record(Steering::kResume);
      return "resumed";
    case wire::Control::ACTION_STOP:
    case wire::Control::ACTION_TARGET:
    case wire::Control::ACTION_EPISODES:
      break;
    default:
      return fmt::format("action {} is not known to this release", static_cast<int>(control.action()));
  }
  if (stage() != Stage::kLearn) return fmt::format("the learning is over, the stage is {}", name(stage()));
  if (control.action() == wire::Control::ACTION_STOP) {
    record(Steering::kStop);
    return fmt::format("learning stops after {} episodes and those that run", plan_.learned());
  }
  if (control.action() == wire::Control::ACTION_EPISODES) {
    if (control.episodes() < 1 || control.episodes() > kMostEpisodes)
      return fmt::format("episodes is {}, 1 to {} is expected", control.episodes(), kMostEpisodes);
    record(Steering::kEpisodes);
    return fmt::format("{} learning episodes are wanted, {} are done", control.episodes(), plan_.learned());
  }
  if (!(control.reward() > 0 && control.reward() <= 1))
    return fmt::format("the target is a mean reward of {}, above 0 and at most 1 is expected",
                       control.reward());
  record(Steering::kTarget);
  stop_at_target(now);
  return fmt::format("learning stops when the last {} episodes have a mean reward of {}; now it is {:.3f}",
                     Plan::kRecentRewards, control.reward(), plan_.mean_reward_recent());
}

// A record of its own, so that a replay need not compare rewards.
void Core::stop_at_target(Timestamp now) {
  if (!target_ || stage() != Stage::kLearn || !plan_.recent_is_full() ||
      plan_.mean_reward_recent() < *target_)
    return;
  spdlog::info("the recent mean reward {:.3f} reached the target {}", plan_.mean_reward_recent(), *target_);
  perform(Steered{.action = Steering::kStop,
                  .episodes = plan_.learned(),
                  .by = fmt::format("target {}", *target_),
                  .at = now});
}

void Core::tick(Timestamp now) {
  if (failures_in_a_row_ >= kMaxFailuresInARow) {
    throw Error(fmt::format(
        "stopped: {} episodes in a row failed {} times each; the last failure: {}; mend the cause and start "
        "again on the same run directory",
        failures_in_a_row_, spec_.max_attempts(), last_failure_));
  }
  for (const LeaseId lease : leases_.due(now)) end_lease(lease, LeaseEnd::kExpired, "", now);
  const Timestamp forgotten = now - std::max(kForgetAfter, Duration{10 * spec_.lease_ms()});
  if (now < next_forgetting_) return;
  next_forgetting_ = now + kForgetAfter;
  std::erase_if(peers_, [&](const auto& entry) { return entry.second.last_seen < forgotten; });
  std::erase_if(workers_, [&](const auto& entry) { return entry.second.last_seen < forgotten; });
}

Outputs Core::take() {
  return std::exchange(outputs_, {});
}

wire::Envelope& Core::reply() {
  Reply& reply = outputs_.replies.emplace_back();
  reply.peer = answering_peer_;
  reply.envelope.set_number(++number_);
  reply.envelope.set_in_reply_to(answering_number_);
  reply.envelope.set_sender("aggregator");
  return reply.envelope;
}

void Core::refuse(Refused::Reason reason, const std::string& message) {
  Refused& refused = *reply().mutable_refused();
  refused.set_reason(reason);
  refused.set_message(message);
}

// ---- What others see
// -----------------------------------------------------------------------------------------------

bool Core::everyone_heard_finished() const {
  return std::ranges::all_of(workers_, [](const auto& entry) { return entry.second.heard_finished; });
}

wire::Status Core::status(Timestamp now) const {
  const auto seconds = [](Duration duration) { return std::chrono::duration<double>(duration).count(); };
  wire::Status status;
  describe_run(spec_, &status);
  status.set_stage(std::string(name(stage())));
  status.set_episodes_done(plan_.learned());
  status.set_episodes_wanted(plan_.wanted());
  status.set_episodes_running(static_cast<int64_t>(leases_.num_live()));
  status.set_mean_reward_recent(plan_.mean_reward_recent());
  const std::vector<double> shares = policy().shares();
  status.mutable_shares()->Add(shares.begin(), shares.end());
  const std::vector<int32_t> recommended = policy().recommend().samples;
  status.mutable_recommended()->Add(recommended.begin(), recommended.end());
  status.set_entropy(policy::entropy(shares));
  status.set_policy_version(policy().version());
  status.set_elapsed_s(seconds(spent_before_ + (now - started_)));
  status.set_eta_s(-1);
  if (stage() == Stage::kFinished) {
    status.set_eta_s(0);
  } else if (recent_tells_.size() >= 2 && now > recent_tells_.front()) {
    const double rate = static_cast<double>(recent_tells_.size() - 1) / seconds(now - recent_tells_.front());
    status.set_episodes_per_second(rate);
    if (!paused_) status.set_eta_s(static_cast<double>(plan_.remaining()) / rate);
  }
  *status.mutable_counters() = counters_;
  const std::map<std::string, int> held = leases_.leases_per_worker();
  for (const auto& [worker_name, worker] : workers_) {
    wire::WorkerStatus& row = *status.add_workers();
    row.set_worker(worker_name);
    row.set_device(worker.device);
    row.set_build(worker.build);
    row.set_leases(held.contains(worker_name) ? held.at(worker_name) : 0);
    row.set_episodes_done(worker.episodes_done);
    row.set_last_seen_ms((now - worker.last_seen).count());
    row.set_failures_in_a_row(worker.failures_in_a_row);
    if (quarantined(worker_name, now)) row.set_quarantined_ms((worker.quarantined_until - now).count());
    row.set_last_failure(worker.last_failure);
  }
  for (wire::Score& score : plan_.scores()) *status.add_scores() = std::move(score);
  status.set_epoch(epoch_);
  plan_.curve().write(status.mutable_curve());
  status.set_paused(paused_);
  status.set_target_reward(target_.value_or(0));
  for (const EpisodeSetAside& set_aside : given_up_) {
    wire::GivenUp& row = *status.add_given_up();
    row.set_episode(set_aside.episode.value);
    row.set_poisoned(set_aside.kind == GiveUp::kPoisoned);
    row.set_reason(set_aside.reason);
  }
  for (const Steered& steered : steering_) {
    wire::SteeringEvent& row = *status.add_steering();
    row.set_action(to_wire(steered.action));
    row.set_episodes(steered.episodes);
    row.set_reward(steered.reward);
    row.set_by(steered.by);
    row.set_at_ms(steered.at.time_since_epoch().count());
  }
  return status;
}

}  // namespace allot::aggregator
