// The processes of a run: one aggregator and its workers, with a log file each.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/aggregator/child.h"
#include "tests/chaos/chaos.h"
#include "wire/keys.h"
#include "wire/messages.pb.h"

namespace allot::chaos {

struct WorkerProcess {
  enum class State { kRunning, kPaused, kLeaving, kGone };

  int host = 0;
  bool by_questions = false;  // it can give answers back before an episode is complete
  std::string name;
  int generation = 0;  // new names so far
  State state = State::kGone;
  std::chrono::steady_clock::time_point until;  // kPaused: is resumed then; kGone: is started again then
  std::chrono::steady_clock::time_point since;  // kLeaving: was asked then
  std::chrono::steady_clock::time_point started;
  std::unique_ptr<aggregator::Child> process;
};

class Fleet {
 public:
  // Makes the run directory with a spec for simulated workers. `network` is null for loopback, and outlives
  // the fleet; the aggregator is on its host 0.
  Fleet(const ChaosOptions& options, Network* network);
  ~Fleet();
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // Does not wait until it answers, except for the first start, which finds the port.
  void start_aggregator();
  void kill_aggregator();
  // SIGTERM; its exit status, 128 + signal where one ended it.
  int stop_aggregator();
  // Nothing when it does not answer at this moment. Throws std::runtime_error when it has ended by itself.
  std::optional<wire::Status> status();

  // With ChaosOptions::hostile; it goes on until the run is finished.
  void start_hostile_worker();
  int stop_hostile_worker();  // its exit status

  std::vector<WorkerProcess>& workers() { return workers_; }
  void start(WorkerProcess* worker);
  static void signal(const WorkerProcess& worker, int number);

  std::filesystem::path run() const { return options_.directory / "run"; }

 private:
  std::unique_ptr<aggregator::Child> spawn(int host, std::vector<std::string> command,
                                           const std::string& log);
  void on_host(int host, const std::function<void()>& work);
  void make_keys();
  std::filesystem::path key_file(const std::string& holder) const;

  ChaosOptions options_;
  Network* network_;
  std::string endpoint_;
  int refused_starts_ = 0;  // in a row
  std::unique_ptr<aggregator::Child> aggregator_;
  std::unique_ptr<aggregator::Child> hostile_;
  std::vector<WorkerProcess> workers_;
  std::optional<wire::ClientKeys> viewer_;  // where workers have keys
};

}  // namespace allot::chaos
