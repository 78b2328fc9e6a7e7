#include "aggregator/http_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace allot::aggregator {
namespace {

bool is_ipv4(const std::string& host) {
  in_addr ignored;
  return ::inet_pton(AF_INET, host.c_str(), &ignored) == 1;
}

bool is_ipv6(const std::string& host) {
  in6_addr ignored;
  return ::inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

// A whole address or name: "127.0.0.1.example.com" is a name that anybody can own.
bool is_loopback_host(const std::string& host) {
  return host == "localhost" || host == "::1" || (is_ipv4(host) && host.starts_with("127."));
}

bool is_port(std::string_view text) {
  return !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// The host of a Host header, "localhost", "127.0.0.1:80" or "[::1]:80", without port and brackets; empty when
// it is none of these forms.
std::string host_of(const std::string& header) {
  const bool bracketed = header.starts_with('[');
  const size_t end = bracketed ? header.find(']') : std::min(header.find(':'), header.size());
  if (end == std::string::npos) return "";
  const std::string_view rest = std::string_view(header).substr(end + (bracketed ? 1 : 0));
  if (!rest.empty() && (rest.front() != ':' || !is_port(rest.substr(1)))) return "";
  const std::string host = bracketed ? header.substr(1, end - 1) : header.substr(0, end);
  return bracketed == is_ipv6(host) ? host : "";
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
  const bool known = bracketed ? is_ipv6(address.host) : address.host == "localhost" || is_ipv4(address.host);
  if (!known) fail();
  if (port == "*") return address;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 1 || address.port > 65535) {
    fail();
  }
  return address;
}

bool names_this_machine(const std::string& host_header) {
  return is_loopback_host(host_of(host_header));
}

void throw_cannot_bind(const HttpAddress& address, int error_number) {
  throw NetworkError(
      fmt::format("cannot serve HTTP on {}:{}: {}; choose another port, * for a free one, or an "
                  "address of this machine",
                  address.host, address.port == 0 ? "*" : std::to_string(address.port),
                  error_number != 0 ? std::strerror(error_number) : "the address cannot be used"));
}

std::string http_url(const std::string& host, int port) {
  return fmt::format("http://{}:{}/", is_ipv6(host) ? "[" + host + "]" : host, port);
}

}  // namespace allot::aggregator
