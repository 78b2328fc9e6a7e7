// The value of a written answer as an exact rational number. The grammar is strict: either the whole
// text is one number as a person would write a final answer (currency, unit, LaTeX and punctuation
// around it are allowed), or it is not an answer. README.md in this folder lists what is accepted and
// what is not, with reasons.
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <optional>
#include <string_view>

namespace allot::evaluation::gsm8k {

// Wide enough for every product of two numbers of kMaxDigits digits before and after the point:
// nothing can overflow.
using Integer = boost::multiprecision::int1024_t;

// numerator / denominator, not reduced; denominator > 0.
struct Rational {
  Integer numerator = 0;
  Integer denominator = 1;

  friend bool operator==(const Rational& a, const Rational& b) {
    return a.numerator * b.denominator == b.numerator * a.denominator;
  }
  friend Rational operator-(const Rational& a) { return {-a.numerator, a.denominator}; }
};

struct Number {
  Rational value;
  bool percent = false;  // written with "%" or "percent"; `value` is the number before the sign
};

// Texts longer than this and numbers with more digits than this are not answers, so hostile input costs
// almost no time.
inline constexpr size_t kMaxAnswerBytes = 512;
inline constexpr size_t kMaxDigits = 64;

// The number that all of `text` forms, or nothing. Never throws, for any bytes. Linear in the text's length.
std::optional<Number> parse_number(std::string_view text);

}  // namespace allot::evaluation::gsm8k
