// What the project's HTTP servers share: addresses, and who may ask a server on loopback.
#pragma once

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

// Connections that a listening socket lets wait to be accepted (or net.core.somaxconn, if that is less).
inline constexpr int kMostWaitingConnections = 1024;

// Whether a Host header names the machine itself: a web page from elsewhere cannot then read a server on
// loopback through a host name that was made to point here.
bool names_this_machine(const std::string& host_header);

// Throws the NetworkError that says why `address` cannot be bound, `error_number` being errno or 0.
[[noreturn]] void throw_cannot_bind(const HttpAddress& address, int error_number);

// "http://127.0.0.1:41234/".
std::string http_url(const std::string& host, int port);

}  // namespace allot::aggregator
