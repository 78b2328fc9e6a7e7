// Regular expressions of tokenizer.json on PCRE2, with its just-in-time compiler.
//
// The `tokenizers` package runs them on Oniguruma, whose dialect differs in places: \s, \w, \h and \v mean
// other sets, ^ and $ match at every line, \p{Han} is a script without its extensions. Patterns are
// translated; a pattern without a faithful translation is refused. Unicode tables are PCRE2's (Unicode 14 in
// version 10.42); what Unicode 16, which the package uses, added to \p{L} and its kinds (\p{Lu} and so on),
// \p{M}, \p{N}, \p{Nd}, \p{P}, \p{S}, \d and \w is added to translated patterns, except where a class
// contains one of them negated. In other properties (\p{Mn}, scripts) such code points count as unassigned.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace allot::model {

struct TextRange {
  size_t begin = 0;
  size_t end = 0;
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

class Regex {
 public:
  // A pattern in Oniguruma's dialect. Throws Unsupported naming the pattern and what in it is not supported.
  static Regex from_oniguruma(std::string_view pattern);
  // Matches exactly this text.
  static Regex from_literal(std::string_view text);
  // A pattern in PCRE2's own dialect.
  static Regex from_pcre2(std::string_view pattern);

  // The members of Unicode's \w (UTS 18) but for Join_Control, in the notation of PCRE2's classes.
  static std::string word_members();

  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // Memory for a match; one for each thread, usable with every Regex.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Regex;
    struct Data;
    std::unique_ptr<Data> data_;
  };

  // The first match that starts at `from` or later in `subject`, which must be UTF-8. Throws InvalidArgument
  // when the matcher gives up (its limit of backtracking steps).
  std::optional<TextRange> find(std::string_view subject, size_t from, Scratch& scratch) const;

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace allot::model
