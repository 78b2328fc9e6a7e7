#include "aggregator/service.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <utility>

#include "aggregator/run_spec.h"
#include "base/file.h"
#include "base/log.h"
#include "wire/codec.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

// How often to check the stop flag and the lease deadlines when no message comes.
constexpr Duration kPoll = 100ms;
// One transaction holds at most this many messages, so that the first of them does not wait long for its
// answer. Further messages stay in the queues of their connections. ZeroMQ stops reading a connection whose
// queue is full, so nothing is dropped.
constexpr int kMaxMessagesPerRound = 1000;
// Counters and the time spent are written at least this often.
constexpr Duration kCommitAtLeastEvery = 10s;

Rights rights_of(wire::Role role) {
  switch (role) {
    case wire::Role::kViewer:
      return Rights::kViewer;
    case wire::Role::kWorker:
      return Rights::kWorker;
    case wire::Role::kOperator:
      return Rights::kOperator;
  }
  return Rights::kViewer;
}

Sender sender_of(const wire::Server::Message& message) {
  return {.peer = message.peer,
          .rights = rights_of(message.from.role),
          .user = message.from.name,
          .address = message.address};
}

// How often snapshots are made. Where one takes long (thousands of workers) they are made less often: at most
// 1 / kSnapshotShare of the loop's time goes into them.
constexpr auto kSnapshotEvery = 1s;
// How often the file of the aggregator's key is looked at.
constexpr Duration kKeyLookEvery = 1s;
constexpr int kSnapshotShare = 50;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

const wire::RunSpec& validated(const wire::RunSpec& spec) {
  validate(spec);
  return spec;
}

}  // namespace

Service::Service(const wire::RunSpec& spec, ServiceOptions options)
    : options_(std::move(options)),
      server_(options_.server),
      rate_limiter_(options_.rate),
      directory_(options_.run_directory, validated(spec)),
      history_(open_sqlite_history(history_path(directory_.path()), options_.build, clock_.now())),
      core_(directory_.spec(), make_learner(directory_.spec()), *history_, clock_.now(),
            std::move(options_.work)),
      round_began_(std::chrono::steady_clock::now()) {
  for (const wire::Control& wish : options_.wishes) core_.steer(wish, clock_.now());
  figures_.last_progress = clock_.now();
  commit_and_send(clock_.now());
  if (options_.server.keys) {
    announce_key(options_.server.keys->own.public_key);
  } else {
    std::filesystem::remove(server_key_path(directory_.path()));  // of an earlier start
  }
  write_file_atomically(endpoint_path(directory_.path()), endpoint() + "\n");
  const wire::Status now = status();
  spdlog::info("run {} epoch {}: stage {}, {} of {} episodes, listening on {}", now.run_id(), now.epoch(),
               now.stage(), now.episodes_done(), now.episodes_wanted(), endpoint());
  publish(clock_.now());
}

Service::~Service() {
  if (options_.live) options_.live->stopping();
  std::error_code ignored;
  std::filesystem::remove(endpoint_path(directory_.path()), ignored);
  std::filesystem::remove(server_key_path(directory_.path()), ignored);
}

void Service::run(const std::atomic<bool>& stop) {
  std::optional<Timestamp> finished_at;
  last_round_ = clock_.now();
  while (!stop) {
    serve_once();
    if (core_.stage() != Stage::kFinished) finished_at.reset();  // an operator had it learn on
    if (!options_.exit_when_finished || core_.stage() != Stage::kFinished) continue;
    const Timestamp now = clock_.now();
    if (!finished_at) finished_at = now;
    const Duration since = now - *finished_at;
    if (since >= options_.stay && (core_.everyone_heard_finished() || since >= options_.linger)) break;
  }
  const Timestamp now = clock_.now();
  if (stop)
    spdlog::info("asked to stop; {} leases go on for workers that come back", core_.leases().num_live());
  history_->commit({}, core_.counters(), now);
  publish(now);
}

// All waiting messages share one transaction: one sync of the disk, however many workers speak at once.
void Service::serve_once() {
  std::optional<wire::Server::Message> message = server_.receive(kPoll);
  round_began_ = std::chrono::steady_clock::now();
  if (options_.live) options_.live->went_round(round_began_);
  const Timestamp now = clock_.now();
  note_pace(now);
  for (int count = 1; message; ++count) {
    ++figures_.messages;
    if (within_rate(*message, now)) {
      core_.receive(sender_of(*message), message->frame, now);
    }
    // Every message that is taken is handled; when the round is full the next one is not taken.
    if (count == kMaxMessagesPerRound) break;
    message = server_.receive(Duration::zero());
  }
  if (!message) core_.caught_up();  // all that waited has been taken
  core_.count_refused_connections(server_.take_refused_connections());
  core_.tick(now);
  commit_and_send(now);
  take_new_key(now);
  if (options_.live && std::chrono::steady_clock::now() >= next_snapshot_) publish(now);
}

void Service::announce_key(const wire::PublicKey& key) const {
  write_file_atomically(server_key_path(directory_.path()), key.text() + "\n");
}

void Service::take_new_key(Timestamp now) {
  if (now < next_key_look_) return;
  next_key_look_ = now + kKeyLookEvery;
  const std::optional<wire::PublicKey> key = server_.take_new_key();
  if (!key) return;
  announce_key(*key);
  spdlog::info("this aggregator has a new key, whose public part is {}; workers connect again with it",
               key->text());
}

void Service::note_pace(Timestamp now) {
  const Duration since = now - std::exchange(last_round_, now);
  if (since < options_.standstill) return;
  spdlog::warn("the aggregator stood still for {} ms; requests for leases that waited are to be asked again",
               since.count());
  core_.fell_behind();
}

// Messages over the rate are not even decoded, because decoding is what costs time.
bool Service::within_rate(const wire::Server::Message& message, Timestamp now) {
  const bool looks_on = message.from.role == wire::Role::kViewer;
  const auto excess = rate_limiter_.excess(looks_on ? "viewer " + message.from.name : message.peer, now);
  if (!excess) return true;
  ++figures_.over_rate;
  // To answer each costs more than to read it: who floods would be given what it wants.
  if (!excess->tell) return false;
  core_.note_over_rate(sender_of(message), options_.rate.per_second, now);
  wire::Envelope answer;
  answer.set_sender("aggregator");
  answer.mutable_wait()->set_retry_after_ms(excess->wait.count());
  server_.send(message.peer, wire::encode(std::move(answer)));
  return false;
}

void Service::commit_and_send(Timestamp now) {
  const Outputs outputs = core_.take();
  // Before the history, which then never says that a question is answered whose reply is lost.
  if (!outputs.answers.empty() && options_.on_answers) options_.on_answers(outputs.answers);
  if (!outputs.records.empty() || now - last_commit_ >= kCommitAtLeastEvery) {
    const auto start = std::chrono::steady_clock::now();
    history_->commit(outputs.records, core_.counters(), now);
    figures_.commit_seconds.observe(seconds_since(start));
    last_commit_ = now;
  }
  for (const Reply& reply : outputs.replies) server_.send(reply.peer, wire::encode(reply.envelope));
  note(outputs, now);
  if (!options_.on_policy_update) return;
  for (const Record& record : outputs.records) {
    if (const auto* reached = std::get_if<VersionReached>(&record)) {
      options_.on_policy_update({reached->version, reached->at, reached->described, reached->recommended},
                                core_.status(now));
    }
  }
}

void Service::note(const Outputs& outputs, Timestamp now) {
  figures_.records += std::ssize(outputs.records);
  if (!outputs.replies.empty()) {
    figures_.replies += std::ssize(outputs.replies);
    figures_.reply_seconds.observe(seconds_since(round_began_), std::ssize(outputs.replies));
  }
  for (const Record& record : outputs.records) {
    const auto* told = std::get_if<EpisodeTold>(&record);
    if (told == nullptr) continue;
    figures_.episode_seconds.observe(told->seconds);
    figures_.last_progress = now;
  }
}

void Service::publish(Timestamp now) {
  if (!options_.live) return;
  const auto start = std::chrono::steady_clock::now();
  const auto wall = std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
  options_.live->publish(
      std::make_shared<const Snapshot>(Snapshot{core_.status(now), figures_, now, wall - clock_.now()}));
  const auto end = std::chrono::steady_clock::now();
  next_snapshot_ =
      end + std::max<std::chrono::steady_clock::duration>(kSnapshotEvery, kSnapshotShare * (end - start));
}

}  // namespace allot::aggregator
