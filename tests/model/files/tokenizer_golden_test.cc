// Ids and texts against those of the `tokenizers` package; tests/data/make_tokenizer_golden.py makes the
// files.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "model/regex.h"
#include "model/tokenizer.h"
#include "model/utf8.h"
#include "tests/model/files/test_directory.h"
#include "tests/repeats.h"

namespace allot::model {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json golden(const std::string& name) {
  return json::parse(
      read_file(std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/tokenizer" / (name + ".json")));
}

Tokenizer load(const json& tokenizer) {
  const TestDirectory directory;
  directory.write("tokenizer.json", tokenizer.dump());
  return Tokenizer::load(directory.path());
}

class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  const json document_ = golden(GetParam());
  const Tokenizer tokenizer_ = load(document_.at("tokenizer"));
};

TEST_P(GoldenTokenizer, EncodesEveryTextAsTheTokenizersPackageDoes) {
  // The second round takes the remembered outcomes of whole tokens.
  for (const char* round : {"first", "second"}) {
    SCOPED_TRACE(round);
    for (const json& entry : document_.at("cases")) {
      const auto text = entry.at("text").get<std::string>();
      const auto ids = entry.at("ids").get<Ids>();
      EXPECT_EQ(tokenizer_.encode(text), ids) << entry.at("text");
      EXPECT_EQ(tokenizer_.encode(text, false), entry.value("plain_ids", ids)) << entry.at("text");
    }
  }
  EXPECT_GE(document_.at("cases").size(), 12u);
}

TEST_P(GoldenTokenizer, DecodesAllIdsAsTheTokenizersPackageDoes) {
  for (const json& entry : document_.at("cases")) {
    const auto ids = entry.at("ids").get<Ids>();
    const auto decoded = entry.value("decoded", entry.at("text").get<std::string>());
    EXPECT_EQ(tokenizer_.decode(ids), decoded) << entry.at("text");
    EXPECT_EQ(tokenizer_.decode(ids, false), entry.value("decoded_all", decoded)) << entry.at("text");
  }
}

// Reversed ids tear characters apart; what is left of them must become the same replacement characters.
TEST_P(GoldenTokenizer, DecodesTornCharactersAsTheTokenizersPackageDoes) {
  int compared = 0;
  for (const json& entry : document_.at("cases")) {
    if (!entry.contains("decoded_reversed")) continue;
    auto ids = entry.value("plain_ids", entry.at("ids").get<Ids>());
    std::reverse(ids.begin(), ids.end());
    EXPECT_EQ(tokenizer_.decode(ids), entry.at("decoded_reversed").get<std::string>()) << entry.at("text");
    ++compared;
  }
  EXPECT_TRUE(compared > 0 || document_.at("cases").size() == 12) << "the long lists hold texts beyond ASCII";
}

TEST_P(GoldenTokenizer, CountsItsVocabularyAsTheTokenizersPackageDoes) {
  EXPECT_EQ(tokenizer_.vocab_size(), document_.at("vocab_size").get<int32_t>());
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTokenizer,
                         testing::Values("llama3", "qwen2", "gpt2", "added", "fallback", "fused_unk", "unk",
                                         "characters", "characters_dot", "characters_empty", "mistral",
                                         "llama2", "first", "phi3", "gemma", "metaspace_always",
                                         "metaspace_always_whole", "metaspace_first", "metaspace_never",
                                         "smollm2", "level_fallback", "level_without_unk"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST(GoldenPreTokenizer, EveryCuttingRuleGivesThePiecesOfTheTokenizersPackage) {
  const json document = golden("words");
  for (const json& component : document.at("components")) {
    SCOPED_TRACE(component.at("name").get<std::string>());
    const Tokenizer tokenizer = load(component.at("tokenizer"));
    for (const json& entry : component.at("cases")) {
      const auto ids = entry.at("ids").get<Ids>();
      EXPECT_EQ(tokenizer.encode(entry.at("text").get<std::string>()), ids) << entry.at("text");
      if (entry.contains("decoded")) {
        EXPECT_EQ(tokenizer.decode(ids), entry.at("decoded").get<std::string>());
      }
    }
  }
  EXPECT_EQ(document.at("components").size(), 19u);
}

TEST(GoldenRegex, ClassesHoldTheCodePointsThatOnigurumaPutsIntoThem) {
  const json document = golden("classes");
  for (const auto& [pattern, runs] : document.at("classes").items()) {
    SCOPED_TRACE(pattern);
    const Regex regex = Regex::from_oniguruma(pattern);
    Regex::Scratch scratch;
    std::set<char32_t> expected;
    for (const json& run : runs) {
      for (auto c = run[0].get<char32_t>(); c <= run[1].get<char32_t>(); ++c) expected.insert(c);
    }
    for (const json& run : document.at("code_points")) {
      for (auto c = run[0].get<char32_t>(); c <= run[1].get<char32_t>(); ++c) {
        const std::string character = utf8_encode(c);
        const bool whole = regex.find(character, 0, scratch) == TextRange{0, character.size()};
        EXPECT_EQ(whole, expected.contains(c)) << "U+" << std::hex << static_cast<uint32_t>(c);
      }
    }
  }
}

TEST(GoldenRegex, ClassesHoldExactlyOnigurumasCodePointsOfAllUnicode) {
  const json classes = golden("classes").at("everywhere");
  EXPECT_EQ(classes.size(), 13u);
  for (const auto& [pattern, runs] : classes.items()) {
    const Regex regex = Regex::from_oniguruma(pattern);
    Regex::Scratch scratch;
    std::vector<bool> expected(0x110000);
    for (const json& run : runs) {
      for (auto c = run[0].get<size_t>(); c <= run[1].get<size_t>(); ++c) expected[c] = true;
    }
    for (char32_t c = 0; c < 0x110000; c += kEveryCodePoint) {
      if (c >= 0xD800 && c < 0xE000) continue;
      ASSERT_EQ(regex.find(utf8_encode(c), 0, scratch).has_value(), expected[c])
          << pattern << " and U+" << std::hex << static_cast<uint32_t>(c);
    }
  }
}

// Byte-level tokenizers without a normalizer keep every text.
TEST(TokenizerRoundTrip, RandomTextsComeBackFromByteLevelIds) {
  const Tokenizer tokenizer = load(golden("llama3").at("tokenizer"));
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::string text;
    for (uint32_t i = random() % 60; i > 0; --i) {
      const char32_t limit = random() % 2 == 0 ? 0x80 : random() % 2 == 0 ? 0x800 : 0x110000;
      char32_t c = random() % limit;
      if (c >= 0xD800 && c < 0xE000) c = ' ';
      text += utf8_encode(c);
    }
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, false), false), text);
  }
}

TEST(TokenizerRoundTrip, ALongPieceIsEncodedInReasonableTimeAndComesBack) {
  const Tokenizer tokenizer = load(golden("qwen2").at("tokenizer"));
  const std::string text(200'000,
                         'a');  // one piece: a merge that is quadratic would not end within the test's time
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
}

}  // namespace
}  // namespace allot::model
