// The hand-written scanner against the regular expressions it stands for.
#include "model/piece_scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "model/character_class.h"
#include "model/regex.h"
#include "model/utf8.h"
#include "tests/repeats.h"

namespace allot::model {
namespace {

using Pieces = std::vector<std::string_view>;

// As a pre-tokenizer cuts: every match is a piece.
Pieces cut_by_regex(const Regex& regex, std::string_view text, Regex::Scratch& scratch) {
  Pieces pieces;
  for (auto match = regex.find(text, 0, scratch); match; match = regex.find(text, match->end, scratch)) {
    pieces.push_back(text.substr(match->begin, match->end - match->begin));
    if (match->end == text.size()) break;
  }
  return pieces;
}

class PieceScannerTest : public testing::TestWithParam<std::string_view> {
 protected:
  void expect_equal_pieces(std::string_view text) {
    pieces_.clear();
    scanner_.split(text, &pieces_);
    ASSERT_EQ(pieces_, cut_by_regex(regex_, text, scratch_)) << testing::PrintToString(std::string(text));
  }

  // All texts of `length` parts.
  void compare_texts_of(const std::vector<std::string>& parts, int length, const std::string& start = "") {
    if (length == 0) return expect_equal_pieces(start);
    for (const std::string& part : parts) {
      compare_texts_of(parts, length - 1, start + part);
      if (HasFatalFailure()) return;
    }
  }

  const PieceScanner scanner_ = PieceScanner::of(GetParam()).value();
  const Regex regex_ = Regex::from_oniguruma(GetParam());
  Regex::Scratch scratch_;
  Pieces pieces_;
};

TEST_P(PieceScannerTest, CutsEveryShortTextAsTheRegularExpressionDoes) {
  // One of each class and length in bytes that the pattern tells apart.
  const std::vector<std::string> classes = {"a",  "é", "1",      "½",  "'",  ".",
                                            "世", " ", "\u00a0", "\t", "\n", "\r"};
  for (int length = 0; length <= (kUnderSanitizers ? 4 : 5); ++length) compare_texts_of(classes, length);
}

TEST_P(PieceScannerTest, CutsEveryContractionAsTheRegularExpressionDoes) {
  const std::vector<std::string> letters = {"s", "S", "ſ", "t", "r", "R", "e", "E", "v",  "m",
                                            "l", "L", "d", "K", "x", "'", " ", "1", "\n", "ß"};
  for (int length = 0; length <= (kUnderSanitizers ? 3 : 4); ++length) compare_texts_of(letters, length, "'");
}

TEST_P(PieceScannerTest, CutsRandomTextsAsTheRegularExpressionDoes) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::string text;
    for (uint32_t i = random() % 100; i > 0; --i) {
      const char32_t limit = random() % 4 != 0 ? 0x80 : random() % 2 == 0 ? 0x3100 : 0x110000;
      char32_t c = random() % limit;
      if (c >= 0xD800 && c < 0xE000) c = ' ';
      text += utf8_encode(c);
    }
    expect_equal_pieces(text);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, PieceScannerTest,
                         testing::Values(PieceScanner::kLlama3Pattern, PieceScanner::kQwen2Pattern),
                         [](const auto& instance) { return instance.index == 0 ? "Llama3" : "Qwen2"; });

TEST(PieceScanner, TakesNoOtherPattern) {
  EXPECT_FALSE(PieceScanner::of(R"(\p{L}+)").has_value());
  EXPECT_FALSE(PieceScanner::of(std::string(PieceScanner::kQwen2Pattern) + " ").has_value());
}

TEST(CharacterClasses, EveryCodePointHasTheClassThatRegularExpressionsGiveIt) {
  const std::pair<const char*, CharacterClass> patterns[] = {{R"(\p{L})", CharacterClass::kLetter},
                                                             {R"(\p{N})", CharacterClass::kNumber},
                                                             {R"([\r\n])", CharacterClass::kNewline},
                                                             {R"([^\S\r\n])", CharacterClass::kSpace},
                                                             {R"([^\s\p{L}\p{N}])", CharacterClass::kOther}};
  for (const auto& [pattern, kind] : patterns) {
    const Regex regex = Regex::from_oniguruma(pattern);
    Regex::Scratch scratch;
    for (char32_t c = 0; c < 0x110000; c += kEveryCodePoint) {
      if (c >= 0xD800 && c < 0xE000) continue;
      const bool matches = regex.find(utf8_encode(c), 0, scratch).has_value();
      ASSERT_EQ(matches, CharacterClasses::get().of(c) == kind)
          << pattern << " and U+" << std::hex << static_cast<uint32_t>(c);
    }
  }
}

}  // namespace
}  // namespace allot::model
