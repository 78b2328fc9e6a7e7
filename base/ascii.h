// Characters and texts as ASCII, whatever the process's locale.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace allot {

// Blanks, tabs and ends of lines.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}
constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

constexpr char to_lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
inline std::string to_lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = to_lower(c);
  return lower;
}

// `text` without white space at both ends.
constexpr std::string_view trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The entries of a list such as "a,b,c": one more than it has commas, and any of them may be empty.
inline std::vector<std::string_view> entries_of(std::string_view list) {
  std::vector<std::string_view> entries;
  for (size_t comma = list.find(','); comma != std::string_view::npos; comma = list.find(',')) {
    entries.push_back(list.substr(0, comma));
    list.remove_prefix(comma + 1);
  }
  entries.push_back(list);
  return entries;
}

}  // namespace allot
