// What a socket monitor of ZeroMQ says happened (zmq_socket_monitor).
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>

namespace allot::wire {

struct SocketEvent {
  uint16_t number = 0;  // ZMQ_EVENT_…
  uint32_t value = 0;   // depends on the number: an errno, a status of ZAP, a descriptor
};

// Of the first of an event's two frames, the other being an address; nothing where that is too short.
inline std::optional<SocketEvent> socket_event(std::string_view frame) {
  SocketEvent event;
  if (frame.size() < sizeof event.number + sizeof event.value) return std::nullopt;
  std::memcpy(&event.number, frame.data(), sizeof event.number);
  std::memcpy(&event.value, frame.data() + sizeof event.number, sizeof event.value);
  return event;
}

}  // namespace allot::wire
