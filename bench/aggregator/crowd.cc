#include "bench/aggregator/crowd.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <zmq.hpp>

#include "base/error.h"
#include "wire/codec.h"

namespace allot::bench {
namespace {

constexpr std::string_view kScheme = "tcp://";
constexpr std::string_view kLoopback = "127.";

// A routing id that cannot be one of those that ZeroMQ makes up, which start with a zero byte. Each
// connection has one of its own: that of the one before is in use until it has ended.
std::string routing_id(int member, int connection) {
  return fmt::format("m{}.{}", member, connection);
}

}  // namespace

// One ROUTER with a connection for each member: the id set before a connect names that connection here, while
// the server, which is told none, makes up one for each.
struct Crowd::Impl {
  std::string endpoint;
  zmq::context_t context{1};
  zmq::socket_t socket{context, zmq::socket_type::router};
  std::vector<int> connections;  // of each member so far

  // Where the member connects to and from: another source for each, by which ZeroMQ tells connections to one
  // server apart when one of them is to end.
  std::string address(int member) const {
    return fmt::format("{}127.{}.{}.{}:0;{}", kScheme, 1 + member / 62'500, member / 250 % 250,
                       1 + member % 250, endpoint.substr(kScheme.size()));
  }
  void connect(int member) {
    int& connection = connections[static_cast<size_t>(member)];
    socket.set(zmq::sockopt::connect_routing_id, routing_id(member, ++connection));
    socket.connect(address(member));
  }
};

Crowd::Crowd(const std::string& endpoint, int members, const std::optional<wire::ClientKeys>& keys)
    : impl_(std::make_unique<Impl>()) {
  if (!endpoint.starts_with(std::string(kScheme) + std::string(kLoopback))) {
    throw InvalidArgument("cannot connect a crowd to '" + endpoint +
                          "'; tcp://127.x.x.x:PORT of an aggregator is expected");
  }
  impl_->endpoint = endpoint;
  impl_->connections.resize(static_cast<size_t>(members));
  zmq::socket_t& socket = impl_->socket;
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(wire::kMaxFrameBytes));
  socket.set(zmq::sockopt::router_mandatory, true);
  if (keys) {
    const auto bytes = [](const auto& key) { return zmq::const_buffer(key.data(), key.size()); };
    socket.set(zmq::sockopt::curve_serverkey, bytes(keys->server.bytes));
    socket.set(zmq::sockopt::curve_publickey, bytes(keys->own.public_key.bytes));
    socket.set(zmq::sockopt::curve_secretkey, bytes(keys->own.secret_key.bytes()));
  }
  try {
    for (int member = 0; member < members; ++member) impl_->connect(member);
  } catch (const zmq::error_t& error) {
    throw InvalidArgument("cannot connect to '" + endpoint + "': " + error.what() +
                          "; tcp://127.x.x.x:PORT of an aggregator is expected");
  }
}

Crowd::~Crowd() = default;

void Crowd::connect_anew(int member) {
  impl_->socket.disconnect(impl_->address(member));
  impl_->connect(member);
}

void Crowd::send(int member, std::string_view frame) {
  const std::string id = routing_id(member, impl_->connections[static_cast<size_t>(member)]);
  try {
    const auto queued =
        impl_->socket.send(zmq::buffer(id), zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    if (queued && impl_->socket.send(zmq::buffer(frame), zmq::send_flags::dontwait)) return;
  } catch (const zmq::error_t& error) {
    throw NetworkError("member " + std::to_string(member) + " cannot send: " + error.what());
  }
  throw NetworkError("member " + std::to_string(member) + " cannot send: its queue is full");
}

std::optional<Crowd::Message> Crowd::receive(Duration timeout) {
  zmq::message_t id, frame;
  try {
    if (!impl_->socket.recv(id, zmq::recv_flags::dontwait)) {
      zmq::pollitem_t item{impl_->socket.handle(), 0, ZMQ_POLLIN, 0};
      if (zmq::poll(&item, 1, std::max(timeout, Duration::zero())) == 0) return std::nullopt;
      if (!impl_->socket.recv(id, zmq::recv_flags::dontwait)) return std::nullopt;
    }
    if (!impl_->socket.recv(frame, zmq::recv_flags::none)) return std::nullopt;
  } catch (const zmq::error_t& error) {
    if (error.num() == EINTR) return std::nullopt;
    throw NetworkError(std::string("receiving a message failed: ") + error.what());
  }
  const std::string_view name = id.to_string_view();
  int member = -1;
  const auto [end, fault] = std::from_chars(name.data() + 1, name.data() + name.size(), member);
  if (fault != std::errc{}) throw NetworkError("a frame came for '" + std::string(name) + "', no member");
  return Message{member, frame.to_string()};
}

}  // namespace allot::bench
