// Tokens that tokenizer.json adds to its model's vocabulary; they are found in the text before anything
// else cuts it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/vocabulary.h"

namespace allot::model {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // includes the whitespace before it
  bool rstrip = false;       // includes the whitespace after it
  bool normalized = true;    // searched for in normalized text
  bool special = false;      // left out when decoding without special tokens
};

// Finds added tokens: the leftmost first, and the longest of those that start at the same position.
class AddedTokenFinder {
 public:
  // `text` is the text to search for: the token's content, or its normalized form.
  void add(const AddedToken& token, const std::string& text);

  // Calls on_text(std::string_view) for each stretch without added tokens and on_token(id) for each added
  // token, in the order of the text.
  template <typename OnText, typename OnToken>
  void scan(std::string_view text, OnText on_text, OnToken on_token) const {
    size_t covered = 0;
    for (size_t at = next_start(text, 0); at < text.size(); at = next_start(text, at)) {
      const Pattern* pattern = longest_of(text.substr(at));
      if (pattern == nullptr) {
        ++at;
        continue;
      }
      const size_t end = at + pattern->text.size();
      if (!pattern->token.single_word || stands_alone(text, at, end)) {
        const auto [begin, taken_to] = with_whitespace(text, at, end, covered, pattern->token);
        if (covered < begin) on_text(text.substr(covered, begin - covered));
        on_token(pattern->token.id);
        covered = taken_to;
      }
      at = end;
    }
    if (covered < text.size()) on_text(text.substr(covered));
  }

 private:
  struct Pattern {
    std::string text;
    AddedToken token;
  };
  struct Taken {
    size_t begin = 0;
    size_t end = 0;
  };

  // The first position from `at` on whose byte starts a pattern, or the text's end.
  size_t next_start(std::string_view text, size_t at) const;
  // The longest of the patterns that `text` starts with.
  const Pattern* longest_of(std::string_view text) const;
  static bool stands_alone(std::string_view text, size_t begin, size_t end);
  static Taken with_whitespace(std::string_view text, size_t begin, size_t end, size_t covered,
                               const AddedToken& token);

  std::vector<Pattern> patterns_;
  std::string first_bytes_;  // each once
  TokenMap index_;           // text -> index in patterns_
  // The patterns with one first byte.
  struct Group {
    std::string common;           // what all of them start with
    std::vector<size_t> lengths;  // longest first
  };
  std::array<Group, 256> groups_;
};

}  // namespace allot::model
