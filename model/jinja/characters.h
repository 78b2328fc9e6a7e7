// Texts as Python's str: code points of UTF-8; white space is in model/utf8.h. Texts are valid UTF-8.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/utf8.h"

namespace allot::model::jinja {

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

}  // namespace allot::model::jinja
