#include "aggregator/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>

#include "aggregator/holder.h"
#include "aggregator/outlook.h"
#include "aggregator/peer_text.h"
#include "aggregator/run_spec.h"
#include "base/error.h"
#include "base/log.h"
#include "wire/codec.h"
#include "wire/episode_codec.h"
#include "wire/features.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;
using wire::Refused;

// When this many episodes in a row were given up after a failure, with no success in between and nobody at
// work who has not failed, the fault is in the run.
constexpr int kMaxFailuresInARow = 5;
// A peer that was silent for this long and for ten lease times is forgotten; when it comes back it is told
// to introduce itself.
constexpr Duration kForgetAfter = 10min;
// How long a cordoned worker waits before it asks again.
constexpr Duration kCordonedRetry = 5s;

// Workers of release 0.1 name none.
std::vector<RewardKind> kinds_of(const wire::Hello& hello) {
  std::vector<RewardKind> kinds;
  for (const int kind : hello.kinds()) {
    if (const auto known = wire::kind_of(static_cast<wire::LeaseKind>(kind))) kinds.push_back(*known);
  }
  return hello.kinds_size() == 0 ? std::vector{RewardKind::kAnswers} : kinds;
}

// Devices are told as "cpu, 16 cores" and "cuda:0 NVIDIA H200, 139 GiB".
bool is_of_kind(std::string_view device, std::string_view kind) {
  return device.substr(0, device.find_first_of(":, ")) == kind;
}

std::span<const int64_t> listed_leases(const wire::Envelope& message) {
  return {message.leases().data(), static_cast<size_t>(message.leases_size())};
}

}  // namespace

Core::Core(const wire::RunSpec& spec, std::unique_ptr<policy::Policy> policy, const History& history,
           Timestamp now, EvaluationWork work)
    : spec_(spec),
      epoch_(history.epoch()),
      spent_before_(history.spent_before()),
      started_(now),
      plan_((validate(spec), spec), std::move(policy), std::move(work)),
      cross_check_(spec.seed(), spec.cross_check()),
      leases_(Duration{spec.lease_ms()}, spec.max_attempts()),
      until_settled_(spec.until_settled()),
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
  if (plan_.evaluation() != nullptr) begin_evaluation(now);
  described_ = describe_with_outlook(this->policy());
  note_version(now);
}

// Where the caller has answers that the history lacks (this process was killed between the two, or another
// answered meanwhile), or asks something else now, what is missing is asked by new episodes.
void Core::begin_evaluation(Timestamp now) {
  now_ = now;
  std::vector<EpisodeId> unwanted;
  for (const auto& [id, open] : open_) {
    std::vector<bool> kept(open.episode.questions.size());
    for (size_t place = 0; place < open.kept.size(); ++place) kept[place] = open.kept[place].has_value();
    if (!plan_.evaluation()->still_wanted(open.episode, kept)) unwanted.push_back(id);
  }
  std::ranges::sort(unwanted);
  for (const EpisodeId id : unwanted) withdraw(id, "it is answered, or not asked any more", now);
  plan_.begin_evaluation();
}

namespace {

// Prefixes the names in a message with the name of its key's holder.
void sign(wire::Envelope* message, const std::string& user) {
  const auto of_user = [&](const std::string& given) { return given.empty() ? given : user + "/" + given; };
  if (message->has_hello()) message->mutable_hello()->set_worker(of_user(message->hello().worker()));
  if (message->has_control()) message->mutable_control()->set_by(of_user(message->control().by()));
}

}  // namespace

// ---- Messages

void Core::receive(const Sender& sender, std::string_view frame, Timestamp now) {
  sender_ = sender;
  now_ = now;
  auto decoded = wire::decode(frame);
  if (const auto* failure = std::get_if<wire::DecodeFailure>(&decoded)) {
    counters_.set_malformed(counters_.malformed() + 1);
    log(LogKind::kUnreadable, spdlog::level::warn, "dropped a message from {}: {}", sender_text(),
        failure->message);
    answering_number_ = failure->number;
    const bool version =
        failure->fault == wire::DecodeFault::kOtherVersion || failure->fault == wire::DecodeFault::kNoVersion;
    refuse(version ? Refused::REASON_PROTOCOL_VERSION : Refused::REASON_MALFORMED, failure->message);
    return;
  }
  auto& message = std::get<wire::Envelope>(decoded);
  answering_number_ = message.number();
  const bool looks_on = message.has_status_request() || (message.has_hello() && message.hello().client());
  const std::string& user = sender.user;
  if (sender.rights == Rights::kViewer && !looks_on) {
    counters_.set_not_allowed(counters_.not_allowed() + 1);
    log(LogKind::kNotAllowed, spdlog::level::warn, "refused {} from {}, whose key may only look on",
        wire::body_name(message), sender_text());
    return refuse(
        Refused::REASON_NOT_ALLOWED,
        fmt::format("the key of {} may ask for the status, not send {}; use a worker's or an operator's key",
                    user, wire::body_name(message)));
  }
  if (!user.empty()) sign(&message, user);
  if (message.has_control()) return control(message.control(), sender.rights, now);
  handle(message, now);
}

void Core::handle(const wire::Envelope& message, Timestamp now) {
  if (message.has_hello()) return hello(message, now);
  if (message.has_status_request()) {
    *reply().mutable_status() = status(now);
    return;
  }
  const auto known = peers_.find(sender_.peer);
  if (known == peers_.end() || known->second.worker.empty()) {
    return refuse(Refused::REASON_NOT_INTRODUCED,
                  fmt::format("{} before hello; say hello first", wire::body_name(message)));
  }
  if (message.epoch() != 0 && message.epoch() != epoch_) {
    return refuse(Refused::REASON_NOT_INTRODUCED,
                  fmt::format("{} by the welcome of epoch {}, this is epoch {}; say hello first",
                              wire::body_name(message), message.epoch(), epoch_));
  }
  // Any message is a sign of life and renews the leases that it lists.
  Worker& worker = worker_of(known->second.worker);
  known->second.last_seen = worker.last_seen = now;
  const std::vector<int64_t> unknown = leases_.renew(worker.name, listed_leases(message), now);
  switch (message.body_case()) {
    case wire::Envelope::kLeaseRequest:
      return lease_request(message.lease_request(), listed_leases(message), &worker, now);
    case wire::Envelope::kResult:
      return result(message.result(), &worker, now);
    case wire::Envelope::kRelease:
      return release(message.release(), &worker, now);
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
    const auto refuse = [this](Refused::Reason reason, const std::string& why) {
      counters_.set_mismatched(counters_.mismatched() + 1);
      log(LogKind::kMismatched, spdlog::level::warn, "refused a worker from {}: {}", sender_text(), why);
      this->refuse(reason, why);
    };
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
    const auto& more = spec_.evaluation().more();
    for (int i = 0; i < std::min(more.size(), hello.more_size()); ++i)
      for (const std::string& difference : wire::differences(more[i].task().train(), hello.more(i)))
        data.push_back(fmt::format("of task {} ({}): {}", i + 1, more[i].task().name(), difference));
    if (!data.empty()) {
      return refuse(
          Refused::REASON_DATASET,
          fmt::format("the run's data files are not the worker's: {}; give the worker the files of the run",
                      fmt::join(data, ", ")));
    }
    if (const std::vector<std::string> missing = wire::missing_features(spec_, hello); !missing.empty()) {
      return refuse(
          Refused::REASON_RELEASE,
          fmt::format(
              "worker {} (build {}) does not know {} of the run and would answer as if the run did not "
              "say so; start workers of a release that knows it",
              hello.worker(), one_line(hello.build(), kMaxNameBytes), fmt::join(missing, " and ")));
    }
    if (spec_.has_evaluation()) {
      if (!hello.replies())
        return refuse(
            Refused::REASON_RELEASE,
            fmt::format("worker {} (build {}) does not send the texts of replies, which an evaluation "
                        "keeps; start workers of the evaluation's release",
                        hello.worker(), one_line(hello.build(), kMaxNameBytes)));
      if (hello.more_size() != spec_.evaluation().more_size())
        return refuse(
            Refused::REASON_RELEASE,
            fmt::format(
                "worker {} (build {}) says the data of {} of the evaluation's {} further tasks; start workers "
                "of the evaluation's release",
                hello.worker(), one_line(hello.build(), kMaxNameBytes), hello.more_size(),
                spec_.evaluation().more_size()));
      if (const std::string& kind = spec_.evaluation().device(); !is_of_kind(hello.device(), kind))
        return refuse(
            Refused::REASON_DEVICE,
            fmt::format("the evaluation's answers have the rounding of device {}, worker {} is on {}; "
                        "start workers on {}, or the evaluation with another --device and --run",
                        kind, hello.worker(), one_line(hello.device(), kMaxNameBytes), kind));
    }
    introduce(message, now);
  }
  peers_[sender_.peer] = {hello.client() ? "" : hello.worker(), now};
  wire::Welcome& welcome = *reply().mutable_welcome();
  welcome.set_epoch(epoch_);
  *welcome.mutable_spec() = spec_;
  welcome.set_heartbeat_ms(std::clamp<int64_t>(leases_.lease_time().count() / 4, 1, 10'000));
}

void Core::introduce(const wire::Envelope& message, Timestamp now) {
  const wire::Hello& hello = message.hello();
  Worker& worker = worker_of(hello.worker());
  // Workers reconnect now and then (wire/endpoint.h), which is not worth a log line.
  const bool was_here = was_heard(worker, now);
  worker.device = one_line(hello.device(), kMaxNameBytes);
  worker.build = one_line(hello.build(), kMaxNameBytes);
  worker.last_seen = now;
  worker.silent = false;
  worker.holder->has_key = !sender_.user.empty();
  worker.heard_finished = false;
  worker.leaving = false;
  worker.kinds = kinds_of(hello);
  worker.capacity = std::max(hello.capacity(), 0);
  log(LogKind::kWorkerHere, was_here ? spdlog::level::debug : spdlog::level::info,
      "worker {} ({}, build {}) is here with {} leases", hello.worker(), worker.device, worker.build,
      message.leases_size());
  leases_.renew(hello.worker(), listed_leases(message), now);
  // A worker of this name that no longer lists one of its leases has died since, or never got the Grant. That
  // counts as one failure, however many leases it held.
  std::string death;
  for (const LeaseId lease : leases_.held_by(hello.worker())) {
    if (std::ranges::find(message.leases(), lease.value) != message.leases().end()) continue;
    death = fmt::format("{} came back without lease {} of episode {}", hello.worker(), lease.value,
                        leases_.episode(lease).value);
    end_lease(lease, LeaseEnd::kCrashed, death, now);
  }
  if (!death.empty()) note_failure(&worker, death, now);
}

void Core::lease_request(const wire::LeaseRequest& request, std::span<const int64_t> listed, Worker* worker,
                         Timestamp now) {
  wire::Grant grant_body;
  worker->leaving = false;
  if (request.capacity() > 0) worker->capacity = request.capacity();
  const bool barred = paused_ || cordoned(*worker) || quarantined(*worker, now);
  std::string no_room;
  const int64_t room = barred ? 0 : room_for(*worker, &no_room);
  const auto allowed =
      static_cast<int>(std::clamp<int64_t>(request.count(), 0, std::min<int64_t>(room, kMaxLeasesOfAWorker)));
  const int wanted = behind_ ? 0 : std::min(allowed, kMaxLeasesPerRound - granted_this_round_);
  while (grant_body.leases_size() < wanted) {
    const std::optional<EpisodeId> episode = next_episode(*worker, now);
    if (!episode) break;
    *grant_body.add_leases() = grant(*episode, worker->name, now);
    ++granted_this_round_;
  }
  if (grant_body.leases_size() > 0) {
    *reply().mutable_grant() = std::move(grant_body);
    return;
  }
  wire::Wait& wait = *reply().mutable_wait();
  wait.set_retry_after_ms(retry_after().count());
  wait.set_finished(stage() == Stage::kFinished);
  if (wait.finished()) {
    worker->heard_finished = true;
  } else if (paused_) {
    wait.set_paused(true);
  } else if (cordoned(*worker)) {
    wait.set_retry_after_ms(std::max(retry_after(), kCordonedRetry).count());
    wait.set_message(
        fmt::format("an operator has cordoned {}; it gets leases again after allot control uncordon",
                    cordoned_.contains(worker->name) ? worker->name : holder_of(worker->name)));
  } else if (barred) {
    const bool itself = worker->faults.quarantined_until > now;
    const Faults& faults = itself ? worker->faults : worker->holder->faults;
    wait.set_retry_after_ms((quarantined_until(*worker) - now).count());
    wait.set_message(
        itself
            ? fmt::format("worker {} failed {} times in a row and waits while other workers go on; the "
                          "last failure: {}",
                          worker->name, faults.in_a_row, faults.last)
            : fmt::format("workers of {} failed {} times in a row and wait while those of others go on; the "
                          "last failure: {}",
                          holder_of(worker->name), faults.in_a_row, faults.last));
  } else if (allowed > wanted) {
    wait.set_retry_after_ms(put_off().count());
  } else if (room == 0) {
    // A worker that does not list all it holds has not seen its last Grant yet; there is nothing to explain.
    if (std::ssize(listed) >= leases_.num_held(worker->name)) wait.set_message(no_room);
  } else {
    wait.set_message(kinds_that_it_lacks(*worker));
  }
}

// Each worker is told to come back 2 ms after the one before, so that together they ask 500 times a second.
Duration Core::put_off() {
  return std::min(Duration{100} + 2 * Duration{put_off_this_round_++}, Duration{10'000});
}

// With many workers waiting, each asks less often, so that together they stay below about 500
// questions a second.
Duration Core::retry_after() const {
  return std::clamp(Duration{2} * static_cast<int64_t>(workers_.size()), Duration{100}, Duration{10'000});
}

std::optional<EpisodeId> Core::next_episode(const Worker& worker, Timestamp now) {
  bool left_for_others = false;  // because of their kind
  for (const EpisodeId waiting : leases_.waiting()) {
    const Open& open = open_.at(waiting);
    if (!may_check(open, worker)) continue;
    if (!worker.runs(open.episode.kind)) {
      left_for_others = true;
    } else if (!another_may_take(open, worker, now)) {
      return waiting;
    }
  }
  const PlannedEpisode* to_check = cross_check_.waiting_for(holder_of(worker.name));
  if (to_check != nullptr && worker.runs(to_check->kind) && stage() != Stage::kFinished) {
    PlannedEpisode check = cross_check_.begin(to_check->id);
    check.id = plan_.next_number();
    return ask(std::move(check), now);
  }
  // Else a worker would have one episode after the other asked until one is of a kind that it runs.
  if (left_for_others || !worker.runs(plan_.next_kind())) return std::nullopt;
  std::optional<PlannedEpisode> asked = plan_.next();
  if (!asked) return std::nullopt;
  const bool its_own = worker.runs(asked->kind);
  const EpisodeId episode = ask(*std::move(asked), now);
  return its_own ? std::optional(episode) : std::nullopt;
}

bool Core::may_check(const Open& open, const Worker& worker) const {
  return open.episode.stage != Stage::kCheck ||
         cross_check_.may_run({open.episode.group}, holder_of(worker.name));
}

EpisodeId Core::ask(PlannedEpisode episode, Timestamp now) {
  const EpisodeId id = episode.id;
  leases_.offer(id);
  open_[id].episode = episode;
  outputs_.records.emplace_back(EpisodeAsked{std::move(episode), now});
  return id;
}

std::string Core::kinds_that_it_lacks(const Worker& worker) const {
  if (stage() == Stage::kFinished) return "";
  RewardKind lacking = plan_.next_kind();
  for (const EpisodeId waiting : leases_.waiting()) {
    if (worker.runs(lacking)) lacking = open_.at(waiting).episode.kind;
  }
  if (worker.runs(lacking)) return "";
  return fmt::format(
      "episodes of kind {} are to be run, which worker {} (build {}) does not run; start "
      "workers of the aggregator's release",
      row_of(lacking).name, worker.name, worker.build);
}

wire::Lease Core::grant(EpisodeId id, const std::string& worker, Timestamp now) {
  const Open& open = open_.at(id);
  const PlannedEpisode& episode = open.episode;
  const LeaseGranted granted{leases_.next_lease(), id, leases_.attempt(id), worker, now};
  perform(granted);
  counters_.set_granted(counters_.granted() + 1);
  wire::Lease lease;
  wire::fill(episode, &lease);
  lease.set_lease(granted.lease.value);
  lease.set_attempt(granted.attempt);
  if (!open.kept.empty()) {
    lease.clear_questions();
    for (size_t place = 0; place < episode.questions.size(); ++place)
      if (!open.kept[place]) lease.add_questions(episode.questions[place]);
  }
  lease.set_policy_version(episode.policy_version);
  lease.set_deadline_ms(leases_.lease_time().count());
  return lease;
}

void Core::tick(Timestamp now) {
  now_ = now;
  if (failures_in_a_row_ >= kMaxFailuresInARow && !someone_may_succeed(now)) {
    throw Error(fmt::format(
        "stopped: {} episodes in a row failed {} times each; the last failure: {}; mend the cause and start "
        "again on the same run directory",
        failures_in_a_row_, leases_.max_attempts(), last_failure_));
  }
  for (const LeaseId lease : leases_.due(now)) {
    log(LogKind::kLeaseExpired, spdlog::level::warn, "lease {} of episode {} expired: no word of it from {}",
        lease.value, leases_.episode(lease).value, leases_.holder(lease));
    end_lease(lease, LeaseEnd::kExpired, "", now);
  }
  log_stage();
  for (const auto& [kind, count] : log_limiter_.left_out(now))
    spdlog::warn("{} more {} were left out of the log", count, plural_of(kind));
  if (now >= next_look_) look_at_workers(now);
  const Timestamp forgotten = now - std::max(kForgetAfter, 10 * leases_.lease_time());
  if (now < next_forgetting_) return;
  next_forgetting_ = now + kForgetAfter;
  std::erase_if(peers_, [&](const auto& entry) { return entry.second.last_seen < forgotten; });
  std::erase_if(workers_, [&](const auto& entry) { return entry.second.last_seen < forgotten; });
  std::set<const Holder*> of_workers;
  for (const auto& [worker_name, worker] : workers_) of_workers.insert(worker.holder);
  std::erase_if(holders_, [&](const auto& entry) { return !of_workers.contains(&entry.second); });
}

Outputs Core::take() {
  granted_this_round_ = put_off_this_round_ = 0;
  return std::exchange(outputs_, {});
}

wire::Envelope& Core::reply() {
  Reply& reply = outputs_.replies.emplace_back();
  reply.peer = sender_.peer;
  reply.envelope.set_number(++number_);
  reply.envelope.set_in_reply_to(answering_number_);
  reply.envelope.set_sender("aggregator");
  return reply.envelope;
}

std::string Core::sender_text() const {
  const std::string who = sender_.user.empty() ? "a peer" : sender_.user;
  return sender_.address.empty() ? who : fmt::format("{} at {}", who, sender_.address);
}

void Core::note_over_rate(const Sender& sender, double per_second, Timestamp now) {
  sender_ = sender;
  now_ = now;
  log(LogKind::kOverRate, spdlog::level::warn,
      "{} sends more than {} messages a second, so some are not read", sender_text(), per_second);
}

void Core::count_refused_connections(int64_t connections) {
  counters_.set_refused_connections(counters_.refused_connections() + connections);
}

void Core::log_stage() {
  if (logged_stage_ == stage()) return;
  if (logged_stage_ && plan_.evaluation() != nullptr) {
    spdlog::info("stage {} begins", name(stage()));
  } else if (logged_stage_) {
    spdlog::info("stage {} begins after {} learning episodes, policy version {}", name(stage()),
                 plan_.learned(), policy().version());
  }
  logged_stage_ = stage();
}

void Core::refuse(Refused::Reason reason, const std::string& message) {
  Refused& refused = *reply().mutable_refused();
  refused.set_reason(reason);
  refused.set_message(message);
}

}  // namespace allot::aggregator
