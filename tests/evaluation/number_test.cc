#include "evaluation/gsm8k/number.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace allot::evaluation::gsm8k {
namespace {

struct Accepted {
  const char* text;
  Rational value;
  bool percent = false;
};

void expect_values(const std::vector<Accepted>& table) {
  for (const auto& [text, value, percent] : table) {
    const std::optional<Number> number = parse_number(text);
    ASSERT_TRUE(number) << text;
    EXPECT_TRUE(number->value == value) << text;
    EXPECT_EQ(number->percent, percent) << text;
  }
}

void expect_no_numbers(const std::vector<const char*>& table) {
  for (const char* text : table) EXPECT_FALSE(parse_number(text)) << text;
}

const Rational kHalf{1, 2};
const Rational kPrice{2469, 2};  // 1234.50

TEST(ParseNumber, WholeNumbersAreRead) {
  expect_values({{"18", {18}},
                 {"-18", {-18}},
                 {"+18", {18}},
                 {"- 18", {-18}},
                 {"  18\n", {18}},
                 {"18.", {18}},
                 {"18 .", {18}},
                 {"18!", {18}},
                 {"0", {0}},
                 {"-0", {0}},
                 {"-0.0", {0}},
                 {"007", {7}},
                 {"−18", {-18}},
                 {"**18**", {18}},
                 {"*18*", {18}},
                 {"\"18\"", {18}},
                 {"x = 18", {18}},
                 {"x=18.", {18}}});
}

TEST(ParseNumber, DecimalsAreReadExactly) {
  expect_values({{"0.5", kHalf},
                 {".5", kHalf},
                 {"-.5", -kHalf},
                 {"0.50", kHalf},
                 {"18.0", {18}},
                 {"1234.5", kPrice},
                 {"0.1", {1, 10}},
                 {"0.30000000000000004", {30000000000000004, 100000000000000000}}});
}

TEST(ParseNumber, ThousandsSeparatorsAreRead) {
  expect_values({{"1,234.50", kPrice},
                 {"1{,}234.50", kPrice},
                 {"1\\,234.50", kPrice},
                 {"1,\\!234.50", kPrice},
                 {"12,345,678", {12345678}},
                 {"1\\,234\\,567", {1234567}}});
}

TEST(ParseNumber, CurrencySignsAndScalesAreRead) {
  expect_values({{"$18", {18}},
                 {"\\$18", {18}},
                 {"\\$ 18.00", {18}},
                 {"-$18", {-18}},
                 {"$-18", {-18}},
                 {"$18$", {18}},
                 {"$\\$18$", {18}},
                 {"US$ 18", {18}},
                 {"€18", {18}},
                 {"18 €", {18}},
                 {"\\(18\\)", {18}},
                 {"$2 million", {2000000}},
                 {"1.5 thousand", {1500}}});
}

TEST(ParseNumber, TrailingUnitsAreLeftOut) {
  expect_values({{"18 dollars", {18}},
                 {"18 dollars.", {18}},
                 {"18 dollars per day", {18}},
                 {"18 km/h", {18}},
                 {"18km", {18}},
                 {"18 m^2", {18}},
                 {"18\\text{ cm}^{2}", {18}},
                 {"18 °C", {18}},
                 {"18\\,\\text{km}", {18}},
                 {"18~\\text{km}", {18}},
                 {"\\text{18 dollars}", {18}},
                 {"18\\ \\mathrm{eggs}", {18}},
                 {"\\textbf{18}", {18}},
                 {"{18}", {18}},
                 {"18 man-hours", {18}},
                 {"1/2 cup", kHalf}});
}

TEST(ParseNumber, FractionsAndMixedNumbersAreRead) {
  expect_values({{"1/2", kHalf},
                 {"-1/2", -kHalf},
                 {"2 / 4", kHalf},
                 {"\\frac{1}{2}", kHalf},
                 {"\\dfrac{1}{2}", kHalf},
                 {"\\tfrac12", kHalf},
                 {"-\\frac{1}{2}", -kHalf},
                 {"\\frac{-1}{2}", -kHalf},
                 {"\\frac{ 1 }{ 2 }", kHalf},
                 {"\\frac{1,234}{2}", {617}},
                 {"36/2", {18}},
                 {"1 1/2", {3, 2}},
                 {"1\\frac{1}{2}", {3, 2}},
                 {"-1 1/2", {-3, 2}}});
}

TEST(ParseNumber, PercentSignsAreNoted) {
  expect_values({{"50%", {50}, true},
                 {"50\\%", {50}, true},
                 {"50 \\%.", {50}, true},
                 {"50 percent", {50}, true},
                 {"12.5%", {25, 2}, true}});
}

TEST(ParseNumber, TextWithoutANumberIsNone) {
  expect_no_numbers(
      {"", " ", ".", "-", "$", "%", ",", "eggs", "eighteen", "NaN", "inf", "{}", "\\frac", "x", "x ="});
}

// Two readings or none.
TEST(ParseNumber, MalformedNumbersAreNone) {
  expect_no_numbers({"1,2", "12,34", "1,23,456", "1,2345", "0,123", "0,5", "12.3.4", "1.234,50", "1..5",
                     "18..", "18...", "1,234\\,567", "--18", "+-18", "18-", "1 234"});
}

// More than one number, or an expression that is still to be computed.
TEST(ParseNumber, MoreThanOneNumberOrAnExpressionIsNone) {
  expect_no_numbers({"5 6",
                     "5, 6",
                     "5 or 6",
                     "5-6",
                     "5 to 6",
                     "(5, 6)",
                     "18 dollars and 50 cents",
                     "16 - 3",
                     "9*2",
                     "9 + 9",
                     "9 \\times 2",
                     "2^3",
                     "3 3/2",
                     "1.5 1/2",
                     "12/3/2024",
                     "3:30",
                     "1/0",
                     "\\frac{1}{0}",
                     "\\frac{1}",
                     "18 = 18",
                     "1\\text{ }8",
                     "1\\text{}8",
                     "18 not",
                     "18 and a half",
                     "18 squared",
                     "18 and",
                     "~18",
                     "\\approx 18",
                     "18?",
                     "x18",
                     "18x",
                     "18 x",
                     "2 thirds",
                     "not 18"});
}

// "1e3" is a program's notation, not a person's answer, and an exponent could ask for a number of any size.
TEST(ParseNumber, ProgramsNotationsAreNone) {
  expect_no_numbers({"1e3", "1E3", "1.5e3", "1e999999999", "0x12", "1_000", "10^3", "1.5 \\times 10^3", "18k",
                     "18 k", "\xEF\xBC\x91\xEF\xBC\x98"});
}

TEST(ParseNumber, EqualValuesWrittenDifferentlyAreExactlyEqual) {
  EXPECT_TRUE(parse_number("1/3")->value == parse_number("\\frac{2}{6}")->value);
  EXPECT_FALSE(parse_number("0.333333333333333333")->value == parse_number("1/3")->value);
  EXPECT_FALSE(parse_number("9007199254740993")->value == parse_number("9007199254740992")->value);
}

TEST(ParseNumber, NumbersBeyondTheDigitLimitAreNoAnswers) {
  EXPECT_TRUE(parse_number(std::string(kMaxDigits, '9')));
  EXPECT_FALSE(parse_number(std::string(kMaxDigits + 1, '9')));
  EXPECT_TRUE(parse_number(std::string("0.").append(kMaxDigits, '9')));
  EXPECT_FALSE(parse_number(std::string("0.").append(kMaxDigits + 1, '9')));
}

TEST(ParseNumber, HostileTextIsRefusedWithoutHarm) {
  constexpr size_t kMegabyte = 1 << 20;
  for (const char* piece : {"9", "{", "}", "\\frac{", "\\text{", "-", "1,", " ", "\\", "$", "\xFF", "("}) {
    std::string text;
    while (text.size() < kMegabyte) text += piece;
    EXPECT_FALSE(parse_number(text)) << piece;
    EXPECT_FALSE(parse_number(text.substr(0, kMaxAnswerBytes))) << piece;
  }
  EXPECT_FALSE(parse_number(std::string(5, '\0')));
  EXPECT_TRUE(parse_number(std::string(1 << 20, ' ').append("18"))->value == Rational{18});
}

}  // namespace
}  // namespace allot::evaluation::gsm8k
