#include "evaluation/gsm8k/number.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "base/ascii.h"
#include "evaluation/gsm8k/latex.h"

namespace allot::evaluation::gsm8k {
namespace {

// Currency signs before or after an amount.
constexpr std::array<std::string_view, 6> kCurrencies = {"US$", "$", "\u20AC", "\u00A3", "\u00A5", "\u20B9"};

struct Scale {
  std::string_view word;
  int64_t factor;
};
constexpr std::array<Scale, 5> kScales = {{{"hundred", 100},
                                           {"thousand", 1'000},
                                           {"million", 1'000'000},
                                           {"billion", 1'000'000'000},
                                           {"trillion", 1'000'000'000'000}}};

// Short units that may follow the digits without a space, and the only one-letter words accepted as units: a
// lone "x" or "k" is a variable or a factor.
constexpr std::array<std::string_view, 29> kAbbreviations = {
    "m", "cm",  "mm", "km", "g",  "kg", "mg",  "l",  "L",   "ml",  "mL",   "h",  "hr", "hrs", "min",
    "s", "sec", "ft", "yd", "mi", "lb", "lbs", "oz", "mph", "kph", "mins", "am", "pm", "a"};

// Words that change the number before them and so are not units.
constexpr std::array<std::string_view, 62> kNoUnits = {
    "and",        "or",     "not",    "to",        "than",       "then",       "but",
    "plus",       "minus",  "times",  "over",      "divided",    "multiplied", "squared",
    "cubed",      "half",   "halves", "third",     "thirds",     "fourths",    "fifth",
    "fifths",     "sixth",  "sixths", "seventh",   "sevenths",   "eighth",     "eighths",
    "ninths",     "tenth",  "tenths", "hundredth", "hundredths", "thousandth", "thousandths",
    "percentage", "modulo", "mod",    "if",        "is",         "equals",     "point",
    "zero",       "one",    "two",    "three",     "four",       "five",       "six",
    "seven",      "eight",  "nine",   "ten",       "hundreds",   "thousands",  "millions",
    "bn",         "mn",     "maybe",  "about",     "pi",         "sqrt"};

template <size_t kSize>
bool contains(const std::array<std::string_view, kSize>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string lower(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Reads one answer from left to right. Each take_… consumes what it names or leaves the text as it was.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  std::optional<Number> answer();

 private:
  bool take(std::string_view token);
  bool take_command(std::string_view command, std::string_view* argument);
  bool take_currency();
  bool take_sign();
  void skip_space();
  bool at_end() const { return rest_.empty(); }
  std::string_view word() const;

  void take_variable();
  std::optional<Integer> take_integer();
  std::optional<Rational> take_decimal();
  std::optional<Rational> take_fraction();
  std::optional<Rational> take_amount();
  bool take_percent();
  bool take_unit(bool glued);
  bool take_units(bool glued);

  std::string_view rest_;
};

bool Reader::take(std::string_view token) {
  if (!rest_.starts_with(token)) return false;
  rest_.remove_prefix(token.size());
  return true;
}

void Reader::skip_space() {
  while (!rest_.empty() && (is_space(rest_.front()) || rest_.front() == kThinSpace)) rest_.remove_prefix(1);
}

// The letters at the front, apostrophes and hyphens inside the word included ("farmer's", "man-hours").
std::string_view Reader::word() const {
  size_t end = 0;
  while (end < rest_.size()) {
    const bool inside = end > 0 && end + 1 < rest_.size() && is_letter(rest_[end + 1]);
    if (!is_letter(rest_[end]) && !(inside && (rest_[end] == '\'' || rest_[end] == '-'))) break;
    ++end;
  }
  return rest_.substr(0, end);
}

bool Reader::take_sign() {
  const bool minus = take("-");
  if (!minus) take("+");
  skip_space();
  return minus;
}

bool Reader::take_currency() {
  for (const std::string_view sign : kCurrencies)
    if (take(sign)) return skip_space(), true;
  return false;
}

// "x =" before the number: people name the unknown before they give its value.
void Reader::take_variable() {
  const std::string_view before = rest_;
  if (word().size() == 1) {
    rest_.remove_prefix(1);
    skip_space();
    if (take("=")) return skip_space();
  }
  rest_ = before;
}

// Digits, or digits in groups of three with one kind of separator and no leading zero:
// "1234", "1,234", "1\,234".
std::optional<Integer> Reader::take_integer() {
  std::string digits;
  size_t end = 0;
  const auto take_digits = [&] {
    const size_t start = end;
    while (end < rest_.size() && is_digit(rest_[end])) ++end;
    digits += rest_.substr(start, end - start);
    return end - start;
  };
  const size_t first_group = take_digits();
  if (first_group == 0) return std::nullopt;
  const char separator = end < rest_.size() ? rest_[end] : '\0';
  const auto at_group = [&] {
    return end + 1 < rest_.size() && rest_[end] == separator && is_digit(rest_[end + 1]);
  };
  if ((separator == ',' || separator == kThinSpace) && at_group()) {
    if (first_group > 3 || digits.front() == '0') return std::nullopt;
    while (at_group()) {
      ++end;
      if (take_digits() != 3) return std::nullopt;
    }
  }
  if (digits.size() > kMaxDigits) return std::nullopt;
  digits.erase(0,
               std::min(digits.find_first_not_of('0'), digits.size() - 1));  // a leading 0 would mean octal
  rest_.remove_prefix(end);
  return Integer(digits);
}

// "1,234.50", "1234.", ".5"
std::optional<Rational> Reader::take_decimal() {
  const std::string_view before = rest_;
  const bool bare_point = rest_.starts_with('.');
  Integer whole = 0;
  if (!bare_point) {
    const std::optional<Integer> integer = take_integer();
    if (!integer) return std::nullopt;
    whole = *integer;
  }
  size_t digits = 0;
  if (rest_.starts_with('.'))
    while (digits + 1 < rest_.size() && is_digit(rest_[digits + 1])) ++digits;
  if (digits == 0) {
    if (bare_point) rest_ = before;
    return bare_point ? std::nullopt : std::optional(Rational{whole});  // a full stop is left to the caller
  }
  if (digits > kMaxDigits) return std::nullopt;
  Integer numerator = whole;
  Integer denominator = 1;
  for (const char digit : rest_.substr(1, digits)) {
    numerator = numerator * 10 + (digit - '0');
    denominator *= 10;
  }
  rest_.remove_prefix(digits + 1);
  return Rational{numerator, denominator};
}

// "1/2", "\frac{1}{2}", "\frac12"
std::optional<Rational> Reader::take_fraction() {
  const std::string_view before = rest_;
  const auto part = [&]() -> std::optional<Integer> {
    skip_space();
    if (take("{")) {
      skip_space();
      const bool negative = take_sign();
      std::optional<Integer> value = take_integer();
      skip_space();
      if (!value || !take("}")) return std::nullopt;
      return negative ? -*value : *value;
    }
    if (rest_.empty() || !is_digit(rest_.front())) return std::nullopt;
    const int digit = rest_.front() - '0';
    rest_.remove_prefix(1);
    return digit;
  };
  std::optional<Integer> numerator, denominator;
  if (take("\\frac")) {
    numerator = part();
    if (numerator) denominator = part();
  } else {
    numerator = take_integer();
    skip_space();
    if (numerator && take("/")) {
      skip_space();
      denominator = take_integer();
    }
  }
  if (numerator && denominator && *denominator != 0) return Rational{*numerator, *denominator};
  rest_ = before;
  return std::nullopt;
}

// A fraction, a mixed number ("1 1/2", "1\frac{1}{2}") or a decimal.
std::optional<Rational> Reader::take_amount() {
  if (const std::optional<Rational> fraction = take_fraction()) return fraction;
  const bool whole_is_integer = !rest_.starts_with('.');
  const std::string_view before = rest_;
  std::optional<Rational> amount = take_decimal();
  if (!amount || !whole_is_integer ||
      before.substr(0, before.size() - rest_.size()).find('.') != std::string_view::npos)
    return amount;
  const std::string_view after_whole = rest_;
  skip_space();
  if (rest_.size() < after_whole.size() || rest_.starts_with("\\frac"))
    if (const std::optional<Rational> part = take_fraction();
        part && part->numerator > 0 && part->numerator < part->denominator)
      return Rational{amount->numerator * part->denominator + part->numerator, part->denominator};
  rest_ = after_whole;
  return amount;
}

bool Reader::take_percent() {
  const std::string_view before = rest_;
  skip_space();
  if (take("%")) return true;
  const std::string spelled = lower(word());
  if (spelled == "percent" || spelled == "pct") return take(rest_.substr(0, spelled.size()));
  rest_ = before;
  return false;
}

// One word of a unit, with an exponent where it has one: "dollars", "km", "m^2", "cm^{3}", "$" or "°C".
bool Reader::take_unit(bool glued) {
  if (take_currency()) return true;
  const bool degrees = take("\u00B0") || take("^\\circ") || take("^{\\circ}");
  const std::string_view unit = word();
  if (unit.empty()) return degrees;
  if (!degrees) {
    const bool needs_list = glued || unit.size() == 1;
    if (needs_list ? !contains(kAbbreviations, unit) : contains(kNoUnits, std::string_view(lower(unit))))
      return false;
  }
  rest_.remove_prefix(unit.size());
  const std::string_view after_word = rest_;
  skip_space();
  for (const std::string_view exponent : {"^{2}", "^{3}", "^2", "^3", "\u00B2", "\u00B3"})
    if (take(exponent)) return true;
  rest_ = after_word;
  return true;
}

// Words joined by spaces or "/"; nothing else may follow the number.
bool Reader::take_units(bool glued) {
  while (!at_end()) {
    if (!take_unit(glued)) return false;
    glued = false;
    skip_space();
    if (take("/")) {
      skip_space();
      if (at_end()) return false;
    }
  }
  return true;
}

std::optional<Number> Reader::answer() {
  take_variable();
  bool negative = take_sign();
  if (take_currency() && !negative) negative = take_sign();
  std::optional<Rational> value = take_amount();
  if (!value) return std::nullopt;
  Number number;
  number.percent = take_percent();
  bool glued = !at_end() && is_letter(rest_.front());
  skip_space();
  if (!number.percent && !glued) {
    const std::string scale = lower(word());
    for (const auto& [name, factor] : kScales) {
      if (scale != name) continue;
      value->numerator *= factor;
      rest_.remove_prefix(scale.size());
      glued = false;
      skip_space();
      break;
    }
  }
  if (number.percent ? !at_end() : !take_units(glued)) return std::nullopt;
  number.value = negative ? -*value : *value;
  return number;
}

// `text` without the characters that close a sentence or wrap the whole of it.
std::string_view unwrapped(std::string_view text) {
  constexpr std::array<std::string_view, 6> kWrappers = {"{}", "$$", "**", "__", "``", "\"\""};
  text = trim(text);
  for (bool changed = true; changed && text.size() >= 2;) {
    changed = false;
    // "18." but not "18..", which is unfinished.
    if ((text.back() == '.' && text[text.size() - 2] != '.') || text.back() == '!') {
      text = trim(text.substr(0, text.size() - 1));
      changed = true;
    }
    for (const std::string_view pair : kWrappers) {
      if (text.size() < 2 || text.front() != pair[0] || text.back() != pair[1]) continue;
      text = trim(text.substr(1, text.size() - 2));
      changed = true;
    }
  }
  return text;
}

}  // namespace

std::optional<Number> parse_number(std::string_view text) {
  text = trim(text);
  if (text.size() > kMaxAnswerBytes) return std::nullopt;
  const std::string plain = plain_text(text);
  return Reader(unwrapped(plain)).answer();
}

}  // namespace allot::evaluation::gsm8k
