// A run's status as people and machines read it, live or from its history.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "aggregator/run_data.h"
#include "wire/messages.pb.h"

namespace allot::app {

// The status that the history of a run gives while no aggregator serves it: no workers, no rate, no ETA.
wire::Status status_of(const aggregator::RunData& run);

// Every field of the status under its name in messages.proto, numbers as numbers; "eta_s" is null while
// unknown.
nlohmann::json to_json(const wire::Status& status);

// Several lines for a terminal.
std::string format_status(const wire::Status& status);

}  // namespace allot::app
