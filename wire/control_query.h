// One command to a running aggregator: pause, resume, stop, another number of episodes.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "wire/keys.h"
#include "wire/messages_fwd.h"

namespace allot::wire {

// What the aggregator says to it; `done` only once it is in the history. Throws InvalidArgument for a bad
// address, NetworkError when no answer came within `timeout` (the command may have been followed all the
// same: ask for the status) or the aggregator is of a release that cannot be controlled.
[[nodiscard]] ControlReply send_control(const std::string& endpoint, const Control& control, Duration timeout,
                                        const std::optional<ClientKeys>& keys = std::nullopt);

}  // namespace allot::wire
