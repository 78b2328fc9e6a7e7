// One question to a running aggregator: how far is it?
#pragma once

#include <string>

#include "base/clock.h"
#include "wire/messages.pb.h"

namespace allot::wire {

// Throws InvalidArgument for a bad address, NetworkError when no answer came within `timeout` or the
// aggregator refused.
[[nodiscard]] Status query_status(const std::string& endpoint, Duration timeout);

}  // namespace allot::wire
