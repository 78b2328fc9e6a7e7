// One HTTP request as the read-only server needs it: a GET or HEAD without a body, read from bytes that
// anybody may have sent.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace allot::aggregator {

// Bytes of the request line and all header fields together.
inline constexpr size_t kMostRequestBytes = 8192;

struct HttpRequest {
  std::string method;
  std::string path;  // without the query
  std::string host;  // the Host field, empty where there is none
};

// Either a request or the status and the words of the answer that it gets instead.
struct ParsedRequest {
  std::optional<HttpRequest> request;
  int status = 400;
  std::string problem;
};

// Reads the start of what a client sent. Nothing while the empty line after the fields has not come and more
// may come. Lines end with CR LF, the version is 1.0 or 1.1, the target begins with '/', a field has a name
// without spaces, and a request has at most one Host (RFC 9112). All other fields, Range and Expect among
// them, are ignored: the whole answer is always sent.
std::optional<ParsedRequest> parse_request(std::string_view received);

}  // namespace allot::aggregator
