// The aggregator and the workers of one run as child processes on this machine: a cluster on
// the loopback address.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/child_process.h"
#include "base/device.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// One worker process.
struct WorkerPlace {
  std::string name;    // unique in the run
  std::string device;  // as Device::name() gives it
  friend bool operator==(const WorkerPlace&, const WorkerPlace&) = default;
};

// `workers_per_device` workers on each device, named "worker-1", "worker-2" and so on in the
// order of `devices`.
std::vector<WorkerPlace> place_workers(std::span<const Device> devices, int32_t workers_per_device);

struct ClusterOptions {
  std::filesystem::path run;  // run directory; holds spec.json
  std::vector<WorkerPlace> workers;
  int32_t threads = 0;        // of each worker; 0 = the cores divided among them
  int32_t max_sequences = 0;  // decoded together by a worker; 0 = the worker's default
  std::string log_level = "info";
  std::string grader = {};                           // of the workers (WorkerOptions)
  std::vector<std::string> aggregator_options = {};  // further words of the aggregator's command line
};

class LocalCluster {
 public:
  // After this many starts of one process without progress in between, the run is abandoned.
  static constexpr int kMaxStarts = 5;

  // `say` gets a line whenever a process is started or has ended. Starts the aggregator, waits until it
  // listens on a port that the system chose, then starts the workers. Throws Error with the last line of its
  // log when it does not come up.
  LocalCluster(ClusterOptions options, std::function<void(const std::string&)> say);

  // Where the aggregator listens, and its current process.
  const std::string& endpoint() const { return endpoint_; }
  pid_t aggregator_pid() const { return aggregator_.process->pid(); }

  // The aggregator's answer, or nothing when it does not answer now.
  std::optional<wire::Status> status();
  // Restarts processes that have ended; call it often. `progress` is any count that grows with the run's
  // work. Throws, with the last line of the process's log: Mismatch when it ended for a mismatch, which no
  // restart can cure, and Error when it ended kMaxStarts times at the same progress.
  void keep_alive(int64_t progress);
  // Ends the workers as stop() does and forgets them; the aggregator goes on.
  void stop_workers(int signal);
  // Sends `signal` to the workers, which give their leases back: SIGTERM when this machine is being taken
  // away, so that the leases count as preempted, else SIGINT. Then the aggregator commits. Processes that do
  // not end in time are killed.
  void stop(int signal);

 private:
  struct Member {
    std::string name;         // "aggregator", "worker-1": also of its log file
    std::string device = {};  // of a worker
    std::optional<ChildProcess> process = {};
    int starts = 0;  // since the last progress
    bool ended_well = false;
  };

  void start(Member& member);
  void start_aggregator();
  std::vector<std::string> command_of(const Member& member) const;
  // Throws a Failure that says how the process ended, with the last line of its log.
  template <class Failure>
  [[noreturn]] void give_up(const Member& member, const std::string& how);

  ClusterOptions options_;
  std::function<void(const std::string&)> say_;
  std::string endpoint_;  // empty until the aggregator has announced it
  Member aggregator_{.name = "aggregator"};
  std::vector<Member> workers_;
  int64_t progress_ = -1;
};

}  // namespace allot::app
