// Many workers' connections from one process: what a load test needs, where a socket, a context and a thread
// for each worker would measure themselves.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "wire/keys.h"

namespace allot::bench {

class Crowd {
 public:
  struct Message {
    int member;
    std::string frame;
  };

  // `members` TCP connections to `endpoint`, an address of this machine's loopback network, made in the
  // background from loopback addresses of their own; the server takes each for a peer of its own. Needs one
  // file descriptor a member. All have the same `keys`. Throws InvalidArgument for another address.
  Crowd(const std::string& endpoint, int members, const std::optional<wire::ClientKeys>& keys = std::nullopt);
  ~Crowd();
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

  // Ends the member's connection and makes another: to the server a new peer. What was under way is lost.
  void connect_anew(int member);

  // Throws NetworkError when the member's queue is full or its connection is refused: a load test loses
  // nothing in silence.
  void send(int member, std::string_view frame);
  // The next frame to any member, or nothing after `timeout` or when a signal interrupts the wait.
  [[nodiscard]] std::optional<Message> receive(Duration timeout);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::bench
