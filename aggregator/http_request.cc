#include "aggregator/http_request.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/ascii.h"

namespace allot::aggregator {
namespace {

constexpr std::string_view kEnd = "\r\n\r\n";
constexpr std::string_view kTokenSymbols = "!#$%&'*+-.^_`|~";

bool is_letter_or_digit(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return is_letter_or_digit(c) || kTokenSymbols.find(c) != std::string_view::npos;
  });
}

// Without spaces, controls and bytes beyond ASCII.
bool is_visible(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char left, char right) { return to_lower(left) == to_lower(right); });
}

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

ParsedRequest refused(int status, std::string problem) {
  return {.request = std::nullopt, .status = status, .problem = std::move(problem)};
}

// The part before the next `separator`, which is taken off `text` with it.
std::string_view take(std::string_view* text, std::string_view separator) {
  const size_t end = text->find(separator);
  const std::string_view part = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + separator.size());
  return part;
}

ParsedRequest parse_head(std::string_view head) {
  std::string_view line = take(&head, "\r\n");
  HttpRequest request;
  request.method = take(&line, " ");
  const std::string_view target = take(&line, " ");
  if (!is_token(request.method) || (line != "HTTP/1.0" && line != "HTTP/1.1")) {
    return refused(400, "the first line is not METHOD PATH HTTP/1.1");
  }
  if (!target.starts_with('/') || !is_visible(target)) return refused(400, "the target is not a path");
  request.path = target.substr(0, target.find('?'));
  bool host_seen = false;
  while (!head.empty()) {
    std::string_view field = take(&head, "\r\n");
    if (field.find(':') == std::string_view::npos) return refused(400, "a header line has no colon");
    const std::string_view name = take(&field, ":");
    const std::string_view value = trimmed(field);
    if (!is_token(name)) return refused(400, "a header field has no proper name");
    if (std::any_of(value.begin(), value.end(), [](char c) { return c == '\r' || c == '\n' || c == '\0'; })) {
      return refused(400, "a header field holds a control character");
    }
    if (!equal_without_case(name, "host")) continue;
    if (host_seen) return refused(400, "the header field Host comes twice");
    host_seen = true;
    request.host = value;
  }
  return {.request = std::move(request), .status = 200, .problem = ""};
}

}  // namespace

std::optional<ParsedRequest> parse_request(std::string_view received) {
  const size_t end = received.substr(0, kMostRequestBytes).find(kEnd);
  if (end != std::string_view::npos) return parse_head(received.substr(0, end));
  if (received.size() < kMostRequestBytes) return std::nullopt;
  const bool in_first_line = received.find("\r\n") == std::string_view::npos;
  return refused(in_first_line ? 414 : 431,
                 fmt::format("the request line and the header fields have over {} bytes", kMostRequestBytes));
}

}  // namespace allot::aggregator
