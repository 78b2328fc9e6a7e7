// Normal form C against that of the `tokenizers` package; tests/data/make_tokenizer_golden.py makes nfc.json.
#include "model/nfc.h"

#include <gtest/gtest.h>

#include "base/json.h"

#include "base/file.h"

namespace allot::model {
namespace {

nlohmann::json golden_cases() {
  return nlohmann::json::parse(
             read_file(std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/tokenizer/nfc.json"))
      .at("cases");
}

TEST(Nfc, TextsGetTheFormThatTheTokenizersPackageGivesThem) {
  std::string buffer;
  int changed = 0;
  const auto cases = golden_cases();
  for (const auto& [text, normalized] : cases.get<std::vector<std::pair<std::string, std::string>>>()) {
    EXPECT_EQ(to_nfc(text, &buffer), normalized) << testing::PrintToString(text);
    changed += text != normalized;
  }
  EXPECT_GE(cases.size(), 500u);
  EXPECT_GE(changed, 150);
}

// Boundaries between what is normalized and what is copied fall everywhere.
TEST(Nfc, TextsKeepTheirFormInsideALongerText) {
  std::string buffer;
  std::string text;
  std::string expected;
  for (const auto& [part, normalized] :
       golden_cases().get<std::vector<std::pair<std::string, std::string>>>()) {
    text += part + "; plain 世界 ";
    expected += normalized + "; plain 世界 ";
  }
  EXPECT_EQ(to_nfc(text, &buffer), expected);
}

TEST(Nfc, ATextInNormalFormIsNotCopied) {
  std::string buffer = "untouched";
  for (const std::string text : {"", "plain", "caf\u00e9", "Привет мир", "世界 \uac00 \u1ea5 \U0001F600"}) {
    const std::string_view result = to_nfc(text, &buffer);
    EXPECT_EQ(result.data(), text.data()) << text;
    EXPECT_EQ(result, text);
  }
}

}  // namespace
}  // namespace allot::model
