#include "aggregator/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/http_address.h"
#include "aggregator/http_request.h"
#include "base/error.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// After the answer, what the client still sends is read for this long: closing a socket with unread bytes
// would reset the connection, and the client might lose the answer.
constexpr milliseconds kFarewellTime{1000};
constexpr int kMostAcceptedInARound =
    64;  // fewer than may stay, so that each is read once before it makes room
constexpr milliseconds kPauseWithoutFiles{100};  // when the process has no file descriptor left

// A descriptor that closes itself.
class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(File&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

struct Socket {
  File file;
  int port = 0;
};

// Listens without SO_REUSEPORT, with which a second server would silently share the port.
Socket listen_on(const HttpAddress& address) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof(sockaddr_in);
  const auto port = htons(static_cast<uint16_t>(address.port));
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = port;
    length = sizeof(sockaddr_in6);
  } else {
    ::inet_pton(AF_INET, host.c_str(), &v4->sin_addr);
    v4->sin_family = AF_INET;
    v4->sin_port = port;
  }
  File file(::socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(file.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (file.get() < 0 || ::bind(file.get(), reinterpret_cast<const sockaddr*>(&storage), length) != 0 ||
      ::listen(file.get(), kMostWaitingConnections) != 0 ||
      ::getsockname(file.get(), reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    throw_cannot_bind(address, errno);
  }
  const int bound = ntohs(storage.ss_family == AF_INET6 ? v6->sin6_port : v4->sin_port);
  return {std::move(file), bound};
}

// The address of a peer, the same for all of its connections.
std::array<unsigned char, 16> peer_of(const sockaddr_storage& storage) {
  std::array<unsigned char, 16> bytes = {};
  if (storage.ss_family == AF_INET6) {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, 16);
  } else {
    std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, 4);
  }
  return bytes;
}

std::string_view words_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 414:
      return "URI Too Long";
    case 421:
      return "Misdirected Request";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

std::string serialised(const HttpResponse& response, bool with_body) {
  std::string text = fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Content-Type: {}\r\n"
      "Content-Length: {}\r\n"
      "Connection: close\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "Referrer-Policy: no-referrer\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\n"
      "Cache-Control: no-store\r\n",
      response.status, words_of(response.status), response.content_type, response.body.size());
  for (const auto& [name, value] : response.headers) text += fmt::format("{}: {}\r\n", name, value);
  text += "\r\n";
  if (with_body) text += response.body;
  return text;
}

HttpResponse plain(int status, const std::string& text) {
  return {.status = status, .body = text + "\n"};
}

enum class Phase { kReading, kAnswering, kFarewell };

struct Connection {
  File file;
  std::array<unsigned char, 16> peer;
  Clock::time_point deadline;  // of the phase
  Phase phase = Phase::kReading;
  std::string received = {};
  std::string answer = {};
  size_t sent = 0;
};

}  // namespace

struct HttpServer::Impl {
  HttpAddress address;
  Handlers handlers;
  HttpLimits limits;
  Socket listener;
  File ending{::eventfd(0, EFD_CLOEXEC)};
  std::list<Connection> connections = {};  // the oldest first
  size_t waiting_bytes = 0;                // of all answers
  Clock::time_point accepts_from = {};
  std::thread thread = {};

  using Place = std::list<Connection>::iterator;

  HttpResponse made_by_handler(const HttpRequest& request) const {
    if (request.method != "GET" && request.method != "HEAD") {
      HttpResponse response = plain(405, "only GET and HEAD are answered; nothing can be changed here");
      response.headers = {{"Allow", "GET, HEAD"}};
      return response;
    }
    if (address.loopback() && !names_this_machine(request.host)) {
      return plain(421, "this server listens on loopback and answers to localhost, 127.0.0.1 and [::1]");
    }
    const auto handler = handlers.find(request.path);
    if (handler == handlers.end()) {
      std::string paths;
      for (const auto& [path, ignored] : handlers) paths += " " + path;
      return plain(404, "no such page; there are" + paths);
    }
    try {
      return handler->second();
    } catch (const std::exception& error) {
      spdlog::warn("http: {} could not be answered: {}", request.path, error.what());
      return plain(500, "this could not be answered; the aggregator's log says why");
    }
  }

  void start_answer(Connection* connection, const ParsedRequest& parsed) {
    HttpResponse response =
        parsed.request ? made_by_handler(*parsed.request) : plain(parsed.status, parsed.problem);
    if (response.body.size() > limits.small_answer_bytes &&
        waiting_bytes + response.body.size() > limits.most_waiting_bytes) {
      response = plain(503, "other clients have not yet read their answers; ask again");
    }
    connection->answer = serialised(response, !parsed.request || parsed.request->method != "HEAD");
    connection->received = {};
    connection->phase = Phase::kAnswering;
    connection->deadline = Clock::now() + limits.patience;
    waiting_bytes += connection->answer.size();
  }

  void drop_answer(Connection* connection) {
    waiting_bytes -= connection->answer.size();
    connection->answer = {};
  }

  Place close(Place place) {
    drop_answer(&*place);
    return connections.erase(place);
  }

  void accept_some() {
    for (int i = 0; i < kMostAcceptedInARound; ++i) {
      sockaddr_storage storage = {};
      socklen_t length = sizeof storage;
      File file(::accept4(listener.file.get(), reinterpret_cast<sockaddr*>(&storage), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (file.get() < 0) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno != EAGAIN && errno != EWOULDBLOCK) accepts_from = Clock::now() + kPauseWithoutFiles;
        return;
      }
      const int yes = 1;
      ::setsockopt(file.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      const auto peer = peer_of(storage);
      make_room(peer);
      connections.push_back({std::move(file), peer, Clock::now() + limits.patience});
    }
  }

  // Who comes last is served: an honest request is there at once and answered in the same round, so the
  // oldest connections are those of clients that are slow, by mistake or on purpose.
  void make_room(const std::array<unsigned char, 16>& peer) {
    const auto is_of_peer = [&](const Connection& connection) { return connection.peer == peer; };
    const auto of_peer = std::count_if(connections.begin(), connections.end(), is_of_peer);
    if (static_cast<size_t>(of_peer) >= limits.most_connections_of_address) {
      close(std::find_if(connections.begin(), connections.end(), is_of_peer));
    } else if (connections.size() >= limits.most_connections) {
      close(connections.begin());
    }
  }

  // Whether the connection stays open.
  bool read(Connection* connection) {
    std::array<char, 4096> buffer;
    const ssize_t count = ::recv(connection->file.get(), buffer.data(), buffer.size(), 0);
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    if (connection->phase == Phase::kFarewell) return count > 0;
    if (count == 0) return false;
    connection->received.append(buffer.data(), static_cast<size_t>(count));
    if (const auto parsed = parse_request(connection->received)) {
      start_answer(connection, *parsed);
      return write(connection);
    }
    return true;
  }

  bool write(Connection* connection) {
    const std::string& answer = connection->answer;
    const ssize_t count = ::send(connection->file.get(), answer.data() + connection->sent,
                                 answer.size() - connection->sent, MSG_NOSIGNAL);
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
    connection->sent += static_cast<size_t>(count);
    if (connection->sent < answer.size()) return true;
    drop_answer(connection);
    ::shutdown(connection->file.get(), SHUT_WR);
    connection->phase = Phase::kFarewell;
    connection->deadline = Clock::now() + kFarewellTime;
    return true;
  }

  // Milliseconds until the next deadline, rounded up; -1 when there is none.
  int patience_of_poll(Clock::time_point now) const {
    Clock::time_point next = Clock::time_point::max();
    for (const Connection& connection : connections) next = std::min(next, connection.deadline);
    if (accepts_from > now) next = std::min(next, accepts_from);
    if (next == Clock::time_point::max()) return -1;
    return static_cast<int>(std::max<int64_t>(0, std::chrono::ceil<milliseconds>(next - now).count()));
  }

  void serve() {
    std::vector<pollfd> polled;
    while (true) {
      const auto now = Clock::now();
      polled.clear();
      polled.push_back({ending.get(), POLLIN, 0});
      polled.push_back({now < accepts_from ? -1 : listener.file.get(), POLLIN, 0});
      for (const Connection& connection : connections) {
        const short events = connection.phase == Phase::kAnswering ? POLLOUT : POLLIN;
        polled.push_back({connection.file.get(), events, 0});
      }
      if (::poll(polled.data(), polled.size(), patience_of_poll(now)) < 0 && errno != EINTR) {
        spdlog::error("http: poll: {}; nothing is served any more", std::strerror(errno));
        return;
      }
      if (polled[0].revents != 0) return;
      const auto woken = Clock::now();
      size_t i = 2;
      for (auto place = connections.begin(); place != connections.end(); ++i) {
        bool stays = true;
        if (polled[i].revents != 0) {
          stays = place->phase == Phase::kAnswering ? write(&*place) : read(&*place);
        }
        place = stays && woken < place->deadline ? std::next(place) : close(place);
      }
      if (polled[1].revents != 0) accept_some();
    }
  }
};

HttpServer::HttpServer(const HttpAddress& address, Handlers handlers, const HttpLimits& limits)
    : impl_(std::make_unique<Impl>(Impl{.address = address,
                                        .handlers = std::move(handlers),
                                        .limits = limits,
                                        .listener = listen_on(address)})) {
  impl_->address.port = impl_->listener.port;
  impl_->thread = std::thread([this] { impl_->serve(); });
}

HttpServer::~HttpServer() {
  const uint64_t one = 1;
  (void)!::write(impl_->ending.get(), &one, sizeof one);
  impl_->thread.join();
}

std::string HttpServer::url() const {
  return http_url(impl_->address.host, impl_->address.port);
}

}  // namespace allot::aggregator
