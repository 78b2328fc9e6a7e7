// UTF-8: checking, cutting into characters, repairing; white space as Python's str has it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace allot::model {

// The first part of `text`, which must not be empty: a whole character, or the longest start of one that the
// Unicode standard replaces by a single U+FFFD.
struct Utf8Step {
  size_t bytes = 0;
  bool valid = false;
};
Utf8Step utf8_step(std::string_view text) noexcept;

// Offset of the first byte that is not UTF-8.
std::optional<size_t> find_invalid_utf8(std::string_view text) noexcept;

// `text` with every invalid part replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);

// Bytes of the character that starts with `lead`, in text known to be valid.
constexpr size_t utf8_bytes(char lead) noexcept {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Whether valid text is one character.
constexpr bool is_one_character(std::string_view text) noexcept {
  return !text.empty() && utf8_bytes(text.front()) == text.size();
}

// The code point of a valid character, and the reverse.
constexpr char32_t utf8_decode(std::string_view character) noexcept {
  const auto lead = static_cast<unsigned char>(character[0]);
  const auto tail = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(character[i]) & 0x3F);
  };
  switch (character.size()) {
    case 1:
      return lead;
    case 2:
      return (lead & char32_t{0x1F}) << 6 | tail(1);
    case 3:
      return (lead & char32_t{0x0F}) << 12 | tail(1) << 6 | tail(2);
    default:
      return (lead & char32_t{0x07}) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3);
  }
}
std::string utf8_encode(char32_t code_point);

// The last character of valid text; empty for empty text.
std::string_view utf8_last(std::string_view text) noexcept;

// str.isspace() of Python.
constexpr bool is_wide_space(char32_t c) noexcept {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Valid `text` without such white space at its start, its end, or both.
inline std::string_view strip_start(std::string_view text) {
  while (!text.empty() && is_wide_space(utf8_decode(text.substr(0, utf8_bytes(text.front())))))
    text.remove_prefix(utf8_bytes(text.front()));
  return text;
}
inline std::string_view strip_end(std::string_view text) {
  while (!text.empty() && is_wide_space(utf8_decode(utf8_last(text))))
    text.remove_suffix(utf8_last(text).size());
  return text;
}
inline std::string_view strip(std::string_view text) {
  return strip_end(strip_start(text));
}

}  // namespace allot::model
