#include "aggregator/http_server.h"

#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "aggregator/http_listen.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

// Enough threads for a scrape, two probes and some pages at once; further requests wait their turn.
constexpr size_t kThreads = 8;
constexpr size_t kWaiting = 64;

}  // namespace

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
    if (address.loopback() && !names_this_machine(request.get_header_value("Host"))) {
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

HttpServer::HttpServer(const HttpAddress& address, Handlers handlers, std::chrono::milliseconds patience)
    : impl_(std::make_unique<Impl>()) {
  impl_->address = address;
  impl_->handlers = std::move(handlers);
  httplib::Server& server = impl_->server;
  server.new_task_queue = [] { return new BoundedQueue(kThreads, kWaiting); };
  // Every path is looked up here, before the library reads a body. Because the body stays unread, a
  // connection serves only one request.
  server.set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
    impl_->answer(request, response);
    return httplib::Server::HandlerResponse::Handled;
  });
  server.set_keep_alive_max_count(1);
  server.set_payload_max_length(0);
  // How long a connection may stay without a request, in whole seconds.
  server.set_keep_alive_timeout(std::chrono::ceil<std::chrono::seconds>(patience).count());
  server.set_read_timeout(patience);
  server.set_write_timeout(patience);
  server.set_tcp_nodelay(true);
  impl_->address.port = bind_http(&server, address);
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
  return http_url(impl_->address.host, impl_->address.port);
}

}  // namespace allot::aggregator
