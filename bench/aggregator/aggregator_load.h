// Simulated workers for `allot bench aggregator`: they speak the whole wire protocol over real sockets and
// answer at once, so what is measured is the aggregator and not the work.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/aggregator/crowd.h"
#include "wire/keys.h"
#include "wire/messages.pb.h"

namespace allot::bench {

// A run that needs no model: 28 layers, N = 224, 16 questions an episode, the learner of that name. Throws
// InvalidArgument for a name that no learner has.
wire::RunSpec load_spec(int64_t episodes, const std::string& policy);

// What was seen of one phase.
struct LoadFigures {
  double seconds = 0;
  int64_t introduced = 0;  // Hello answered with Welcome
  int64_t leases = 0;      // granted
  int64_t results = 0;     // acked
  int64_t waits = 0;       // requests answered with Wait
  int64_t heartbeats = 0;
  std::vector<double> reply_ms;  // of lease requests and results, in the order of answers; of the
                                 // introduction in that phase
  double per_second() const { return static_cast<double>(leases + results) / seconds; }
};

class AggregatorLoad {
 public:
  using Clock = std::chrono::steady_clock;

  // Connects `workers` workers, all with the same `keys`, to the aggregator at `endpoint`, which serves
  // `spec`.
  AggregatorLoad(const std::string& endpoint, const wire::RunSpec& spec, int workers,
                 const std::optional<wire::ClientKeys>& keys = std::nullopt);

  // The phases, in this order; each throws NetworkError when an answer does not come within a minute or the
  // aggregator refuses a message, saying which.

  // All workers say hello, `window` of them at a time.
  LoadFigures introduce(int window);
  // `window` messages are under way all the time, spread over all workers, until `results` results are acked.
  LoadFigures run_full(int64_t results, int window);
  // Requests and results are sent at `rate` a second for `duration`, whatever the answers do; the reply time
  // counts from the moment a message was due, so a stall shows in all that it delays. Workers that are silent
  // for the interval of the run send heartbeats beside that.
  LoadFigures run_offered(double rate, std::chrono::seconds duration);

 private:
  enum class Doing : uint8_t { kNew, kIdle, kHolding };
  struct Worker {
    Doing doing = Doing::kNew;
    bool awaits_answer = false;
    bool beside = false;    // what it awaits the answer of is a heartbeat, or the hello of a new connection
    int messages = 0;       // sent on this connection
    Clock::time_point due;  // when the message that it awaits the answer of was due
    Clock::time_point spoke;
    uint64_t number = 0;
    int64_t lease = 0;
    int64_t episode = 0;
    std::vector<uint32_t> questions;
  };

  void speak(int worker, Clock::time_point due);  // hello, a request or a result, whatever comes next
  wire::Envelope hello_of(int worker) const;
  void connect_anew(int worker);
  void send(int worker, wire::Envelope message, Clock::time_point due);
  // Takes one answer, if one comes in time.
  void listen(Duration timeout, LoadFigures* figures);
  void take_answer(int worker, const wire::Envelope& answer, LoadFigures* figures);
  void send_heartbeats(Clock::time_point now);
  void wake(Clock::time_point now);
  std::optional<int> take_ready();
  void check_patience(Clock::time_point now) const;

  wire::RunSpec spec_;
  std::vector<Worker> workers_;
  Crowd crowd_;
  std::deque<int> ready_;                                  // may speak, longest first
  std::deque<std::pair<Clock::time_point, int>> waiting_;  // were told to wait, until when
  int64_t under_way_ = 0;
  Clock::time_point last_answer_;
  Clock::duration heartbeat_interval_{};
  Clock::time_point next_heartbeats_;
};

}  // namespace allot::bench
