// The two ends of the one TCP port: a ROUTER that many peers talk to and a DEALER that talks to it. They
// carry frames and know nothing of what is in them. With keys the connection is encrypted and both sides are
// known to each other (CURVE). Not thread-safe: one thread owns an endpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "wire/keys.h"

namespace allot::wire {

// Frames that a server takes are at most so long; the longest honest one, a result of 50,000 questions, is
// shorter. Longer ones end the connection before they are buffered.
inline constexpr size_t kMaxRequestBytes = size_t{1} << 20;

// A worker connects anew after so many messages, once all of them are answered. ZeroMQ keeps what the queues
// of a connection have once used: a page for 64 messages each way, until it is 64 KiB. In a run of hours the
// connections of 10,000 workers would take three times the memory (docs/internals/aggregator.md).
inline constexpr int kMessagesOfAConnection = 50;

struct ServerKeys {
  KeyPair own;
  std::filesystem::path allow_list;  // who may connect (keys.h); read again when it changes
};

struct ServerOptions {
  // "tcp://ADDRESS:PORT"; port "*" takes a free one.
  std::string bind = "tcp://127.0.0.1:*";
  // Without keys an address that other machines reach is refused, unless `insecure` is set: then everyone who
  // reaches it may do everything.
  std::optional<ServerKeys> keys = std::nullopt;
  bool insecure = false;
  // A connection that has not shown its key by then is ended.
  Duration handshake{10'000};
  // With keys, further peers are refused until others leave; without, the limit on open files holds.
  int max_connections = 20'000;
};

class Server {
 public:
  struct Message {
    std::string peer;  // routing id of the connection; answers go back to it
    std::string frame;
    KeyHolder from;  // of the connection's key; without keys everyone is an operator without a name
  };

  // Throws InvalidArgument for an address that is not tcp://ADDRESS:PORT or that is not loopback without
  // keys or `insecure`, NetworkError when it cannot be bound (a port in use), naming it and what to do, and
  // what read_allow_list() throws.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Where it listens, with the real port.
  std::string endpoint() const;
  // The next frame, or nothing after `timeout` (zero: only what is already there) or when a signal interrupts
  // the wait. Frames of a key that has been taken from the allow-list are dropped.
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
  explicit Client(const std::string& endpoint, const std::optional<ClientKeys>& keys = std::nullopt);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  [[nodiscard]] std::optional<std::string> receive(Duration timeout);
  void send(std::string_view frame);
  // Why the server last ended the handshake, with what to do; nothing while none was ended.
  [[nodiscard]] std::optional<std::string> handshake_failure();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::wire
