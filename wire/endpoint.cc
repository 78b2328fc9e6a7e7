#include "wire/endpoint.h"

#include <cerrno>
#include <deque>
#include <zmq.hpp>

#include "base/error.h"
#include "wire/codec.h"

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

// Options both ends share. Nothing is kept for a peer after close, and a frame over the limit ends its
// connection before it is buffered.
void set_options(zmq::socket_t& socket, const Address& address) {
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(kMaxFrameBytes));
  socket.set(zmq::sockopt::tcp_keepalive, 1);
  socket.set(zmq::sockopt::tcp_keepalive_idle, 60);
  socket.set(zmq::sockopt::ipv6, address.host.starts_with('['));
}

// Frames are copied out of the buffer that they were received in: most are small, and the bookkeeping for
// sharing it costs a page of memory for each of the thousands of connections.
zmq::context_t frugal_context() {
  zmq::context_t context{1};
  constexpr int kZeroCopyReceive = 10;  // ZMQ_ZERO_COPY_RECV, which zmq.h names in draft builds only
  zmq_ctx_set(context.handle(), kZeroCopyReceive, 0);
  return context;
}

// Waits until a frame is there; false after `timeout` or when a signal interrupts.
bool wait_readable(zmq::socket_t& socket, Duration timeout) {
  zmq::pollitem_t item{socket.handle(), 0, ZMQ_POLLIN, 0};
  try {
    return zmq::poll(&item, 1, std::max(timeout, Duration::zero())) > 0;
  } catch (const zmq::error_t& error) {
    if (error.num() == EINTR) return false;
    throw NetworkError(std::string("waiting for messages failed: ") + error.what());
  }
}

// One frame, or nothing when none is there or a signal interrupts.
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

}  // namespace

struct Server::Impl {
  zmq::context_t context = frugal_context();
  zmq::socket_t socket{context, zmq::socket_type::router};
  std::deque<Message> pending;  // the further frames of a message whose first has been handed out

  // Reads one whole message: a routing frame, then any number of frames that are each an Envelope.
  void read() {
    bool more = false;
    const std::optional<std::string> peer = take_frame(socket, &more);
    while (peer && more) {
      std::optional<std::string> frame = take_frame(socket, &more);
      if (!frame) return;
      pending.push_back({*peer, std::move(*frame)});
    }
  }
};

Server::Server(const ServerOptions& options) : impl_(std::make_unique<Impl>()) {
  const Address address = parse_address(options.bind);
  if (!is_loopback(address.host) && !options.insecure) {
    throw InvalidArgument(
        "refusing to listen on " + options.bind +
        ": messages are not encrypted or authenticated, and this address can be reached from other "
        "machines; use 127.0.0.1, or set the option insecure inside a network you trust");
  }
  set_options(impl_->socket, address);
  // After a restart all workers connect at once; a connection that finds no place in the system's queue is
  // tried again only after seconds. The system caps this at net.core.somaxconn.
  impl_->socket.set(zmq::sockopt::backlog, 4096);
  try {
    impl_->socket.bind(options.bind);
  } catch (const zmq::error_t& error) {
    if (error.num() == EADDRINUSE) {
      throw NetworkError(
          "cannot listen on " + options.bind +
          ": the port is in use; stop the process that holds it, choose another port, or use port * "
          "for a free one");
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
  if (impl_->pending.empty() && wait_readable(impl_->socket, timeout)) impl_->read();
  if (impl_->pending.empty()) return std::nullopt;
  Message message = std::move(impl_->pending.front());
  impl_->pending.pop_front();
  return message;
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

struct Client::Impl {
  zmq::context_t context{1};
  zmq::socket_t socket{context, zmq::socket_type::dealer};
};

Client::Client(const std::string& endpoint) : impl_(std::make_unique<Impl>()) {
  const Address address = parse_address(endpoint);
  if (address.port == "*") {
    throw InvalidArgument("endpoint '" + endpoint +
                          "' has no port to connect to; give the one the aggregator printed");
  }
  set_options(impl_->socket, address);
  try {
    impl_->socket.connect(endpoint);
  } catch (const zmq::error_t& error) {
    throw InvalidArgument("cannot connect to '" + endpoint + "': " + error.what() +
                          "; tcp://ADDRESS:PORT of an aggregator is expected");
  }
}

Client::~Client() = default;

std::optional<std::string> Client::receive(Duration timeout) {
  if (!wait_readable(impl_->socket, timeout)) return std::nullopt;
  bool more = false;
  return take_frame(impl_->socket, &more);
}

void Client::send(std::string_view frame) {
  try {
    // Without a connection the queue fills up; what does not fit is lost as it would be on the way.
    (void)impl_->socket.send(zmq::buffer(frame), zmq::send_flags::dontwait);
  } catch (const zmq::error_t& error) {
    throw NetworkError(std::string("sending a message failed: ") + error.what());
  }
}

}  // namespace allot::wire
