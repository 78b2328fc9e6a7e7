#include "model/piece_scanner.h"

#include <array>
#include <cstdint>

#include "model/character_class.h"
#include "model/utf8.h"

namespace allot::model {
namespace {

constexpr std::array<CharacterClass, 0x80> kAscii = [] {
  std::array<CharacterClass, 0x80> classes{};
  for (char c = 'a'; c <= 'z'; ++c) classes[static_cast<size_t>(c)] = CharacterClass::kLetter;
  for (char c = 'A'; c <= 'Z'; ++c) classes[static_cast<size_t>(c)] = CharacterClass::kLetter;
  for (char c = '0'; c <= '9'; ++c) classes[static_cast<size_t>(c)] = CharacterClass::kNumber;
  for (const char c : {' ', '\t', '\v', '\f'}) classes[static_cast<size_t>(c)] = CharacterClass::kSpace;
  for (const char c : {'\r', '\n'}) classes[static_cast<size_t>(c)] = CharacterClass::kNewline;
  return classes;
}();

// Scans a text. Each function that is named after a part of the pattern returns where its match ends.
class Cursor {
 public:
  Cursor(std::string_view text, const CharacterClasses& classes) : text_(text), classes_(classes) {}

  // End of the piece that begins at `at`, which is before the text's end.
  size_t piece_end(size_t at, size_t max_digits) const {
    const Character first = character(at);
    const size_t next = at + first.bytes;
    if (first.kind == CharacterClass::kLetter) return letters(next);
    if (first.kind == CharacterClass::kNumber) return numbers(next, max_digits - 1);
    if (text_[at] == '\'') {
      if (const size_t bytes = contraction(next)) return next + bytes;
    }
    if (first.kind != CharacterClass::kNewline && starts(CharacterClass::kLetter, next)) return letters(next);
    if (first.kind == CharacterClass::kOther) return others(next);
    if (text_[at] == ' ' && starts(CharacterClass::kOther, next)) return others(next);
    return whitespace(at);
  }

 private:
  struct Character {
    CharacterClass kind;
    size_t bytes;
  };

  Character character(size_t at) const {
    if (const auto byte = static_cast<uint8_t>(text_[at]); byte < kAscii.size()) return {kAscii[byte], 1};
    const size_t bytes = utf8_bytes(text_[at]);
    return {classes_.of(utf8_decode(text_.substr(at, bytes))), bytes};
  }

  bool starts(CharacterClass kind, size_t at) const {
    return at < text_.size() && character(at).kind == kind;
  }

  size_t run(CharacterClass kind, size_t at) const {
    while (at < text_.size()) {
      const Character c = character(at);
      if (c.kind != kind) break;
      at += c.bytes;
    }
    return at;
  }

  // \p{L}*
  size_t letters(size_t at) const { return run(CharacterClass::kLetter, at); }

  // \p{N}{0,most}
  size_t numbers(size_t at, size_t most) const {
    for (; most > 0 && starts(CharacterClass::kNumber, at); --most) at += utf8_bytes(text_[at]);
    return at;
  }

  // [^\s\p{L}\p{N}]*[\r\n]*
  size_t others(size_t at) const { return run(CharacterClass::kNewline, run(CharacterClass::kOther, at)); }

  // \s*[\r\n]+|\s+(?!\S)|\s+ on the run of whitespace at `at`: up to its last line break; without
  // one, all of it where the text ends, else all but its last character, which belongs to the next piece.
  size_t whitespace(size_t at) const {
    size_t last = at;
    size_t end = at;
    std::optional<size_t> newline_end;
    while (end < text_.size()) {
      const Character c = character(end);
      if (c.kind != CharacterClass::kSpace && c.kind != CharacterClass::kNewline) break;
      last = end;
      end += c.bytes;
      if (c.kind == CharacterClass::kNewline) newline_end = end;
    }
    if (newline_end) return *newline_end;
    return end == text_.size() || last == at ? end : last;
  }

  // Bytes of s, t, re, ve, m, ll or d at `at` in any case, or 0. The long s folds to s.
  size_t contraction(size_t at) const {
    const std::string_view rest = text_.substr(at, 2);
    if (rest.empty()) return 0;
    if (rest == "\u017F") return rest.size();
    const char first = lower(rest[0]);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 1;
    const char second = rest.size() == 2 ? lower(rest[1]) : '\0';
    const bool known = ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
    return known ? 2 : 0;
  }

  static char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

  std::string_view text_;
  const CharacterClasses& classes_;
};

}  // namespace

PieceScanner::PieceScanner(size_t max_digits) : max_digits_(max_digits), classes_(&CharacterClasses::get()) {}

std::optional<PieceScanner> PieceScanner::of(std::string_view pattern) {
  if (pattern == kLlama3Pattern) return PieceScanner(3);
  if (pattern == kQwen2Pattern) return PieceScanner(1);
  return std::nullopt;
}

void PieceScanner::split(std::string_view text, std::vector<std::string_view>* pieces) const {
  const Cursor cursor(text, *classes_);
  for (size_t at = 0; at < text.size();) {
    const size_t end = cursor.piece_end(at, max_digits_);
    pieces->push_back(text.substr(at, end - at));
    at = end;
  }
}

}  // namespace allot::model
