// Which characters merging may begin with. That the ids stay the same is bpe_test.cc's.
#include "model/character_tokens.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace allot::model {
namespace {

// Bytes have their own values as ids, and tokens of several bytes the ids behind them.
class Rules {
 public:
  Rules() : merges_(100) {
    for (int32_t byte = 0; byte < 256; ++byte) ids_[std::string(1, static_cast<char>(byte))] = byte;
  }

  // The next rank.
  Rules& add(const std::string& left, const std::string& right) {
    const int32_t merged = ids_.emplace(left + right, ids_.size()).first->second;
    merges_.insert(ids_.at(left), ids_.at(right), {rank_++, merged});
    return *this;
  }

  CharacterTokens characters() const {
    std::array<int32_t, 256> byte_ids{};
    std::vector<std::pair<std::string_view, int32_t>> tokens;
    for (const auto& [text, id] : ids_) {
      tokens.emplace_back(text, id);
      if (text.size() == 1) byte_ids[static_cast<uint8_t>(text.front())] = id;
    }
    return {merges_, tokens, byte_ids};
  }

  // What merging begins with at byte `at` of `piece`: the text of a token, or "" for bytes.
  std::string start(const std::string& piece, size_t at = 0) const {
    const CharacterTokens::Start start = characters().start_at(piece, at);
    if (start.bytes == 0) return "";
    const std::string text = piece.substr(at, start.bytes);
    EXPECT_EQ(ids_.at(text), start.id);
    return text;
  }

 private:
  std::map<std::string, int32_t> ids_;
  MergeTable merges_;
  uint32_t rank_ = 0;
};

const std::string kThree = "\xE4\xBD\xA0";  // the character U+4F60

Rules with_character() {
  Rules rules;
  rules.add("\xE4", "\xBD").add("\xE4\xBD", "\xA0");
  return rules;
}

TEST(CharacterTokens, MergingBeginsWithTheTokenOfACharacterWhoseMergesComeFirst) {
  const Rules rules = with_character();
  EXPECT_EQ(rules.start(kThree), kThree);
  EXPECT_EQ(rules.start("a" + kThree + "b", 1), kThree);
  EXPECT_EQ(rules.start(kThree + kThree, 3), kThree);
  EXPECT_EQ(rules.start("abc", 1), "");
  EXPECT_EQ(rules.start("\xE5\xA5\xBD"), "") << "has no token";
}

TEST(CharacterTokens, CharactersOfTwoAndFourBytesHaveStartsToo) {
  Rules rules;
  rules.add("\xC3", "\xA9").add("\xF0", "\x9F").add("\x98", "\x80").add("\xF0\x9F", "\x98\x80");
  EXPECT_EQ(rules.start("\xC3\xA9"), "\xC3\xA9");
  EXPECT_EQ(rules.start("a\xF0\x9F\x98\x80", 1), "\xF0\x9F\x98\x80");
}

TEST(CharacterTokens, MergingBeginsWithBytesBesideAByteThatJoinsEarlierAndOnlyThere) {
  Rules left;
  left.add("a", "\xE4").add("\xE4", "\xBD").add("b", "\xE4\xBD").add("\xE4\xBD", "\xA0").add("c", "\xE4");
  EXPECT_EQ(left.start("a" + kThree, 1), "") << "joins the first byte";
  EXPECT_EQ(left.start("b" + kThree, 1), "") << "joins what the character passes through";
  EXPECT_EQ(left.start("c" + kThree, 1), kThree) << "joins only later";
  Rules right;
  right.add("\xA0", "a").add("\xE4", "\xBD").add("\xE4\xBD", "\xA0").add("\xA0", "b");
  EXPECT_EQ(right.start(kThree + "a"), "");
  EXPECT_EQ(right.start(kThree + "b"), kThree);
  EXPECT_EQ(right.start(kThree), kThree);
}

TEST(CharacterTokens, ALongerNeighbourCountsByTheByteThatTouches) {
  Rules rules;
  rules.add("x", "a").add("xa", "\xE4").add("\xE4", "\xBD").add("\xE4\xBD", "\xA0");
  EXPECT_EQ(rules.start("xa" + kThree, 2), "");
  EXPECT_EQ(rules.start("ax" + kThree, 2), kThree);
}

TEST(CharacterTokens, MergingBeginsWithBytesWhereTheTokenJoinsEarlierThanItIsMade) {
  // The bytes alone make the token by the last rule, the one before it needs it already.
  Rules rules;
  rules.add("\xE4", "\xBD").add("\xBD", "\xA0").add("\xE4", "\xBD\xA0").add(kThree, "a");
  rules.add("\xE4\xBD", "\xA0");
  EXPECT_EQ(rules.start(kThree), "");
  Rules left;
  left.add("\xE4", "\xBD").add("\xBD", "\xA0").add("\xE4", "\xBD\xA0").add("a", kThree);
  left.add("\xE4\xBD", "\xA0");
  EXPECT_EQ(left.start(kThree), "");
}

TEST(CharacterTokens, ASpaceAtTheStartGoesWithTheCharacterBehindIt) {
  Rules rules;
  rules.add(" ", "\xC3").add("\xC3", "\xA9").add(" \xC3", "\xA9");
  const std::string spaced = " \xC3\xA9";
  EXPECT_EQ(rules.start(spaced), spaced);
  EXPECT_EQ(rules.start("a" + spaced, 1), "") << "a space elsewhere is a byte";
  EXPECT_EQ(rules.start(spaced, 1), "") << "behind the space, whose rule comes first";
  EXPECT_EQ(with_character().start(" " + kThree), "") << "no token of both";
  EXPECT_EQ(with_character().start(" " + kThree, 1), kThree);
}

TEST(CharacterTokens, BytesThatAreNoCharacterStartNothing) {
  Rules rules = with_character();
  rules.add("\xC3", "\xA9");
  for (const std::string piece : {"\xE4", "\xE4\xBD", "\xE4\xBD\x20", "\xE4\xE4\xA0", "\xC3", "\xC3\x29",
                                  "\xC3\xE9", "\xA9", "\xFF\xFF\xFF\xFF", "\xF8\x88\x80\x80\x80"}) {
    EXPECT_EQ(rules.start(piece), "") << testing::PrintToString(piece);
  }
  // Longer spellings of U+00E9 and U+4F60.
  EXPECT_EQ(rules.start("\xE0\x83\xA9"), "");
  EXPECT_EQ(rules.start("\xF0\x84\xBD\xA0"), "");
  EXPECT_EQ(rules.start("\xC3\xA9"), "\xC3\xA9");
}

}  // namespace
}  // namespace allot::model
