// Decoders against those of the `tokenizers` package.
#include "model/token_decoder.h"

#include <gmock/gmock.h>

#include "tests/message_of.h"
#include "tests/model/files/components.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::string>;

TokenDecoder decoder_of(const json& component) {
  return TokenDecoder(view_of(component, "decoder"));
}

json strip(const json& content, const json& start, const json& stop) {
  return {{"type", "Strip"}, {"content", content}, {"start", start}, {"stop", stop}};
}

TEST(TokenDecoder, TextsOfTokensAreThoseOfTheTokenizersPackage) {
  const json components = golden_components("decoders");
  EXPECT_EQ(components.size(), 17u);
  for (const json& entry : components) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const TokenDecoder decoder = decoder_of(entry.at("component"));
    const auto cases = entry.at("cases").get<std::vector<std::pair<Tokens, std::string>>>();
    for (const auto& [tokens, text] : cases) {
      EXPECT_EQ(decoder.decode(tokens), text) << testing::PrintToString(tokens);
    }
    EXPECT_GE(cases.size(), 5u);
  }
}

TEST(TokenDecoder, WithoutADecoderTokensAreJoinedBySpaces) {
  EXPECT_EQ(TokenDecoder().decode({"a", "", "b"}), "a  b");
}

// The package ends in a panic here.
TEST(TokenDecoder, StripTakesACharacterThatBothEndsReachOnce) {
  EXPECT_EQ(decoder_of(strip("é", 1, 1)).decode({"é", "éé", "ééé", ""}), "é");
  EXPECT_EQ(decoder_of(strip(" ", 9, 9)).decode({"   ", "  a  "}), "a");
  EXPECT_EQ(decoder_of(strip(" ", INT64_MAX, 0)).decode({"   ", "  a  "}), "a  ");
}

TEST(TokenDecoder, FieldsThatThePackageRefusesAreCorrupt) {
  const auto message_for = [](const json& component) {
    return message_of<CorruptFile>([&] { decoder_of(component); });
  };
  EXPECT_THAT(message_for(strip("ab", 1, 0)), Names("decoder.content", "\"ab\""));
  EXPECT_THAT(message_for(strip(" ", -1, 0)), Names("decoder.start", -1));
  EXPECT_THAT(message_for(strip(" ", 1, nullptr)), Names("decoder.stop"));
}

TEST(TokenDecoder, ReplacementsOfASequenceAreBoundedTogether) {
  const json tenfold = replace("a", "aaaaaaaaaa");
  EXPECT_THAT(message_of<Unsupported>([&] {
                decoder_of({{"type", "Sequence"}, {"decoders", {tenfold, tenfold}}});
              }),
              Names("decoder.decoders[1]", 64));
}

}  // namespace
}  // namespace allot::model
