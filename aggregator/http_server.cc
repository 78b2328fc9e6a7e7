#include "aggregator/http_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

// Enough threads for a scrape, two probes and some pages at once; further requests wait their turn.
constexpr size_t kThreads = 8;
constexpr size_t kWaiting = 64;
constexpr time_t kTimeoutSeconds = 5;

// Connections wait for a thread in a queue of bounded length. When it is full, the accepting thread waits and
// the system refuses further connections, so memory and open files stay bounded whatever clients do.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  BoundedQueue() {
    for (size_t i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    taken_.wait(lock, [this] { return tasks_.size() < kWaiting; });
    tasks_.push_back(std::move(task));
    added_.notify_one();
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    added_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [this] { return !tasks_.empty() || ending_; });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      taken_.notify_one();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable taken_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool ending_ = false;
};

bool is_loopback_host(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// The host of a Host header: without port and brackets.
std::string host_of(const std::string& header) {
  if (header.starts_with('[')) return header.substr(1, header.find(']') - 1);
  return header.substr(0, header.rfind(':'));
}

bool is_ipv6(const std::string& host) {
  in6_addr ignored;
  return ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

bool HttpAddress::loopback() const {
  return is_loopback_host(host);
}

HttpAddress parse_http_address(const std::string& text) {
  const auto fail = [&] {
    throw InvalidArgument(fmt::format(
        "'{}' is not an address to serve HTTP on; expected ADDRESS:PORT such as 127.0.0.1:8080, [::1]:8080 or "
        "0.0.0.0:8080, with port * for a free one",
        text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) fail();
  HttpAddress address{.host = text.substr(0, colon)};
  const std::string port = text.substr(colon + 1);
  const bool bracketed = address.host.starts_with('[') && address.host.ends_with(']');
  if (bracketed) address.host = address.host.substr(1, address.host.size() - 2);
  in_addr ignored;
  const bool known =
      bracketed ? is_ipv6(address.host)
                : address.host == "localhost" || ::inet_pton(AF_INET, address.host.c_str(), &ignored) == 1;
  if (!known) fail();
  if (port == "*") return address;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 1 || address.port > 65535) {
    fail();
  }
  return address;
}

struct HttpServer::Impl {
  HttpAddress address;
  Handlers handlers;
  httplib::Server server;
  std::thread thread;
  std::atomic<bool> ended{false};

  void answer(const httplib::Request& request, httplib::Response& response) const {
    const auto plain = [&](int status, const std::string& text) {
      response.status = status;
      response.set_content(text + "\n", "text/plain; charset=utf-8");
    };
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cross-Origin-Resource-Policy", "same-origin");
    response.set_header("Cache-Control", "no-store");
    if (request.method != "GET" && request.method != "HEAD") {
      response.set_header("Allow", "GET, HEAD");
      return plain(405, "only GET and HEAD are answered; nothing can be changed here");
    }
    if (address.loopback() && !is_loopback_host(host_of(request.get_header_value("Host")))) {
      return plain(421, "this server listens on loopback and answers to localhost, 127.0.0.1 and [::1]");
    }
    const auto handler = handlers.find(request.path);
    if (handler == handlers.end()) {
      std::string paths;
      for (const auto& [path, ignored] : handlers) paths += " " + path;
      return plain(404, "no such page; there are" + paths);
    }
    try {
      const HttpResponse made = handler->second();
      response.status = made.status;
      for (const auto& [name, value] : made.headers) response.set_header(name, value);
      response.set_content(made.body, made.content_type);
    } catch (const std::exception& error) {
      spdlog::warn("http: {} could not be answered: {}", request.path, error.what());
      plain(500, "this could not be answered; the aggregator's log says why");
    }
  }
};

HttpServer::HttpServer(const HttpAddress& address, Handlers handlers) : impl_(std::make_unique<Impl>()) {
  impl_->address = address;
  impl_->handlers = std::move(handlers);
  httplib::Server& server = impl_->server;
  server.new_task_queue = [] { return new BoundedQueue; };
  // The library's default is SO_REUSEPORT, with which a second server would silently share the port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  // Every path is looked up here, before the library reads a body. Because the body stays unread, a
  // connection serves only one request.
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    impl_->answer(request, response);
    return httplib::Server::HandlerResponse::Handled;
  });
  server.set_keep_alive_max_count(1);
  server.set_payload_max_length(0);
  server.set_read_timeout(kTimeoutSeconds);
  server.set_write_timeout(kTimeoutSeconds);
  server.set_tcp_nodelay(true);
  errno = 0;
  if (address.port == 0) {
    impl_->address.port = server.bind_to_any_port(address.host);
  } else if (!server.bind_to_port(address.host, address.port)) {
    impl_->address.port = -1;
  }
  if (impl_->address.port < 0) {
    throw NetworkError(
        fmt::format("cannot serve HTTP on {}:{}: {}; choose another port, * for a free one, or an "
                    "address of this machine",
                    address.host, address.port == 0 ? "*" : std::to_string(address.port),
                    errno != 0 ? std::strerror(errno) : "the address cannot be used"));
  }
  impl_->thread = std::thread([this] {
    impl_->server.listen_after_bind();
    impl_->ended = true;
  });
  // stop() has no effect before the loop runs.
  while (!server.is_running() && !impl_->ended) std::this_thread::yield();
}

HttpServer::~HttpServer() {
  impl_->server.stop();
  impl_->thread.join();
}

std::string HttpServer::url() const {
  const HttpAddress& address = impl_->address;
  return fmt::format("http://{}:{}/", is_ipv6(address.host) ? "[" + address.host + "]" : address.host,
                     address.port);
}

}  // namespace allot::aggregator
