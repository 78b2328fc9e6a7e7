// Metrics of the run and its aggregator for Prometheus (text format 0.0.4). docs/monitoring.md lists every
// metric. No metric has a label whose values a peer chooses, so the number of series is bounded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "aggregator/live_state.h"

namespace allot::aggregator {

// The workers of a status, counted by whether they hold leases, wait for one, or were silent for longer than
// a lease time.
struct WorkerCounts {
  int64_t busy = 0;
  int64_t idle = 0;
  int64_t silent = 0;
  int64_t all() const { return busy + idle + silent; }
};
WorkerCounts count_workers(const wire::Status& status);
bool is_silent(const wire::WorkerStatus& worker, const wire::Status& status);

// What the workers that were heard of within a lease time last told of themselves; the shares are means over
// those workers.
struct WorkerLoads {
  int64_t workers = 0;                  // that told something; 0 leaves the rest 0
  double prompt_tokens_per_second = 0;  // of all together
  double output_tokens_per_second = 0;
  double busy = 0;            // share of the time with something to run
  double batch_use = 0;       // share of the batch in use while busy
  double fullest_memory = 0;  // not the mean, but the largest share of its memory that one of them uses
};
WorkerLoads sum_loads(const wire::Status& status);

// What the system reports about this process; read again for every scrape.
struct ProcessFigures {
  int64_t resident_bytes = 0;
  int64_t virtual_bytes = 0;
  double cpu_seconds = 0;
  double start_time = 0;  // seconds since the Unix epoch
  int64_t open_files = 0;
  int64_t max_files = 0;
};
// The figures of this process, from /proc. Fields that cannot be read stay 0.
ProcessFigures read_process_figures();

// The disk under a run directory.
struct StorageFigures {
  int64_t history_bytes = 0;  // history.sqlite with its write-ahead log
  int64_t available_bytes = 0;
  int64_t disk_bytes = 0;
};
// Fields that cannot be read stay 0.
StorageFigures read_storage_figures(const std::filesystem::path& run_directory);

// The whole answer to a scrape. Without a snapshot (while the history is still being read) it holds only the
// process, its build and allot_ready.
std::string prometheus_text(const Snapshot* snapshot, bool ready, const std::string& build,
                            const ProcessFigures& process, const StorageFigures& storage);

}  // namespace allot::aggregator
