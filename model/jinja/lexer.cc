#include <spdlog/fmt/fmt.h>

#include <charconv>
#include <optional>

#include "base/ascii.h"
#include "model/jinja/characters.h"
#include "model/jinja/syntax.h"

namespace allot::model::jinja {
namespace {

constexpr bool is_name_start(char c) {
  return is_letter(c) || c == '_';
}

// Line ends as \n, and without the last one, as Jinja reads a template.
std::string normalised(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalised(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) {
      if (const auto tag = outside()) inside(*tag);
    }
    add(Token::Kind::kEnd, "", position_);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void refuse(std::string message) const {
    fail_at(position_, Fault::Kind::kError, std::move(message));
  }

  void add(Token::Kind kind, std::string text, Position position) {
    tokens_.push_back({.kind = kind, .text = std::move(text), .constant = {}, .position = position});
  }

  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool ahead(std::string_view text) const { return rest().starts_with(text); }

  std::string_view advance(size_t bytes) {
    const std::string_view passed = std::string_view(source_).substr(at_, bytes);
    for (const char byte : passed) {
      if (byte == '\n') {
        position_ = {position_.line + 1, 1};
      } else if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) {
        ++position_.column;
      }
    }
    at_ += bytes;
    return passed;
  }

  void skip_space() {
    while (at_ < source_.size() && is_wide_space(utf8_decode(rest().substr(0, utf8_bytes(source_[at_])))))
      advance(utf8_bytes(source_[at_]));
  }

  // Text up to the next tag, comment or end. The kind of tag that begins; nothing for the others.
  std::optional<Token::Kind> outside() {
    const Position begin = position_;
    const bool line_starts = at_ == 0 || source_[at_ - 1] == '\n';
    size_t tag = at_;
    do {
      tag = source_.find('{', tag);
      if (tag == std::string::npos) break;
      if (tag + 1 < source_.size() && std::string_view("{%#").find(source_[tag + 1]) != std::string::npos)
        break;
      ++tag;
    } while (true);
    std::string_view text = advance(std::min(tag, source_.size()) - at_);
    if (tag == std::string::npos) {
      if (!text.empty()) add(Token::Kind::kText, std::string(text), begin);
      return std::nullopt;
    }
    const Position place = position_;
    const char mark = source_[tag + 1];
    advance(2);
    if (ahead("-")) {
      text = strip_end(text);
      advance(1);
    } else if (ahead("+")) {
      advance(1);
    } else if (mark != '{') {  // lstrip_blocks
      const size_t line = text.rfind('\n') + 1;
      if ((line > 0 || line_starts) && strip(text.substr(line)).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) add(Token::Kind::kText, std::string(text), begin);
    if (mark == '#') {
      comment(place);
      return std::nullopt;
    }
    add(mark == '{' ? Token::Kind::kPrintBegin : Token::Kind::kTagBegin, "", place);
    return mark == '{' ? Token::Kind::kPrintEnd : Token::Kind::kTagEnd;
  }

  // Behind the end of a tag: what its sign says, else trim_blocks.
  void behind(char sign, bool trims) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && trims && ahead("\n")) {
      advance(1);
    }
  }

  void comment(Position begin) {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) fail_at(begin, Fault::Kind::kError, "a comment has no end");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    advance(end + 2 - at_);
    behind(sign, true);
  }

  // Tokens up to the end of the tag.
  void inside(Token::Kind end) {
    const Position begin = tokens_.back().position;
    const std::string_view close = end == Token::Kind::kPrintEnd ? "}}" : "%}";
    std::string open;  // brackets
    while (true) {
      skip_space();
      if (at_ >= source_.size()) fail_at(begin, Fault::Kind::kError, "a tag has no end");
      if (open.empty()) {
        const char sign = ahead("-") || (ahead("+") && close == "%}") ? source_[at_] : ' ';
        const size_t skipped = sign == ' ' ? 0 : 1;
        if (rest().substr(skipped).starts_with(close)) {
          add(end, "", position_);
          advance(skipped + 2);
          behind(sign, close == "%}");
          return;
        }
      }
      token(&open);
    }
  }

  void token(std::string* open) {
    const Position place = position_;
    const char c = source_[at_];
    if (is_name_start(c)) {
      size_t bytes = 1;
      while (at_ + bytes < source_.size() &&
             (is_name_start(source_[at_ + bytes]) || is_digit(source_[at_ + bytes])))
        ++bytes;
      add(Token::Kind::kName, std::string(advance(bytes)), place);
    } else if (is_digit(c)) {
      number();
    } else if (c == '"' || c == '\'') {
      text();
    } else {
      op(open);
    }
  }

  void constant(Value value, Position place) {
    tokens_.push_back(
        {.kind = Token::Kind::kConstant, .text = "", .constant = std::move(value), .position = place});
  }

  void number() {
    const Position place = position_;
    const std::string_view all = rest();
    size_t bytes = 0;
    const auto digits = [&] {
      const size_t from = bytes;
      while (bytes < all.size() && is_digit(all[bytes])) ++bytes;
      return bytes > from;
    };
    digits();
    bool real = false;
    // Behind a dot that is an index ("a.0.1"), there is no fraction.
    const bool index =
        !tokens_.empty() && tokens_.back().kind == Token::Kind::kOperator && tokens_.back().text == ".";
    if (!index && bytes + 1 < all.size() && all[bytes] == '.' && is_digit(all[bytes + 1])) {
      real = true;
      ++bytes;
      digits();
    }
    if (!index && bytes < all.size() && (all[bytes] == 'e' || all[bytes] == 'E')) {
      const size_t before = bytes++;
      if (bytes < all.size() && (all[bytes] == '+' || all[bytes] == '-')) ++bytes;
      if (digits()) {
        real = true;
      } else {
        bytes = before;
      }
    }
    const std::string_view written = all.substr(0, bytes);
    if (bytes < all.size() && (is_name_start(all[bytes]) || is_digit(all[bytes])))
      fail_at(place, Fault::Kind::kUnsupported,
              fmt::format("the number that begins with {} is not supported", written));
    if (real) {
      double value = 0;
      if (std::from_chars(written.data(), written.data() + bytes, value).ec != std::errc())
        fail_at(place, Fault::Kind::kUnsupported, fmt::format("the number {} is beyond a double", written));
      constant(Value(value), place);
    } else {
      int64_t value = 0;
      if (std::from_chars(written.data(), written.data() + bytes, value).ec != std::errc())
        fail_at(place, Fault::Kind::kUnsupported, fmt::format("the number {} is beyond 64 bits", written));
      constant(Value(value), place);
    }
    advance(bytes);
  }

  void text() {
    const Position place = position_;
    const char quote = source_[at_];
    advance(1);
    std::string value;
    while (true) {
      if (at_ >= source_.size()) fail_at(place, Fault::Kind::kError, "a text has no end");
      if (source_[at_] == quote) break;
      if (source_[at_] == '\\') {
        advance(1);
        escape(&value);
      } else {
        value += advance(utf8_bytes(source_[at_]));
      }
    }
    advance(1);
    constant(Value(std::move(value)), place);
  }

  // What stands behind a backslash, as in a text of Python.
  void escape(std::string* value) {
    if (at_ >= source_.size()) refuse("a text has no end");
    constexpr std::string_view kLetters = "abfnrtv\\'\"";
    constexpr std::string_view kMeant = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[at_];
    if (const size_t known = kLetters.find(c); known != std::string_view::npos) {
      *value += kMeant[known];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const std::string_view written = rest().substr(1, digits);
      uint32_t code = 0;
      const auto read = std::from_chars(written.data(), written.data() + written.size(), code, 16);
      if (written.size() != digits || read.ec != std::errc() || read.ptr != written.data() + digits ||
          code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        refuse(fmt::format("\\{} is followed by no character of {} hexadecimal digits", c, digits));
      *value += utf8_encode(code);
      advance(digits);
    } else if (c >= '0' && c <= '7') {
      uint32_t code = 0;
      size_t digits = 0;
      for (; digits < 3 && at_ + digits < source_.size(); ++digits) {
        const char digit = source_[at_ + digits];
        if (digit < '0' || digit > '7') break;
        code = code * 8 + static_cast<uint32_t>(digit - '0');
      }
      *value += utf8_encode(code);
      advance(digits - 1);
    } else if (c == 'N') {
      fail_at(position_, Fault::Kind::kUnsupported, "\\N{name} in a text is not supported");
    } else if (c != '\n') {  // an escaped line end is none; others keep their backslash
      *value += '\\';
      *value += rest().substr(0, utf8_bytes(c));
    }
    advance(utf8_bytes(c));
  }

  void op(std::string* open) {
    constexpr std::string_view kOperators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
                                               "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                               "]",  "{",  "}",  ",",  ".",  ":",  "|"};
    const Position place = position_;
    for (const std::string_view known : kOperators) {
      if (!ahead(known)) continue;
      const char c = known[0];
      if (c == '(' || c == '[' || c == '{') *open += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open->empty() || open->back() != c) refuse(fmt::format("{} closes nothing", known));
        open->pop_back();
      }
      add(Token::Kind::kOperator, std::string(known), place);
      advance(known.size());
      return;
    }
    refuse(
        fmt::format("the character {} has no meaning in a tag", rest().substr(0, utf8_bytes(source_[at_]))));
  }

  std::string source_;
  size_t at_ = 0;
  Position position_;
  std::vector<Token> tokens_;
};

}  // namespace

void fail_at(Position position, Fault::Kind kind, std::string message) {
  throw PlacedFault{position, Fault(kind, std::move(message))};
}

std::vector<Token> tokens_of(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace allot::model::jinja
