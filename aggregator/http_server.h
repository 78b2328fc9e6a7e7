// A small read-only HTTP server beside the service loop: fixed paths, GET and HEAD alone, one request a
// connection, one thread that never waits for a client. Every phase of a request is bounded in time, and
// connections, their bytes and the answers that wait to be read are bounded in number, so that no client
// costs others their answer or the process its memory. It knows nothing of runs.
//
// The network decides who may connect: there is no log-in and no encryption, so it listens on loopback unless
// it is told otherwise. On loopback it answers only requests that name the machine itself as host, so that a
// web page from elsewhere cannot read it through a host name that was made to point here.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "aggregator/http_address.h"

namespace allot::aggregator {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::map<std::string, std::string> headers = {};  // further headers
};

// What clients may take. The defaults keep a process within 32 MiB of its size without clients.
struct HttpLimits {
  // A client has this long to send its whole request, and as long again to read the whole answer.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
  // Beyond these numbers the oldest connection, of all or of the same address, makes room for the next.
  size_t most_connections = 512;
  size_t most_connections_of_address = 256;
  // Answers that their clients have not read yet, together. Beyond it an answer of more than
  // `small_answer_bytes`, so never a probe's, becomes 503.
  size_t most_waiting_bytes = size_t{16} << 20;
  size_t small_answer_bytes = 4096;
};

class HttpServer {
 public:
  // The handler of each path, called on the server's one thread: while it runs, nobody else is answered. What
  // a handler throws becomes a 500 without the error's text, which goes to the log.
  using Handlers = std::map<std::string, std::function<HttpResponse()>>;

  // The server listens when the constructor returns. Throws NetworkError when the address cannot be bound.
  HttpServer(const HttpAddress& address, Handlers handlers, const HttpLimits& limits = {});
  // Ends all connections.
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
