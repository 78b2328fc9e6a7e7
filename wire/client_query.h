// A question to an aggregator and its answer, on a connection of their own.
#pragma once

#include <optional>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "wire/keys.h"
#include "wire/messages.pb.h"

namespace allot::wire {

// Nothing came within the time.
class NoAnswer : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// The aggregator is there and does not let this client in: it asks for a key, or does not know the one shown.
class HandshakeRefused : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// Sends `question` and returns the first answer whose body is `expected`. Throws InvalidArgument for a bad
// address, NetworkError when none came within `timeout`, when it cannot be read, or when the aggregator
// refused the question or `keys`.
[[nodiscard]] Envelope ask_aggregator(const std::string& endpoint, const std::optional<ClientKeys>& keys,
                                      Envelope question, Envelope::BodyCase expected, Duration timeout);

}  // namespace allot::wire
