// The aggregator as a process runs it: a core, a history in the run directory and one ZeroMQ socket.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregator/core.h"
#include "aggregator/history.h"
#include "aggregator/live_state.h"
#include "aggregator/rate_limiter.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/clock.h"
#include "wire/endpoint.h"

namespace allot::aggregator {

struct ServiceOptions {
  std::filesystem::path run_directory;
  wire::ServerOptions server;
  RateLimits rate;    // of each connection; of all connections of a viewer's key together
  std::string build;  // tool version, recorded in the history
  // When a round of the loop begins this long after the one before, what waits in the socket may have been
  // repeated, or its sender may be gone: a worker repeats what is not answered after 2 s
  // (worker::ConnectionOptions::resend).
  Duration standstill{1'000};
  bool exit_when_finished = false;
  Duration linger{5'000};  // how long to keep serving after the run ends, so workers learn that it is over
  // Of a run that evaluates: what it asks, and what keeps the answers. Called on the service's thread; when
  // it returns they must survive the death of the machine. What it throws ends the service, before any ack.
  EvaluationWork work = {};
  std::function<void(std::span<const GivenAnswer>)> on_answers = {};
  std::vector<wire::Control> wishes;  // to follow before workers are served
  Duration stay{0};                   // keep serving at least this long after the run ends
  // Called on the service's thread with each new version of the policy (0 at the first start) once it is
  // committed. The status is that of the moment of the call and may already be some versions ahead.
  std::function<void(const VersionRow&, const wire::Status&)> on_policy_update;
  // Gets the state of the run about once a second, and a sign of life at every round of the loop.
  // May be null.
  std::shared_ptr<LiveState> live;
};

class Service {
 public:
  // Takes the run directory, continues what is in it, and listens: when the constructor returns, workers can
  // connect. The file run_directory/endpoint then names the address, until a clean exit. Throws
  // InvalidArgument (spec, address), NetworkError (port in use), Mismatch (another spec, a wish that the run
  // refuses, a history of a newer release), CorruptFile,
  // Unsupported, StorageError (also when another aggregator holds the directory); a directory that was
  // refused is left unchanged.
  Service(const wire::RunSpec& spec, ServiceOptions options);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  std::string endpoint() const { return server_.endpoint(); }
  const wire::RunSpec& spec() const { return directory_.spec(); }
  // Questions of an evaluation that were given up in this start.
  int64_t given_up_questions() const {
    return core_.evaluation() == nullptr ? 0 : core_.evaluation()->given_up();
  }
  wire::Status status() const { return core_.status(clock_.now()); }

  // Serves until `stop` is set, or with exit_when_finished until the run is finished and the workers know it.
  // Everything that was answered is in the history when it returns or throws; a later start continues from
  // there. Throws StorageError, and Error when the run cannot go on.
  void run(const std::atomic<bool>& stop);

 private:
  void serve_once();
  // Notices when the loop stood still for so long that workers may have repeated what they asked.
  void note_pace(Timestamp now);
  // False for a sender over its rate limit, which is told once when to continue.
  bool within_rate(const wire::Server::Message& message, Timestamp now);
  void commit_and_send(Timestamp now);
  void note(const Outputs& outputs, Timestamp now);
  void publish(Timestamp now);
  void announce_key(const wire::PublicKey& key) const;
  void take_new_key(Timestamp now);  // once a second

  ServiceOptions options_;
  SystemClock clock_;
  wire::Server server_;
  RateLimiter rate_limiter_;  // of connections; those of a viewer's key together
  RunDirectory directory_;
  std::unique_ptr<History> history_;
  Core core_;
  Timestamp last_commit_;
  Timestamp next_key_look_;
  Timestamp last_round_;  // when the last round began to take messages
  ServiceFigures figures_;
  std::chrono::steady_clock::time_point round_began_;
  std::chrono::steady_clock::time_point next_snapshot_;
};

}  // namespace allot::aggregator
