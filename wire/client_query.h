// A question to an aggregator and its answer, on a connection of their own.
#pragma once

#include <string>

#include "base/clock.h"
#include "wire/messages.pb.h"

namespace allot::wire {

// Sends `question` and returns the first answer whose body is `expected`. Throws InvalidArgument for a bad
// address, NetworkError when none came within `timeout`, when it cannot be read, or when the aggregator
// refused.
[[nodiscard]] Envelope ask_aggregator(const std::string& endpoint, Envelope question,
                                      Envelope::BodyCase expected, Duration timeout);

}  // namespace allot::wire
