// One question to a running aggregator: how far is it?
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "wire/keys.h"
#include "wire/messages_fwd.h"

namespace allot::wire {

// Throws InvalidArgument for a bad address, NetworkError when no answer came within `timeout` or the
// aggregator refused, `keys` or the question.
[[nodiscard]] Status query_status(const std::string& endpoint, Duration timeout,
                                  const std::optional<ClientKeys>& keys = std::nullopt);

}  // namespace allot::wire
