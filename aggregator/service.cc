#include "aggregator/service.h"

#include <algorithm>
#include <optional>
#include <system_error>

#include "aggregator/run_spec.h"
#include "base/file.h"
#include "base/log.h"
#include "wire/codec.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

// The stop flag and lease deadlines are looked at this often when no message comes.
constexpr Duration kPoll = 100ms;
// One transaction holds at most so many messages, so that the first of them does not wait long for its
// answer. The others stay where they are: in the queues of their connections, which ZeroMQ stops reading when
// they are full, so that nothing is dropped.
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
      core_(directory_.spec(), policy::make_policy(policy_config(directory_.spec())), *history_,
            clock_.now()) {
  commit_and_send(clock_.now());
  const auto key_file = server_key_path(directory_.path());
  if (options_.server.keys) {
    write_file_atomically(key_file, options_.server.keys->own.public_key.text() + "\n");
  } else {
    std::filesystem::remove(key_file);  // of an earlier start
  }
  write_file_atomically(endpoint_path(directory_.path()), endpoint() + "\n");
  const wire::Status now = status();
  spdlog::info("run {} epoch {}: stage {}, {} of {} episodes, listening on {}", now.run_id(), now.epoch(),
               now.stage(), now.episodes_done(), now.episodes_wanted(), endpoint());
}

Service::~Service() {
  std::error_code ignored;
  std::filesystem::remove(endpoint_path(directory_.path()), ignored);
  std::filesystem::remove(server_key_path(directory_.path()), ignored);
}

void Service::run(const std::atomic<bool>& stop) {
  std::optional<Timestamp> finished_at;
  while (!stop) {
    serve_once();
    if (!options_.exit_when_finished || core_.stage() != Stage::kFinished) continue;
    const Timestamp now = clock_.now();
    if (!finished_at) finished_at = now;
    if (core_.everyone_heard_finished() || now - *finished_at >= options_.linger) break;
  }
  const Timestamp now = clock_.now();
  history_->commit({}, core_.counters(), now);
}

// All messages that are there share one transaction: one sync of the disk, however many workers speak at
// once.
void Service::serve_once() {
  std::optional<wire::Server::Message> message = server_.receive(kPoll);
  const Timestamp now = clock_.now();
  for (int count = 1; message; ++count) {
    if (within_rate(*message, now)) {
      core_.receive(message->peer, message->frame, now, rights_of(message->from.role), message->from.name);
    }
    // A message that is taken is handled: the next one stays where it is when the round is full.
    if (count == kMaxMessagesPerRound) break;
    message = server_.receive(Duration::zero());
  }
  core_.tick(now);
  commit_and_send(now);
}

// Not even read: reading is what costs.
bool Service::within_rate(const wire::Server::Message& message, Timestamp now) {
  const std::optional<Duration> excess = rate_limiter_.excess(message.peer, now);
  if (!excess) return true;
  wire::Envelope answer;
  answer.set_sender("aggregator");
  answer.mutable_wait()->set_retry_after_ms(excess->count());
  server_.send(message.peer, wire::encode(std::move(answer)));
  return false;
}

void Service::commit_and_send(Timestamp now) {
  const Outputs outputs = core_.take();
  if (!outputs.records.empty() || now - last_commit_ >= kCommitAtLeastEvery) {
    history_->commit(outputs.records, core_.counters(), now);
    last_commit_ = now;
  }
  for (const Reply& reply : outputs.replies) server_.send(reply.peer, wire::encode(reply.envelope));
  if (!options_.on_policy_update) return;
  for (const Record& record : outputs.records) {
    if (const auto* reached = std::get_if<VersionReached>(&record)) {
      options_.on_policy_update(
          {reached->version, reached->at, reached->shares, reached->recommended, reached->entropy},
          core_.status(now));
    }
  }
}

}  // namespace allot::aggregator
