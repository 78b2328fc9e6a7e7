// A run of real processes, the aggregator and simulated workers, to which things happen: processes are
// killed, drained, paused and started again, hosts are cut off, packets are lost, late and out of order. What
// happens is drawn under a seed; when exactly it meets the run depends on the machine, as in life.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/chaos/audit.h"
#include "tests/chaos/network.h"

namespace allot::chaos {

struct ChaosOptions {
  std::filesystem::path directory;  // of the run and all logs; it does not exist yet
  std::filesystem::path allot;      // the executables
  std::filesystem::path worker;
  uint64_t seed = 1;
  int64_t episodes = 20'000;
  std::string policy = "pairs";
  int workers = 12;
  int capacity = 4;      // episodes a worker holds
  Duration episode{25};  // that one takes a worker
  Duration lease{2'000};
  int aggregator_kills = 20;
  // A worker is killed, drained or paused this often, and started again under its name or a new one.
  double worker_faults_per_second = 4;
  bool rename_workers = true;  // false: only kills, and under the same name
  Duration outage{0};          // once, in the middle, the aggregator stays away for this time
  int hosts = 0;               // of workers; 0: everything on this host's loopback
  // Workers have keys, and the holder of another worker's key works against the run (hostile_worker.h).
  bool hostile = false;
};

struct ChaosReport {
  std::vector<std::string> faults;  // empty: all that is promised held
  int aggregator_kills = 0;
  int kills_during_start = 0;  // of these, within 0.3 s of a start
  int worker_kills = 0;
  int worker_drains = 0;
  int worker_pauses = 0;
  int long_pauses = 0;  // of these, for longer than a lease
  int freezes = 0;      // all workers paused at once, for longer than a lease
  Duration longest_drain{0};
  int partitions = 0;
  PacketCounts packets;
  double seconds = 0;
  Audit audit;
};

// Runs until the run is finished and audits it. Throws std::runtime_error when the run cannot be started, or
// does not get on for a minute although nothing is done to it any more.
ChaosReport run_chaos(const ChaosOptions& options);

// For people and for docs.
std::string describe(const ChaosOptions& options, const ChaosReport& report);

}  // namespace allot::chaos
