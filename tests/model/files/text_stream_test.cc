// Texts that come token by token.
#include "model/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.h"
#include "tests/model/files/test_directory.h"

namespace allot::model {
namespace {

using nlohmann::json;

// A token for each byte, as byte-level vocabularies have them, so that a character beyond ASCII is several.
json bytes() {
  json vocabulary = json::object();
  int32_t id = 0;
  for (const char* piece : {"a", "b", "Ġ", "Ã", "©", "â", "Ĥ", "¬"}) vocabulary[piece] = id++;
  return {{"version", "1.0"},
          {"added_tokens", {{{"id", 8}, {"content", "<end>"}, {"special", true}, {"normalized", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}};
}

// Words with the mark of a space in front, which the first one loses.
json words() {
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}}},
          {"post_processor", nullptr},
          {"decoder",
           {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}}},
          {"model",
           {{"type", "BPE"}, {"vocab", {{"▁", 0}, {"a", 1}, {"b", 2}, {"▁a", 3}}}, {"merges", {"▁ a"}}}}};
}

class TextStreamTest : public testing::Test {
 protected:
  Tokenizer load(const json& file) {
    directory_.write("tokenizer.json", file.dump());
    return Tokenizer::load(directory_.path());
  }

  // The pieces of the tokens, each added alone, and the rest.
  static std::vector<std::string> pieces(const Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
    TextStream stream(tokenizer);
    std::vector<std::string> all;
    for (size_t count = 1; count <= tokens.size(); ++count)
      all.push_back(stream.add(std::span(tokens).first(count)));
    all.push_back(stream.rest(tokens));
    return all;
  }

  TestDirectory directory_;
};

TEST_F(TextStreamTest, ACharacterOfSeveralTokensComesWithItsLast) {
  const Tokenizer tokenizer = load(bytes());
  EXPECT_THAT(pieces(tokenizer, {0, 3, 4, 1, 5, 6, 7}),
              testing::ElementsAre("a", "", "é", "b", "", "", "€", ""));
}

TEST_F(TextStreamTest, ACharacterThatIsCutOffIsInTheRest) {
  const Tokenizer tokenizer = load(bytes());
  EXPECT_THAT(pieces(tokenizer, {0, 5, 6}), testing::ElementsAre("a", "", "", "\xEF\xBF\xBD"));
}

TEST_F(TextStreamTest, SpecialAndUnknownTokensHaveNoText) {
  const Tokenizer tokenizer = load(bytes());
  EXPECT_THAT(pieces(tokenizer, {0, 8, 1, 4000, 0}), testing::ElementsAre("a", "", "b", "", "a", ""));
}

TEST_F(TextStreamTest, TheSpaceBeforeAWordIsLostAtTheBeginningAlone) {
  const Tokenizer tokenizer = load(words());
  EXPECT_THAT(pieces(tokenizer, {3, 2, 3, 3}), testing::ElementsAre("a", "b", " a", " a", ""));
}

TEST_F(TextStreamTest, PiecesAreTheWholeTextForAnyTokens) {
  for (const json& file : {bytes(), words()}) {
    const Tokenizer tokenizer = load(file);
    uint32_t state = 7;
    for (int run = 0; run < 50; ++run) {
      std::vector<int32_t> tokens;
      for (int i = 0; i < 40; ++i) {
        state = state * 1664525 + 1013904223;
        tokens.push_back(static_cast<int32_t>((state >> 16) % 8));
        if (!tokenizer.has(tokens.back())) tokens.pop_back();
      }
      std::string whole;
      for (const std::string& piece : pieces(tokenizer, tokens)) whole += piece;
      EXPECT_EQ(whole, tokenizer.decode(tokens)) << testing::PrintToString(tokens);
    }
  }
}

}  // namespace
}  // namespace allot::model
