// A worker's side of the conversation with the aggregator: gets leases, keeps an EpisodeRunner busy with
// them, delivers the results. One thread does everything; the socket is served between two steps of the
// runner. It survives an aggregator that is killed and started again, and gives its leases back when it is
// asked to stop, with the answers it has. docs/wire-protocol.md lists the failures and what happens in each.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/memory_use.h"
#include "wire/keys.h"
#include "wire/messages_fwd.h"
#include "worker/episode_runner.h"

namespace allot::worker {

// Where an aggregator listens.
struct AggregatorPlace {
  std::string endpoint;                                 // "tcp://ADDRESS:PORT"
  std::optional<wire::ClientKeys> keys = std::nullopt;  // for an aggregator that asks for them
  friend bool operator==(const AggregatorPlace&, const AggregatorPlace&) = default;
};

struct ConnectionOptions {
  std::string endpoint;  // "tcp://ADDRESS:PORT" of the aggregator, which need not run yet
  std::optional<wire::ClientKeys> keys = std::nullopt;  // for an aggregator that asks for them
  // Called before reconnecting: returns the aggregator's new place when it is no longer at `known`, or when
  // either side's key is another. What it throws is logged, and the worker keeps the old place. Not set: an
  // aggregator never moves.
  std::function<std::optional<AggregatorPlace>(const AggregatorPlace& known)> moved = {};
  bool exit_when_finished = false;
  Duration first_retry{250};  // repeat an unanswered hello after this long, then after twice as long, …
  Duration longest_retry{10'000};  // … up to this
  Duration patience{10'000};  // reconnect when a message goes unanswered this long, or as long as a lease
  Duration resend{2'000};     // send an unanswered result or request again after this long
  // How long a stopping worker waits for the answers to its last messages. Meanwhile it reconnects after a
  // third of this time and sends again after a sixth, where `patience` and `resend` are longer.
  Duration drain{3'000};
  // A result says what the worker did since the last that said so, when that is as long ago as this.
  Duration load_every{10'000};
  // Says with its load how much memory is in use. Not set: it says nothing of it.
  std::function<MemoryUse()> memory_use = {};
  // Called when the worker is stopped: true when its machine is being taken away, false when a person stopped
  // it. Not set: a person.
  std::function<bool()> preempted = {};
};

// Builds the runner for the run that the aggregator serves; called once, after the first Welcome.
using RunnerFactory = std::function<std::unique_ptr<EpisodeRunner>(const wire::RunSpec& spec)>;

class Connection {
 public:
  // Throws InvalidArgument for an address that is not tcp://ADDRESS:PORT.
  explicit Connection(ConnectionOptions options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // Works until `stop` is set (then gives its leases back), or until the run is finished with
  // exit_when_finished. `hello.worker` must be unique among live workers; capacity and client are filled in
  // here. Returns the exit status 0. Throws Mismatch when the aggregator refuses this worker or serves
  // another run after a restart, what `factory` throws, and, after reporting its episodes as failed, what the
  // runner's advance() throws: a runner that threw is not trusted again. Where start() throws, that one
  // episode is reported as failed.
  int run(const wire::Hello& hello, const RunnerFactory& factory, const std::atomic<bool>& stop);

 private:
  class Session;
  ConnectionOptions options_;
};

}  // namespace allot::worker
