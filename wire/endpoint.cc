#include "wire/endpoint.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>
#include <zmq.hpp>

#include "base/error.h"
#include "base/file_state.h"
#include "base/log.h"
#include "wire/authenticator.h"
#include "wire/codec.h"
#include "wire/socket_event.h"

namespace allot::wire {
namespace {

struct Address {
  std::string host;
  std::string port;  // digits or "*"
};

Address parse_address(const std::string& endpoint) {
  constexpr std::string_view kScheme = "tcp://";
  const size_t colon = endpoint.rfind(':');
  if (!endpoint.starts_with(kScheme) || colon == std::string::npos || colon <= kScheme.size()) {
    throw InvalidArgument("endpoint '" + endpoint +
                          "' is not tcp://ADDRESS:PORT, for example tcp://127.0.0.1:7400");
  }
  Address address{endpoint.substr(kScheme.size(), colon - kScheme.size()), endpoint.substr(colon + 1)};
  const bool digits = !address.port.empty() && address.port.size() <= 5 &&
                      address.port.find_first_not_of("0123456789") == std::string::npos;
  if (address.port != "*" && (!digits || std::stoi(address.port) > 65535)) {
    throw InvalidArgument("endpoint '" + endpoint + "' has port '" + address.port +
                          "'; a number up to 65535 is expected, or * for a free one");
  }
  return address;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "[::1]" ||
         (host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string::npos);
}

// At least the bytes that CURVE adds to a frame, which ZeroMQ counts as part of the frame.
constexpr size_t kEncryptionBytes = 64;
// When this many messages of a peer wait to be handled, ZeroMQ stops reading its connection. A well-behaved
// peer has only a few under way.
constexpr int kMaxWaitingMessages = 64;
// ZeroMQ asks a peer that has been silent this long whether it is alive, and drops it when it does not answer
// within the same time.
constexpr int kAliveMs = 30'000;

// Options that both ends share: close() does not wait for unsent messages, and a frame over the limit ends
// its connection before the frame is buffered.
void set_options(zmq::socket_t& socket, const Address& address, size_t max_frame) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(max_frame + kEncryptionBytes));
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 60);
  socket.set(zmq::sockopt::ipv6, address.host.starts_with('['));
}

// Frames are copied out of the receive buffer: most are small, and the bookkeeping for sharing the buffer
// would cost a page of memory for each of thousands of connections.
zmq::context_t frugal_context() {
  zmq::context_t context{1};
  constexpr int kZeroCopyReceive = 10;  // ZMQ_ZERO_COPY_RECV, which zmq.h names in draft builds only
  zmq_ctx_set(context.handle(), kZeroCopyReceive, 0);
  return context;
}

void set_own_keys(zmq::socket_t& socket, const KeyPair& own) {
  const auto bytes = [](const auto& key) { return zmq::const_buffer(key.data(), key.size()); };
  socket.set(zmq::sockopt::curve_publickey, bytes(own.public_key.bytes));
  socket.set(zmq::sockopt::curve_secretkey, bytes(own.secret_key.bytes()));
}

// Waits until a frame has arrived; false after `timeout` or when a signal interrupts.
bool wait_readable(zmq::socket_t& socket, Duration timeout) {
  zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
  try {
    return zmq::poll(&item, 1, std::max(timeout, Duration::zero())) > 0;
  } catch (const zmq::error_t& error) {
    if (error.num() == EINTR) return false;
    throw NetworkError(std::string("waiting for messages failed: ") + error.what());
  }
}

// What `take` finds within `timeout`. A socket that is readable may hold nothing to hand out (a frame of a
// key that may connect no more), and then the rest of the time is waited for, too.
template <class Take>
auto take_within(zmq::socket_t& socket, Duration timeout, Take take) -> decltype(take()) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto left = timeout;
  while (wait_readable(socket, left)) {
    if (auto taken = take()) return taken;
    left = std::chrono::ceil<Duration>(deadline - std::chrono::steady_clock::now());
    if (left <= Duration::zero()) break;
  }
  return std::nullopt;
}

// One frame; nothing when none has arrived or a signal interrupts.
std::optional<std::string> take_frame(zmq::socket_t& socket, bool* more) {
  zmq::message_t message;
  try {
    if (!socket.recv(message, zmq::recv_flags::dontwait)) return std::nullopt;
  } catch (const zmq::error_t& error) {
    if (error.num() == EINTR) return std::nullopt;
    throw NetworkError(std::string("receiving a message failed: ") + error.what());
  }
  *more = message.more();
  return message.to_string();
}

// ZeroMQ closes a listener on a thread of its own, so for a moment its port is still taken.
void bind_again(zmq::socket_t& socket, const std::string& address) {
  using namespace std::chrono_literals;
  constexpr auto kPatience = 5s;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    try {
      socket.bind(address);
      return;
    } catch (const zmq::error_t& error) {
      if (error.num() != EADDRINUSE || std::chrono::steady_clock::now() > deadline)
        throw NetworkError("cannot listen on " + address + " with the new key: " + error.what() +
                           "; start the aggregator again");
    }
    std::this_thread::sleep_for(1ms);
  }
}

}  // namespace

struct Server::Impl {
  explicit Impl(const ServerOptions& options)
      : authenticator(context, options.keys ? std::optional(options.keys->allow_list) : std::nullopt,
                      options.max_connections) {
    if (!options.keys) return;
    own = options.keys->own.public_key;
    own_file = options.keys->own_file;
  }

  zmq::context_t context = frugal_context();
  Authenticator authenticator;
  // Declared after the authenticator, so that it is closed first: its handshakes ask the authenticator.
  zmq::socket_t socket{context, zmq::socket_type::router};
  std::deque<Message> pending;  // the further frames of a message whose first has been handed out
  std::optional<PublicKey> own;
  std::filesystem::path own_file;  // empty = never to be read again
  FileState own_file_state;        // none yet: it may have changed between when `own` was read and now

  std::optional<Message> next() {
    if (pending.empty()) return std::nullopt;
    Message message = std::move(pending.front());
    pending.pop_front();
    return message;
  }

  // Reads one whole message: a routing frame, then any number of frames that are each an Envelope.
  void read() {
    bool more = false;
    const std::optional<std::string> peer = take_frame(socket, &more);
    while (peer && more) {
      zmq::message_t frame;
      if (!socket.recv(frame, zmq::recv_flags::dontwait)) return;
      more = frame.more();
      const char* user = ::zmq_msg_gets(frame.handle(), "User-Id");
      std::optional<KeyHolder> from = authenticator.holder(user == nullptr ? "" : user);
      const char* address = ::zmq_msg_gets(frame.handle(), "Peer-Address");
      if (from)
        pending.push_back({*peer, frame.to_string(), std::move(*from), address == nullptr ? "" : address});
    }
  }
};

Server::Server(const ServerOptions& options) {
  const Address address = parse_address(options.bind);
  if (!is_loopback(address.host) && !options.keys) {
    if (!options.insecure) {
      throw InvalidArgument(
          "refusing to listen on " + options.bind +
          " without keys: other machines can reach this address; make a key (allot keys new --out FILE), "
          "list who may connect, and give both (--key FILE --allow LIST), or listen on 127.0.0.1; "
          "--insecure listens without");
    }
    spdlog::warn(
        "INSECURE: everyone who can reach {} may read this run, answer for workers and control it; nothing is "
        "encrypted. Give --key and --allow unless nobody else is on that network",
        options.bind);
  }
  impl_ = std::make_unique<Impl>(options);
  zmq::socket_t& socket = impl_->socket;
  set_options(socket, address, kMaxRequestBytes);
  // After a restart all workers connect at once; a connection that finds the system's queue full is tried
  // again only after seconds. The system caps this at net.core.somaxconn.
  socket.set(zmq::sockopt::backlog, 4096);
  socket.set(zmq::sockopt::handshake_ivl, static_cast<int>(options.handshake.count()));
  socket.set(zmq::sockopt::rcvhwm, kMaxWaitingMessages);
  socket.set(zmq::sockopt::heartbeat_ivl, kAliveMs);
  socket.set(zmq::sockopt::heartbeat_timeout, kAliveMs);
  if (options.keys) {
    socket.set(zmq::sockopt::curve_server, true);
    set_own_keys(socket, options.keys->own);
  }
  impl_->authenticator.watch(socket);
  try {
    impl_->socket.bind(options.bind);
  } catch (const zmq::error_t& error) {
    if (error.num() == EADDRINUSE) {
      throw NetworkError("cannot listen on " + options.bind +
                         ": the port is in use; stop the process that holds it, choose another port, "
                         "or use port * for a free one");
    }
    throw NetworkError("cannot listen on " + options.bind + ": " + error.what() +
                       "; the address must belong to this machine");
  }
}

Server::~Server() = default;

std::string Server::endpoint() const {
  return impl_->socket.get(zmq::sockopt::last_endpoint);
}

std::optional<Server::Message> Server::receive(Duration timeout) {
  if (auto message = impl_->next()) return message;
  return take_within(impl_->socket, timeout, [this] {
    impl_->read();
    return impl_->next();
  });
}

// A listener keeps the key that the socket had when it was bound, and its connections end with it.
std::optional<PublicKey> Server::take_new_key() {
  if (impl_->own_file.empty()) return std::nullopt;
  const FileState now = state_of(impl_->own_file);
  if (now == impl_->own_file_state) return std::nullopt;
  impl_->own_file_state = now;
  std::optional<KeyPair> pair;
  try {
    pair = read_key_pair(impl_->own_file);
  } catch (const Error& error) {
    spdlog::error("the key of this aggregator stays as it is: {}", error.what());
    return std::nullopt;
  }
  if (pair->public_key == impl_->own) return std::nullopt;
  const std::string address = endpoint();
  impl_->socket.unbind(address);
  set_own_keys(impl_->socket, *pair);
  bind_again(impl_->socket, address);
  impl_->own = pair->public_key;
  return pair->public_key;
}

int64_t Server::take_refused_connections() {
  return impl_->authenticator.take_refused();
}

void Server::send(const std::string& peer, std::string_view frame) {
  try {
    if (!impl_->socket.send(zmq::buffer(peer), zmq::send_flags::sndmore | zmq::send_flags::dontwait)) return;
    // A full queue is checked at the routing frame only; the rest of a message always follows it.
    (void)impl_->socket.send(zmq::buffer(frame), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    if (error.num() == EHOSTUNREACH) return;
    throw NetworkError(std::string("sending a message failed: ") + error.what());
  }
}

namespace {

constexpr const char* kHandshakeAddress = "inproc://allot.handshake";

bool is_full(const SocketEvent& event) {
  return event.number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH && event.value == 500;
}

// Says in words why a handshake ended.
std::string handshake_text(const SocketEvent& event) {
  if (is_full(event)) {
    return "the aggregator has as many connections as it allows; try again later";
  }
  if (event.number == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) {
    return "the aggregator does not know this key; add the public key (allot keys public FILE) "
           "to its allow-list";
  }
  return "the handshake failed; check that both sides use keys, and that the aggregator's public key is "
         "the one given here";
}

}  // namespace

struct Client::Impl {
  zmq::context_t context{1};
  zmq::socket_t socket{context, zmq::socket_type::dealer};
  zmq::socket_t handshakes{context, zmq::socket_type::pair};
  std::optional<std::string> failure;
  bool lacks_key = false;
  // Handshakes whose connection just ended. The first may have met a server that could not ask who this is at
  // that moment; ZeroMQ connects again by itself.
  int unexplained = 0;
};

Client::Client(const std::string& endpoint, const std::optional<ClientKeys>& keys)
    : impl_(std::make_unique<Impl>()) {
  const Address address = parse_address(endpoint);
  if (address.port == "*") {
    throw InvalidArgument("endpoint '" + endpoint +
                          "' has no port to connect to; give the one the aggregator printed");
  }
  set_options(impl_->socket, address, kMaxFrameBytes);
  if (keys) {
    impl_->socket.set(zmq::sockopt::curve_serverkey,
                      zmq::const_buffer(keys->server.bytes.data(), keys->server.bytes.size()));
    set_own_keys(impl_->socket, keys->own);
  }
  constexpr int kFailures = ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                            ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (::zmq_socket_monitor(impl_->socket.handle(), kHandshakeAddress, kFailures) == 0) {
    impl_->handshakes.set(zmq::sockopt::linger, 0);
    impl_->handshakes.connect(kHandshakeAddress);
  }
  try {
    impl_->socket.connect(endpoint);
  } catch (const zmq::error_t& error) {
    throw InvalidArgument("cannot connect to '" + endpoint + "': " + error.what() +
                          "; tcp://ADDRESS:PORT of an aggregator is expected");
  }
}

Client::~Client() = default;

std::optional<std::string> Client::receive(Duration timeout) {
  return take_within(impl_->socket, timeout, [this] {
    bool more = false;
    return take_frame(impl_->socket, &more);
  });
}

std::optional<std::string> Client::handshake_failure() {
  bool more = false;
  while (const std::optional<std::string> frame = take_frame(impl_->handshakes, &more)) {
    const std::optional<SocketEvent> event = socket_event(*frame);
    if (event && (event->number != ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL || ++impl_->unexplained > 1)) {
      impl_->failure = handshake_text(*event);
      impl_->lacks_key = !is_full(*event);
    }
    while (more && take_frame(impl_->handshakes, &more)) {  // the address, which the caller knows
    }
  }
  return impl_->failure;
}

bool Client::lacks_key() const {
  return impl_->lacks_key;
}

void Client::send(std::string_view frame) {
  try {
    // Without a connection the queue fills up; a message that does not fit is lost, just as one that is lost
    // on the network.
    (void)impl_->socket.send(zmq::buffer(frame), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    throw NetworkError(std::string("sending a message failed: ") + error.what());
  }
}

}  // namespace allot::wire
