#include "aggregator/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

// Why a result without error does not answer its episode; empty when it does.
std::string misfit(const wire::EpisodeResult& result, const Episode& episode) {
  if (static_cast<size_t>(result.outcomes_size()) != episode.questions.size()) {
    return fmt::format("{} outcomes for {} questions", result.outcomes_size(), episode.questions.size());
  }
  if (!std::isfinite(result.seconds()) || result.seconds() < 0) {
    return fmt::format("seconds is {}, a number of at least 0 is expected", result.seconds());
  }
  for (int i = 0; i < result.outcomes_size(); ++i) {
    const wire::QuestionOutcome& outcome = result.outcomes(i);
    const uint32_t asked = episode.questions[static_cast<size_t>(i)];
    if (outcome.question() != asked) {
      return fmt::format("outcome {} is of question {}, question {} was asked there", i, outcome.question(),
                         asked);
    }
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

std::vector<QuestionResult> question_results(const wire::EpisodeResult& result) {
  std::vector<QuestionResult> results;
  for (const wire::QuestionOutcome& outcome : result.outcomes()) {
    results.push_back(
        {outcome.correct(), outcome.finish(), outcome.prompt_tokens(), outcome.output_tokens()});
  }
  return results;
}

std::span<const int64_t> listed_leases(const wire::Envelope& message) {
  return {message.leases().data(), static_cast<size_t>(message.leases_size())};
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
  open_.emplace(asked.episode.episode, asked.episode);
  leases_.offer(asked.episode.episode);
}

void Core::apply(const LeaseGranted& granted) {
  leases_.grant(granted.lease, granted.episode, granted.worker, granted.at);
}

void Core::apply(const LeaseEnded& ended) {
  if (ended.how != LeaseEnd::kSuperseded) leases_.end(ended.lease, ended.how);
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
  plan_.set_aside(open_.at(set_aside.episode));
  open_.erase(set_aside.episode);
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
  const bool used = plan_.tell(open->second, results);
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

void Core::receive(const std::string& peer, std::string_view frame, Timestamp now) {
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
  spdlog::info("worker {} ({}, build {}) is here with {} leases", hello.worker(), worker.device, worker.build,
               message.leases_size());
  leases_.renew(hello.worker(), listed_leases(message), now);
  // A worker of this name that lists a lease no more has died since, or never got its Grant.
  for (const LeaseId lease : leases_.held_by(hello.worker())) {
    if (std::ranges::find(message.leases(), lease.value) == message.leases().end()) {
      end_lease(lease, LeaseEnd::kExpired, "its worker said hello without it", now);
    }
  }
}

void Core::lease_request(const wire::LeaseRequest& request, const std::string& worker, Timestamp now) {
  wire::Grant grant_body;
  const int wanted = std::min(request.count(), kMaxLeasesPerRequest);
  while (grant_body.leases_size() < wanted) {
    const std::optional<EpisodeId> episode = next_episode(now);
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
  if (wait.finished()) workers_[worker].heard_finished = true;
}

// With many workers waiting, each asks less often, so that together they stay below about 500 questions a
// second.
Duration Core::retry_after() const {
  return std::clamp(Duration{2} * static_cast<int64_t>(workers_.size()), Duration{100}, Duration{10'000});
}

std::optional<EpisodeId> Core::next_episode(Timestamp now) {
  if (const auto waiting = leases_.next_waiting()) return waiting;
  std::optional<Episode> asked = plan_.next();
  if (!asked) return std::nullopt;
  const EpisodeId episode = asked->episode;
  leases_.offer(episode);
  open_.emplace(episode, *asked);
  outputs_.records.emplace_back(EpisodeAsked{std::move(*asked), now});
  return episode;
}

wire::Lease Core::grant(EpisodeId id, const std::string& worker, Timestamp now) {
  const Episode& episode = open_.at(id);
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
  lease.mutable_questions()->Add(episode.questions.begin(), episode.questions.end());
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
  if (!result.error().empty()) {
    const std::string error = one_line(result.error(), kMaxReasonBytes);
    fail(lease, live, LeaseEnd::kFailed,
         fmt::format("episode {} failed on {}: {}", episode.value, worker, error), now);
    return verdict(Ack::VERDICT_FAILED, "noted");
  }
  if (std::string reason = misfit(result, open_.at(episode)); !reason.empty()) {
    fail(lease, live, LeaseEnd::kRejected,
         fmt::format("result of episode {} from {} rejected: {}", episode.value, worker, reason), now);
    return verdict(Ack::VERDICT_REJECTED, std::move(reason));
  }
  return verdict(accept(result, live, worker, now), "");
}

Verdict Core::accept(const wire::EpisodeResult& result, bool live, const std::string& worker, Timestamp now) {
  EpisodeTold told{.episode = {result.episode()},
                   .lease = {result.lease()},
                   .verdict = live ? Ack::VERDICT_ACCEPTED : Ack::VERDICT_LATE,
                   .results = question_results(result),
                   .told_version = policy().version(),
                   .worker = worker,
                   .seconds = result.seconds(),
                   .at = now};
  if (!tell(told.episode, told.results)) told.verdict = Ack::VERDICT_STALE;
  const Verdict verdict = told.verdict;
  const std::optional<LeaseId> superseded = leases_.done(told.episode, told.lease, verdict);
  outputs_.records.emplace_back(std::move(told));
  if (superseded) outputs_.records.emplace_back(LeaseEnded{*superseded, LeaseEnd::kSuperseded, "", now});
  note_version(now);
  ++workers_[worker].episodes_done;
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
  for (const int64_t lease : release.leases()) {
    if (leases_.held_episode({lease}, worker)) end_lease({lease}, LeaseEnd::kReleased, "", now);
  }
  *reply().mutable_released()->mutable_leases() = release.leases();
}

void Core::end_lease(LeaseId lease, LeaseEnd how, const std::string& reason, Timestamp now) {
  perform(LeaseEnded{lease, how, reason, now});
  if (how == LeaseEnd::kExpired) counters_.set_expired(counters_.expired() + 1);
  if (how == LeaseEnd::kReleased) counters_.set_released(counters_.released() + 1);
  for (const EpisodeId episode : leases_.exhausted()) {
    spdlog::warn("episode {} is set aside after {} attempts", episode.value, spec_.max_attempts());
    perform(EpisodeSetAside{episode, now});
    counters_.set_set_aside(counters_.set_aside() + 1);
    if (how == LeaseEnd::kFailed || how == LeaseEnd::kRejected) ++failures_in_a_row_;
    note_version(now);
  }
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
  status.set_episodes_wanted(spec_.episodes());
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
    status.set_eta_s(static_cast<double>(plan_.remaining()) / rate);
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
  }
  for (wire::Score& score : plan_.scores()) *status.add_scores() = std::move(score);
  status.set_epoch(epoch_);
  plan_.curve().write(status.mutable_curve());
  return status;
}

}  // namespace allot::aggregator
