// The two ends of allot's one TCP port: a ROUTER that many peers talk to, and a DEALER that talks to it. They
// carry frames without looking into them. With keys the connection is encrypted and both sides are
// authenticated (CURVE). Not thread-safe: one thread owns an endpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "wire/keys.h"

namespace allot::wire {

// Largest frame that a server accepts. The largest legitimate message, a result for 50,000 questions, fits. A
// longer one ends the connection before it is buffered.
inline constexpr size_t kMaxRequestBytes = size_t{1} << 20;

// A worker reconnects after this many messages, once all of them are answered, because ZeroMQ
// never shrinks a connection's queues: they take a page for every 64 messages each way, up to
// 64 KiB. Otherwise the connections of 10,000 workers would take three times the memory in a
// run of hours (docs/internals/aggregator.md).
inline constexpr int kMessagesOfAConnection = 50;

struct ServerKeys {
  KeyPair own;
  std::filesystem::path allow_list;     // who may connect (keys.h); read again when it changes
  std::filesystem::path own_file = {};  // that `own` comes from; read again by take_new_key()
};

struct ServerOptions {
  // "tcp://ADDRESS:PORT"; port "*" lets the system choose a free one.
  std::string bind = "tcp://127.0.0.1:*";
  // Without keys an address that other machines reach is refused, unless `insecure` is set: then everyone who
  // reaches it may do everything.
  std::optional<ServerKeys> keys = std::nullopt;
  bool insecure = false;
  // A connection that has not shown its key after this time is ended.
  Duration handshake{10'000};
  // With keys, further peers are refused until others leave; without keys, only the system's limit on
  // open files applies.
  int max_connections = 20'000;
};

class Server {
 public:
  struct Message {
    std::string peer;  // routing id of the connection; answers go back to it
    std::string frame;
    KeyHolder from;       // of the connection's key; without keys everyone is an operator without a name
    std::string address;  // of the peer, without its port
  };

  // Throws InvalidArgument for an address that is not tcp://ADDRESS:PORT or that is not loopback without
  // keys or `insecure`, NetworkError when it cannot be bound (a port in use), naming it and what to do, and
  // what read_allow_list() throws.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The address it listens on, with the real port.
  std::string endpoint() const;
  // The next frame, or nothing after `timeout` (zero: only what is already there) or when a signal interrupts
  // the wait. Frames of a key that has been taken from the allow-list are dropped.
  [[nodiscard]] std::optional<Message> receive(Duration timeout);
  // When the file of its own key has changed since it was read: listens with that key from now on, at the
  // same address, and returns it. All connections end; peers that know the key connect again. A file that
  // cannot be read, or holds the same key, changes nothing; the first is an error in the log. Throws
  // NetworkError when the address cannot be bound again.
  [[nodiscard]] std::optional<PublicKey> take_new_key();
  // Connections that were ended since the last call because they showed no key, or one that is not on the
  // allow-list, or because there were too many.
  [[nodiscard]] int64_t take_refused_connections();
  // Queues a frame. A peer that is gone, or does not read what it is sent, loses it.
  void send(const std::string& peer, std::string_view frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class Client {
 public:
  // Connects in the background: a server that does not run yet is no error. Throws InvalidArgument for an
  // address that is not tcp://ADDRESS:PORT.
  explicit Client(const std::string& endpoint, const std::optional<ClientKeys>& keys = std::nullopt);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // The next frame, or nothing after `timeout` or when a signal interrupts the wait.
  [[nodiscard]] std::optional<std::string> receive(Duration timeout);
  void send(std::string_view frame);
  // Why the server last ended a handshake and what to do about it; nothing when it ended none, or only one
  // and without a reason.
  [[nodiscard]] std::optional<std::string> handshake_failure();
  // After a failure: whether another key can cure it, and not time alone.
  bool lacks_key() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::wire
