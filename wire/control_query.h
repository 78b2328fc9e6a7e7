// One command to a running aggregator: pause, resume, stop, another number of episodes.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "wire/keys.h"
#include "wire/messages_fwd.h"

namespace allot::wire {

// Sends the command and returns the aggregator's answer; `done` is set only once the command is in the
// history. Throws InvalidArgument for a bad address, NetworkError when no answer came within `timeout` (the
// command may have been carried out nevertheless: ask for the status) or the aggregator is of a release that
// cannot be controlled.
[[nodiscard]] ControlReply send_control(const std::string& endpoint, const Control& control, Duration timeout,
                                        const std::optional<ClientKeys>& keys = std::nullopt);

}  // namespace allot::wire
