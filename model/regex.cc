#include "model/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cctype>
#include <cstdint>
#include <utility>

#include "base/error.h"
#include "model/unicode_16.h"

namespace allot::model {
namespace {

PCRE2_SPTR as_pcre2(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

std::string error_text(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

// Rewrites a pattern from Oniguruma's dialect to PCRE2's, in one pass.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\')
        escape();
      else if (in_class_)
        inside_class(c);
      else if (c == '[')
        open_class();
      else if (c == '(')
        group();
      else
        copy(1);
    }
    return std::move(result_);
  }

 private:
  static constexpr std::string_view kHex = "0-9A-Fa-f";

  // As Oniguruma's tables have it: outside a class its \w also takes the superscripts and
  // fractions of Latin-1.
  static std::string word(bool in_class) {
    return Regex::word_members().append(in_class ? "" : R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE})");
  }

  // A general category, with the members that PCRE2 lacks added.
  static std::string category(std::string_view name, bool negated = false) {
    std::string members = negated ? R"(\P{)" : R"(\p{)";
    members.append(name).append("}");
    if (negated) return members;
    static constexpr std::pair<std::string_view, std::string_view> kNew[] = {
        {"L", kNewLetters},       {"Lu", kNewUppercase},  {"Ll", kNewLowercase}, {"Lm", kNewModifiers},
        {"Lo", kNewOtherLetters}, {"M", kNewMarks},       {"N", kNewDecimals},   {"N", kNewOtherNumbers},
        {"Nd", kNewDecimals},     {"P", kNewPunctuation}, {"S", kNewSymbols}};
    for (const auto& [category, added] : kNew) {
      if (name == category) members += added;
    }
    return members;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    throw Unsupported("the pattern " + std::string(pattern_) + " has " + what + " at byte " +
                      std::to_string(at_) + ", which is not supported");
  }

  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

  void copy(size_t bytes) {
    result_ += pattern_.substr(at_, bytes);
    at_ += bytes;
  }

  void replace(size_t bytes, std::string_view by) {
    result_ += by;
    at_ += bytes;
  }

  void open_class() {
    in_class_ = true;
    copy(next_is("[^") ? 2 : 1);
    if (next_is("]")) refuse("a class that starts with ]");
  }

  void inside_class(char c) {
    if (c == '[') refuse("a class inside a class");
    if (next_is("&&")) refuse("an intersection of classes");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void group() {
    if (next_is("(*")) refuse("a verb");
    if (next_is("(?")) {
      static constexpr std::string_view kKnown[] = {
          "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:"};
      bool known = at_ == 0 && next_is("(?i)");
      for (const std::string_view start : kKnown) known = known || next_is(start);
      if (!known) refuse("the group " + std::string(pattern_.substr(at_, 4)));
    }
    copy(1);
  }

  void escape() {
    if (at_ + 1 == pattern_.size()) refuse("a lone backslash");
    const char c = pattern_[at_ + 1];
    switch (c) {
      case 's':
        return replace(2, R"(\p{White_Space})");
      case 'S':
        return replace(2, R"(\P{White_Space})");
      case 'w':
        return character_set(word(in_class_), false);
      case 'W':
        return character_set(word(false), true);
      case 'h':
        return character_set(kHex, false);
      case 'H':
        return character_set(kHex, true);
      case 'v':
        return replace(2, R"(\x0B)");
      case 'b':
        if (in_class_) return replace(2, R"(\x08)");
        return word_boundary();
      case 'p':
      case 'P':
        return property();
      case 'u':
        return code_point();
      case 'x':
        return hexadecimal();
      case 'd':
        return character_set(category("Nd"), false);
      case 'D':
        if (in_class_) return copy(2);  // is a negated property
        return character_set(category("Nd"), true);
      case 't':
      case 'n':
      case 'r':
      case 'f':
        return copy(2);
      case 'A':
      case 'z':
      case 'Z':
        if (!in_class_) return copy(2);
        break;
      default:
        if (std::ispunct(static_cast<unsigned char>(c)) != 0 || c == ' ') return copy(2);
    }
    refuse(std::string("the escape \\") + c);
  }

  void character_set(std::string_view members, bool negated) {
    if (in_class_ && negated) refuse(std::string("the escape \\") + pattern_[at_ + 1] + " in a class");
    if (in_class_) return replace(2, members);
    replace(2, (negated ? "[^" : "[") + std::string(members) + "]");
  }

  void word_boundary() {
    const std::string set = std::string("[").append(word(false)).append("]");
    replace(2, "(?:(?<=" + set + ")(?!" + set + ")|(?<!" + set + ")(?=" + set + "))");
  }

  // \p{L}, \p{Lu}, \p{^L}, \p{Han}. Categories have names of at most two letters; longer names are scripts.
  void property() {
    const size_t close = pattern_.find('}', at_);
    if (at_ + 2 >= pattern_.size() || pattern_[at_ + 2] != '{' || close == std::string_view::npos) {
      refuse("a property without braces");
    }
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    bool negated = pattern_[at_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    const size_t bytes = close + 1 - at_;
    if (name.size() > 2) {
      replace(bytes, std::string(negated ? R"(\P{sc:)" : R"(\p{sc:)").append(name).append("}"));
    } else if (in_class_) {
      replace(bytes, category(name, negated));  // negated: a class cannot take the new members out
    } else {
      replace(bytes, std::string(negated ? "[^" : "[").append(category(name)).append("]"));
    }
  }

  void code_point() {  // \uHHHH
    const std::string_view digits = pattern_.substr(at_ + 2, 4);
    if (digits.size() != 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse("\\u without four hexadecimal digits");
    }
    replace(6, R"(\x{)" + std::string(digits) + "}");
  }

  void hexadecimal() {  // \x{H...} is a code point; \xHH is a byte, the same only below 0x80
    const std::string_view rest = pattern_.substr(at_ + 2);
    if (!rest.starts_with('{') && (rest.size() < 2 || rest[0] < '0' || rest[0] > '7')) {
      refuse("\\x that is not a code point below 0x80 or in braces");
    }
    copy(2);
  }

  std::string_view pattern_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string result_;
};

}  // namespace

struct Regex::Code {
  pcre2_code* code = nullptr;
  std::string pattern;

  // `shown` is what messages call the pattern: a translated one is not what the file says.
  Code(std::string_view source, uint32_t options, std::string_view shown) : pattern(shown) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code = pcre2_compile(as_pcre2(source), source.size(), options, &error, &offset, nullptr);
    if (code == nullptr) {
      throw Unsupported("the pattern " + pattern + " is not supported: " + error_text(error));
    }
    // Where no executable memory is available, the interpreter gives the same matches, only slower.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

struct Regex::Scratch::Data {
  // Only the whole match is asked for, so one pair of offsets serves every pattern.
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);

  Data() = default;
  Data(const Data&) = delete;
  Data& operator=(const Data&) = delete;
  ~Data() { pcre2_match_data_free(match); }
};

Regex::Scratch::Scratch() : data_(std::make_unique<Data>()) {}
Regex::Scratch::~Scratch() = default;

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

// Oniguruma's ^ and $ always work on lines, hence PCRE2_MULTILINE.
Regex Regex::from_oniguruma(std::string_view pattern) {
  return Regex(
      std::make_unique<Code>(Translator(pattern).run(), PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, pattern));
}

std::string Regex::word_members() {
  return R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})" + std::string(kNewLetters) + std::string(kNewMarks) +
         std::string(kNewDecimals);
}

Regex Regex::from_literal(std::string_view text) {
  return Regex(std::make_unique<Code>(text, PCRE2_UTF | PCRE2_LITERAL, text));
}

Regex Regex::from_pcre2(std::string_view pattern) {
  return Regex(std::make_unique<Code>(pattern, PCRE2_UTF | PCRE2_UCP, pattern));
}

std::optional<TextRange> Regex::find(std::string_view subject, size_t from, Scratch& scratch) const {
  pcre2_match_data* match = scratch.data_->match;
  const int result =
      pcre2_match(code_->code, as_pcre2(subject), subject.size(), from, PCRE2_NO_UTF_CHECK, match, nullptr);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    throw InvalidArgument("matching the pattern " + code_->pattern + " from byte " + std::to_string(from) +
                          " of a text of " + std::to_string(subject.size()) +
                          " bytes failed: " + error_text(result));
  }
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(match);
  return TextRange{offsets[0], offsets[1]};
}

}  // namespace allot::model
