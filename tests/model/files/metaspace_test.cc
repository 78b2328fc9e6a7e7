// Metaspace, and what it makes of the pieces of other pre-tokenizers, against the `tokenizers` package;
// token_decoder_test.cc has its decoder.
#include "model/metaspace.h"

#include <gmock/gmock.h>

#include "model/pretokenize.h"
#include "tests/message_of.h"
#include "tests/model/files/components.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;
using testing::ElementsAre;

PreTokenizer pre_tokenizer_of(const json& component) {
  return PreTokenizer(view_of(component, "pre_tokenizer"));
}

std::vector<std::string> pieces_of(const PreTokenizer& pre_tokenizer, const std::string& text,
                                   TextPlace place = TextPlace::kStart) {
  PreTokenizer::Scratch scratch;
  const auto& pieces = pre_tokenizer.split(text, place, scratch);
  return {pieces.begin(), pieces.end()};
}

json metaspace(const json& fields) {
  json component = {{"type", "Metaspace"}, {"replacement", "_"}};
  component.update(fields);
  return component;
}

TEST(Metaspace, PiecesAreThoseOfTheTokenizersPackage) {
  const json components = golden_components("pre_tokenizers");
  EXPECT_EQ(components.size(), 10u);
  size_t most = 0;
  for (const json& entry : components) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const PreTokenizer pre_tokenizer = pre_tokenizer_of(entry.at("component"));
    for (const auto& [text, pieces] :
         entry.at("cases").get<std::vector<std::pair<std::string, std::vector<std::string>>>>()) {
      EXPECT_EQ(pieces_of(pre_tokenizer, text), pieces) << testing::PrintToString(text);
      most = std::max(most, pieces.size());
    }
  }
  EXPECT_GE(most, 10u);
}

TEST(Metaspace, FirstPrependsOnlyWhereTheTextStarts) {
  const PreTokenizer first = pre_tokenizer_of(metaspace({{"prepend_scheme", "first"}}));
  EXPECT_TRUE(first.heeds_place());
  EXPECT_THAT(pieces_of(first, "a b", TextPlace::kStart), ElementsAre("_a", "_b"));
  EXPECT_THAT(pieces_of(first, "a b", TextPlace::kLater), ElementsAre("a", "_b"));
  const PreTokenizer always = pre_tokenizer_of(metaspace({{"prepend_scheme", "always"}}));
  EXPECT_FALSE(always.heeds_place());
  EXPECT_THAT(pieces_of(always, "a b", TextPlace::kLater), ElementsAre("_a", "_b"));
}

TEST(Metaspace, FilesOfOlderVersionsHaveAddPrefixSpace) {
  EXPECT_THAT(pieces_of(pre_tokenizer_of(metaspace(json::object())), "a b"), ElementsAre("_a", "_b"));
  EXPECT_THAT(pieces_of(pre_tokenizer_of(metaspace({{"add_prefix_space", true}})), "a b"),
              ElementsAre("_a", "_b"));
  EXPECT_THAT(
      pieces_of(pre_tokenizer_of(metaspace({{"add_prefix_space", false}, {"prepend_scheme", "never"}})),
                "a b"),
      ElementsAre("a", "_b"));
}

TEST(Metaspace, FieldsThatThePackageRefusesAreCorrupt) {
  const auto message_for = [](const json& fields) {
    return message_of<CorruptFile>([&] { pre_tokenizer_of(metaspace(fields)); });
  };
  EXPECT_THAT(message_for({{"replacement", ""}}), Names("pre_tokenizer.replacement", "\"\""));
  EXPECT_THAT(message_for({{"replacement", "ab"}}), Names("pre_tokenizer.replacement", "\"ab\""));
  EXPECT_THAT(message_for({{"prepend_scheme", "Always"}}),
              Names("pre_tokenizer.prepend_scheme", "Always", "first"));
  EXPECT_THAT(message_for({{"add_prefix_space", false}}), Names("pre_tokenizer.add_prefix_space", "never"));
  EXPECT_THAT(message_for({{"split", "no"}}), Names("pre_tokenizer.split"));
}

TEST(Metaspace, FirstIsSupportedAsTheFirstPreTokenizerOnly) {
  const json first = metaspace({{"prepend_scheme", "first"}});
  const json digits = {{"type", "Digits"}};
  const auto sequence = [](const json& elements) {
    return json{{"type", "Sequence"}, {"pretokenizers", elements}};
  };
  EXPECT_THAT(pieces_of(pre_tokenizer_of(sequence({first, digits})), "a1"), ElementsAre("_a", "1"));
  EXPECT_THAT(message_of<Unsupported>([&] {
                pre_tokenizer_of(sequence({digits, first}));
              }),
              Names("pre_tokenizer.pretokenizers[1]", "first"));
}

}  // namespace
}  // namespace allot::model
