// Texts as Python's str: code points of UTF-8, white space of Unicode. Texts are valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/utf8.h"

namespace allot::model::jinja {

// str.isspace() of Python.
constexpr bool is_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Views of the characters of `text`.
inline std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> views;
  while (!text.empty()) {
    views.push_back(text.substr(0, utf8_bytes(text.front())));
    text.remove_prefix(views.back().size());
  }
  return views;
}

inline size_t count_characters(std::string_view text) noexcept {
  size_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

// `text` without white space at its start, its end, or both.
inline std::string_view strip_start(std::string_view text) {
  while (!text.empty() && is_space(utf8_decode(text.substr(0, utf8_bytes(text.front())))))
    text.remove_prefix(utf8_bytes(text.front()));
  return text;
}
inline std::string_view strip_end(std::string_view text) {
  while (!text.empty() && is_space(utf8_decode(utf8_last(text)))) text.remove_suffix(utf8_last(text).size());
  return text;
}
inline std::string_view strip(std::string_view text) {
  return strip_end(strip_start(text));
}

}  // namespace allot::model::jinja
