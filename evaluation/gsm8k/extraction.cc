#include "evaluation/gsm8k/extraction.h"

#include <algorithm>
#include <array>

#include "evaluation/gsm8k/latex.h"
#include "evaluation/gsm8k/number.h"
#include "evaluation/text.h"

namespace allot::evaluation::gsm8k {
namespace {

constexpr size_t kNone = std::string_view::npos;
constexpr std::string_view kMinusSign = "\u2212";

// The text after the marker at `at`, up to the line's end.
std::string_view after_marker(std::string_view text, size_t at) {
  text.remove_prefix(at + kMarker.size());
  return trim(text.substr(0, text.find('\n')));
}

// The end of `reply`: about `bytes` long, and starting at a word, so that "1234" is never cut to "34".
std::string_view tail(std::string_view reply, size_t bytes) {
  reply = trim(reply);
  if (reply.size() <= bytes) return reply;
  size_t start = reply.size() - bytes;
  while (start < reply.size() && !is_space(reply[start - 1])) ++start;
  return reply.substr(start);
}

// The end of a sentence: the text after its last "=", ":", "is" or "are", else the whole sentence.
std::string_view statement(std::string_view line) {
  constexpr std::array<std::string_view, 4> kVerbs = {"=", ":", " is ", " are "};
  size_t start = 0;
  for (const std::string_view verb : kVerbs)
    if (const size_t at = line.rfind(verb); at != kNone) start = std::max(start, at + verb.size());
  return trim(line.substr(start));
}

// The first number in `text`. Digits that are part of a word ("R2"), of something malformed ("12.3.4", "1,2")
// or of a notation that is not accepted ("1e3") are skipped as a whole.
std::optional<std::string_view> first_number(std::string_view text) {
  const auto in_number = [](char c) {
    return is_digit(c) || is_letter(c) || c == ',' || c == '.' || c == '/';
  };
  for (size_t i = 0; i < text.size();) {
    if (!is_digit(text[i]) && !is_letter(text[i])) {
      ++i;
      continue;
    }
    size_t start = i;
    while (i < text.size() && in_number(text[i])) ++i;
    size_t end = i;
    while (!is_digit(text[end - 1]) && !is_letter(text[end - 1])) --end;
    if (!is_digit(text[start])) continue;
    if (start > 0 && text[start - 1] == '.') --start;  // ".5"
    std::string_view before = text.substr(0, start);
    if (before.ends_with('$')) before.remove_suffix(before.ends_with("\\$") ? 2 : 1);
    const bool minus = before.ends_with('-') || before.ends_with(kMinusSign);
    if (minus) {
      before.remove_suffix(before.ends_with('-') ? 1 : kMinusSign.size());
      // A hyphen inside "2019-20" or "item-5" is not a minus.
      if (before.empty() || (!is_digit(before.back()) && !is_letter(before.back()))) start = before.size();
    }
    if (text.substr(end).starts_with('%'))
      end += 1;
    else if (text.substr(end).starts_with("\\%"))
      end += 2;
    const std::string_view number = text.substr(start, end - start);
    if (parse_number(number)) return number;
  }
  return std::nullopt;
}

// The last `count` words of `text`, as one view.
std::string_view last_words(std::string_view text, size_t count) {
  text = trim(text);
  size_t start = text.size();
  while (start > 0) {
    while (start > 0 && !is_space(text[start - 1])) --start;
    if (--count == 0) break;
    while (start > 0 && is_space(text[start - 1])) --start;
  }
  return text.substr(start);
}

}  // namespace

std::optional<std::string_view> boxed_answer(std::string_view reply) {
  if (const std::optional<std::string_view> boxed = last_boxed(reply)) return trim(*boxed);
  const std::string_view end = tail(reply, kTailBytes);
  if (const size_t marker = end.rfind(kMarker); marker != kNone) return after_marker(end, marker);
  const std::string_view line = last_line(end);
  if (parse_number(line)) return line;
  const std::string_view stated = statement(line);
  return parse_number(stated) ? std::optional(stated) : std::nullopt;
}

std::optional<std::string_view> last_line_answer(std::string_view reply) {
  if (const std::optional<std::string_view> number = first_number(last_line(reply))) return number;
  return first_number(last_words(reply, kTailTokens));
}

std::optional<std::string_view> marked_answer(std::string_view reply) {
  const size_t marker = reply.find(kMarker);
  return marker == kNone ? std::nullopt : std::optional(after_marker(reply, marker));
}

}  // namespace allot::evaluation::gsm8k
