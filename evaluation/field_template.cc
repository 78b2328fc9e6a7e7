#include "evaluation/field_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"

namespace allot::evaluation {

bool is_field_name(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) && std::ranges::all_of(text, [](char c) {
    return is_letter(c) || is_digit(c) || c == '_' || c == '-';
  });
}

FieldTemplate::FieldTemplate(std::string_view text) {
  std::string plain;
  const auto end_plain = [&] {
    if (!plain.empty()) pieces_.push_back({.field = false, .text = std::exchange(plain, {})});
  };
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c != '{' && c != '}') {
      plain += c;
      continue;
    }
    if (at + 1 < text.size() && text[at + 1] == c) {
      plain += c;
      ++at;
      continue;
    }
    const size_t end = c == '{' ? text.find('}', at) : std::string_view::npos;
    const std::string field(end == std::string_view::npos ? "" : text.substr(at + 1, end - at - 1));
    if (!is_field_name(field))
      throw InvalidArgument(fmt::format(
          "has a '{}' at byte {} that is no {{field}}; write '{}{}' for the character itself", c, at, c, c));
    end_plain();
    pieces_.push_back({.field = true, .text = field});
    at = end;
  }
  end_plain();
}

std::vector<std::string> FieldTemplate::fields() const {
  std::vector<std::string> names;
  for (const Piece& piece : pieces_)
    if (piece.field && std::ranges::find(names, piece.text) == names.end()) names.push_back(piece.text);
  return names;
}

std::string FieldTemplate::expand(
    const std::function<std::string_view(const std::string& field)>& text_of) const {
  std::string text;
  for (const Piece& piece : pieces_) text += piece.field ? text_of(piece.text) : std::string_view(piece.text);
  return text;
}

}  // namespace allot::evaluation
