// Views of parts of a text, for finding answers in replies.
#pragma once

#include <string_view>

namespace allot::evaluation {

// ASCII only, whatever the process's locale.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// `text` without white space at both ends.
constexpr std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The last line that holds more than white space, trimmed; empty when there is none.
constexpr std::string_view last_line(std::string_view text) {
  text = trim(text);
  return trim(text.substr(text.find_last_of('\n') + 1));
}

}  // namespace allot::evaluation
