// A small read-only HTTP server (cpp-httplib) beside the service loop: fixed paths, GET and HEAD alone, a
// fixed number of threads, every request bounded in size and time. It knows nothing of runs.
//
// The network decides who may connect: there is no log-in and no encryption, so it listens on loopback unless
// it is told otherwise. On loopback it answers only requests that name the machine itself as host, so that a
// web page from elsewhere cannot read it through a host name that was made to point here.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

namespace allot::aggregator {

// The parts of "ADDRESS:PORT"; port 0 ("*") lets the system choose one.
struct HttpAddress {
  std::string host;
  int port = 0;

  bool loopback() const;
};
// "127.0.0.1:8080", "0.0.0.0:*", "[::1]:80", "localhost:8080". Throws InvalidArgument for anything else.
HttpAddress parse_http_address(const std::string& text);

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::map<std::string, std::string> headers = {};  // further headers
};

class HttpServer {
 public:
  // The handler of each path. Handlers are called on the server's threads, several at once. What a handler
  // throws becomes a 500 without the error's text, which goes to the log.
  using Handlers = std::map<std::string, std::function<HttpResponse()>>;

  // The server listens when the constructor returns. A client that is silent for `patience` is let go. Throws
  // NetworkError when the address cannot be bound.
  HttpServer(const HttpAddress& address, Handlers handlers,
             std::chrono::milliseconds patience = std::chrono::seconds(5));
  // Lets requests that are being answered finish.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "http://127.0.0.1:41234/", with the real port.
  std::string url() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::aggregator
