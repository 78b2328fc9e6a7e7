// The command `worker` without its model: options, finding the aggregator and the run, saying hello.
// The caller gives the runner that scores the schedules, so that the real worker and simulations differ
// only in that.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/run/key_options.h"
#include "base/memory_use.h"
#include "wire/messages_fwd.h"
#include "worker/episode_runner.h"

namespace allot::app {

struct WorkerOptions {
  std::filesystem::path run;  // run directory whose file `endpoint` names the aggregator
  std::string connect;        // or its address
  KeyOptions keys;
  std::filesystem::path model;  // empty: where the run's spec says, as for the adapter and the data files
  std::optional<std::filesystem::path> adapter;
  std::vector<std::string> train;  // files, for the tasks of an evaluation that have these bytes
  std::filesystem::path heldout;
  std::string name;  // empty: host name and process number
  std::string device = "cpu";
  int32_t threads = 0;          // 0 = all cores
  int32_t max_sequences = 256;  // replies decoded together
  std::string grader;           // command that grades replies, for tasks that ask for one
  bool exit_when_finished = false;
  int32_t drained_exit_code = 0;  // exit status after a signal asked to stop
};

// Makes the runner of a run. The paths in `spec` are those that this worker uses.
using RunnerOf = std::function<std::unique_ptr<worker::EpisodeRunner>(const wire::RunSpec& spec,
                                                                      const WorkerOptions& options)>;

// Where a worker runs, as a status shows it.
struct WorkerDevice {
  std::string text;  // "cuda:0 NVIDIA H200, 139 GiB"
  std::function<MemoryUse()> memory_use = process_memory;
};
using DeviceOf = std::function<WorkerDevice(const WorkerOptions& options)>;

// Works for a run until it is finished (with --exit-when-finished) or a signal asks to stop, then hands its
// leases back with the answers it has; SIGTERM means that the machine is being taken away, SIGINT that a
// person stops it. Returns the exit status: 0, or options.drained_exit_code after a signal. Throws UsageError
// for wrong options, Mismatch when the aggregator refuses the model or the data (with both values), and the
// errors of the readers. docs/wire-protocol.md lists the exit codes.
int run_worker_command(std::span<const std::string> arguments, const DeviceOf& device_of,
                       const RunnerOf& runner_of);

}  // namespace allot::app
