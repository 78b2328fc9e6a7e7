// The two ends of the one TCP port: a ROUTER that many peers talk to and a DEALER that talks to it. They
// carry frames and know nothing of what is in them. Not thread-safe: one thread owns an endpoint.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace allot::wire {

struct ServerOptions {
  // "tcp://ADDRESS:PORT"; port "*" takes a free one.
  std::string bind = "tcp://127.0.0.1:*";
  // Traffic is neither encrypted nor authenticated, so an address that other machines reach is refused unless
  // this is set.
  bool insecure = false;
};

class Server {
 public:
  struct Message {
    std::string peer;  // routing id of the connection; answers go back to it
    std::string frame;
  };

  // Throws InvalidArgument for an address that is not tcp://ADDRESS:PORT or that is not loopback without
  // `insecure`, NetworkError when it cannot be bound (a port in use), naming it and what to do.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Where it listens, with the real port.
  std::string endpoint() const;
  // The next frame, or nothing after `timeout` (zero: only what is already there) or when a signal interrupts
  // the wait.
  [[nodiscard]] std::optional<Message> receive(Duration timeout);
  // Queues a frame. A peer that is gone, or does not read what it is sent, loses it.
  void send(const std::string& peer, std::string_view frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Client {
 public:
  // Connects in the background: a server that is not there yet is no error. Throws InvalidArgument for an
  // address that is not tcp://ADDRESS:PORT.
  explicit Client(const std::string& endpoint);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] std::optional<std::string> receive(Duration timeout);
  void send(std::string_view frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::wire
