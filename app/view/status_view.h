// Shows a run's status to people and machines, live or from its history.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "aggregator/run_data.h"
#include "base/json.h"

namespace allot::app {

// The status of a run from its history, while no aggregator serves it: without workers, rate and ETA.
wire::Status status_of(const aggregator::RunData& run);

// What the status message itself does not include.
struct StatusContext {
  bool running = true;                 // an aggregator serves the run
  std::string aggregator = "answers";  // or why it gave no figures: "silent", "needs key", "none"
  std::string why_not_ready = {};      // empty while workers are served
  int64_t at_ms = 0;                   // when the status was taken, milliseconds since the Unix epoch
  size_t most_workers = SIZE_MAX;      // list at most this many; silent ones come first, then by name
};

// The object of /api/run and of `allot status --json`, which docs/monitoring.md describes: every field of the
// status under its name in messages.proto, numbers as numbers, "eta_s" null while unknown, and what follows
// from them (intervals of scores, numbers of workers, how rewards of the run's kind read).
nlohmann::json to_json(const wire::Status& status, const StatusContext& context);

// A preflight as it stands in that object: "cost", "run_worker_seconds" and "run_worker_seconds_least" null
// where they are not known.
nlohmann::json preflight_json(const wire::Preflight& preflight);

// Text of such an object on one line. Bytes that are not UTF-8 become U+FFFD.
std::string json_line(const nlohmann::json& json);

// The status as several lines for a terminal.
std::string format_status(const wire::Status& status);

// The single numbers with which the learner describes itself: ", entropy 3.332"; empty when there are none.
std::string policy_numbers(const wire::Status& status);

}  // namespace allot::app
