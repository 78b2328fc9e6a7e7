// A matcher of messages by what they name, so that a test holds whatever words stand around the values.
// Without fmt, for tests that see the one of LibTorch; others include tests/names.h.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ascii.h"

namespace allot {

// How often `value` stands in `text` as a whole token: not within a longer number, word, option or dotted
// name. Both "3" in "13", "-3" or "3.5" and "--total" in "--total-tokens" are such parts; "3" in "[3, 4]" and
// the end of a sentence are none.
inline size_t count_tokens(std::string_view text, std::string_view value) {
  if (value.empty()) return 0;
  const auto is_word = [](char c) { return is_digit(c) || is_letter(c) || c == '_'; };
  const auto is_token = [&](char c) { return is_word(c) || c == '-' || c == '.'; };
  const auto goes_on_before = [&](size_t begin) {
    return is_token(value.front()) && begin > 0 && is_token(text[begin - 1]);
  };
  // A dot or hyphen ends a token unless a word follows it.
  const auto goes_on_after = [&](size_t end) {
    if (!is_token(value.back()) || end == text.size()) return false;
    return is_word(text[end]) || (is_token(text[end]) && end + 1 < text.size() && is_word(text[end + 1]));
  };
  size_t count = 0;
  for (size_t at = text.find(value); at != text.npos; at = text.find(value, at + 1)) {
    count += !goes_on_before(at) && !goes_on_after(at + value.size());
  }
  return count;
}

// Matches a text with each of the values as a whole token, in any order. A value given twice must be there
// twice.
class NamesMatcher {
 public:
  using is_gtest_matcher = void;

  explicit NamesMatcher(std::vector<std::string> values) : values_(std::move(values)) {}

  bool MatchAndExplain(std::string_view text, std::ostream* out) const {
    if (values_.empty()) return false;  // a list that was left empty proves nothing
    bool all = true;
    for (auto value = values_.begin(); value != values_.end(); ++value) {
      const auto wanted = 1 + std::count(values_.begin(), value, *value);
      if (count_tokens(text, *value) >= static_cast<size_t>(wanted)) continue;
      if (out) *out << (all ? "which does not name " : " nor ") << quoted(*value);
      if (out && wanted > 1) *out << " " << wanted << " times";
      all = false;
    }
    return all;
  }
  void DescribeTo(std::ostream* out) const { *out << "names " << list(); }
  void DescribeNegationTo(std::ostream* out) const { *out << "does not name all of " << list(); }

 private:
  static std::string quoted(const std::string& value) { return "\"" + value + "\""; }
  std::string list() const {
    std::string text;
    for (const std::string& value : values_) text += (text.empty() ? "" : ", ") + quoted(value);
    return text;
  }
  std::vector<std::string> values_;
};

// Of a list that a table of cases keeps.
inline NamesMatcher NamesAll(std::vector<std::string> values) {
  return NamesMatcher(std::move(values));
}

}  // namespace allot
