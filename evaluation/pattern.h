// A regular expression from a task file (PCRE2's dialect), looked for in replies, which nobody vouches for:
// every search has a limit on its steps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace allot::evaluation {

// A search took more steps than kMostPatternSteps, or a text has more than kMostMatches matches.
class PatternLimit : public Error {
 public:
  using Error::Error;
};

// Steps of PCRE2's matcher in one search: a pattern without nested repetition needs a few for a character,
// one that repeats a repetition can need more than the age of the world.
inline constexpr uint32_t kMostPatternSteps = 1'000'000;
inline constexpr int kMostMatches = 10'000;

class Pattern {
 public:
  // Texts are UTF-8; bytes that are not match nothing. ^ and $ are the ends of the text, (?m) makes them
  // those of lines. Throws InvalidArgument naming the place in the pattern that is not understood.
  explicit Pattern(std::string text);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // Group 1 of the first match or of the last one, the whole match where the pattern has no group; nothing
  // when there is no match or the group takes no part in it. Throws PatternLimit. Deterministic.
  std::optional<std::string_view> first(std::string_view text) const;
  std::optional<std::string_view> last(std::string_view text) const;

 private:
  struct Code;
  std::string text_;
  std::unique_ptr<Code> code_;
};

}  // namespace allot::evaluation
