// The run and its aggregator as Prometheus reads them (text format 0.0.4). docs/monitoring.md lists every
// metric; none carries a label whose values a peer chooses, so their number is bounded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "aggregator/live_state.h"

namespace allot::aggregator {

// Workers of a status: each holds leases, waits for one, or was silent for longer than a lease.
struct WorkerCounts {
  int64_t busy = 0;
  int64_t idle = 0;
  int64_t silent = 0;
  int64_t all() const { return busy + idle + silent; }
};
WorkerCounts count_workers(const wire::Status& status);
bool is_silent(const wire::WorkerStatus& worker, const wire::Status& status);

// What the system says about this process; read anew with every scrape.
struct ProcessFigures {
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  double cpu_seconds = 0;
  double start_time = 0;  // seconds since the Unix epoch
  int64_t open_files = 0;
  int64_t max_files = 0;
};
// Of this process, from /proc. Fields that cannot be read stay 0.
ProcessFigures read_process_figures();

// The disk under a run directory.
struct StorageFigures {
  int64_t history_bytes = 0;  // history.sqlite with its write-ahead log
  int64_t available_bytes = 0;
  int64_t disk_bytes = 0;
};
// Fields that cannot be read stay 0.
StorageFigures read_storage_figures(const std::filesystem::path& run_directory);

// The whole answer to a scrape. Without a snapshot (the history is still being read) only the process, its
// build and allot_ready are there.
std::string prometheus_text(const Snapshot* snapshot, bool ready, const std::string& build,
                            const ProcessFigures& process, const StorageFigures& storage);

}  // namespace allot::aggregator
