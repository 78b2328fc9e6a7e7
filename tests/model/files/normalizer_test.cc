// Normalizers against those of the `tokenizers` package; nfc_test.cc has the texts of NFC.
#include "model/normalizer.h"

#include <gmock/gmock.h>

#include "tests/message_of.h"
#include "tests/model/files/components.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;

Normalizer normalizer_of(const json& component) {
  return Normalizer(view_of(component, "normalizer"));
}

json sequence(const json& elements) {
  return {{"type", "Sequence"}, {"normalizers", elements}};
}

TEST(Normalizer, TextsBecomeWhatTheTokenizersPackageMakesOfThem) {
  const json components = golden_components("normalizers");
  EXPECT_EQ(components.size(), 12u);
  int changed = 0;
  for (const json& entry : components) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    const Normalizer normalizer = normalizer_of(entry.at("component"));
    Normalizer::Scratch scratch;
    for (const auto& [text, normalized] :
         entry.at("cases").get<std::vector<std::pair<std::string, std::string>>>()) {
      EXPECT_EQ(normalizer.apply(text, scratch), normalized) << testing::PrintToString(text);
      changed += text != normalized;
    }
  }
  EXPECT_GE(changed, 200);
}

TEST(Normalizer, ATextThatNothingChangesIsNotCopied) {
  const Normalizer normalizer = normalizer_of(sequence({replace(" ", "_"), {{"type", "NFC"}}}));
  Normalizer::Scratch scratch;
  const std::string text = "plain";
  EXPECT_EQ(normalizer.apply(text, scratch).data(), text.data());
  EXPECT_EQ(Normalizer().apply(text, scratch).data(), text.data());
}

TEST(Normalizer, TheStartIsKeptUnlessSeveralCharactersBecomeOthersOrSomeAreLeftOut) {
  const json prepend = {{"type", "Prepend"}, {"prepend", "ab"}};
  EXPECT_TRUE(Normalizer().keeps_start());
  EXPECT_TRUE(normalizer_of(sequence({prepend, replace("é", "xyz"), {{"type", "NFC"}}})).keeps_start());
  EXPECT_FALSE(normalizer_of(replace("aa", "b")).keeps_start());
  EXPECT_FALSE(normalizer_of(sequence({replace("a", ""), prepend})).keeps_start());
}

TEST(Normalizer, ReplacementsOfASequenceAreBoundedTogether) {
  const json tenfold = replace("a", "aaaaaaaaaa");
  EXPECT_THAT(message_of<Unsupported>([&] {
                normalizer_of(sequence({tenfold, tenfold}));
              }),
              Names("normalizer.normalizers[1]", 64));
}

}  // namespace
}  // namespace allot::model
