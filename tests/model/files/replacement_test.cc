// What a Replace may hold; its texts are compared in normalizer_test.cc and token_decoder_test.cc.
#include "model/replacement.h"

#include <gmock/gmock.h>

#include "tests/message_of.h"
#include "tests/model/files/components.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using nlohmann::json;

template <typename Error>
std::string message_for(const json& component) {
  size_t times_longer = 1;
  return message_of<Error>([&] { Replacement(view_of(component, "decoder"), &times_longer); });
}

TEST(Replacement, ATextWithoutThePatternIsNotCopied) {
  const Replacement replacement("ab", "c");
  std::string buffer;
  const std::string text = "acb b";
  EXPECT_EQ(replacement.apply(text, &buffer).data(), text.data());
  EXPECT_EQ(replacement.apply("aabbab", &buffer), "acbc");
}

TEST(Replacement, OnlyTextsThatAreNotEmptyAreSupportedAsPatterns) {
  EXPECT_THAT(message_for<Unsupported>(replace("", "x")), Names("decoder.pattern.String", "\"\""));
  json regex = replace("a", "x");
  regex["pattern"] = {{"Regex", "a+"}};
  EXPECT_THAT(message_for<Unsupported>(regex), Names("decoder.pattern", "a+", "String"));
  regex["pattern"] = json::object();
  EXPECT_THAT(message_for<CorruptFile>(regex), Names("decoder.pattern.String"));
  regex = replace("a", "x");
  regex.erase("content");
  EXPECT_THAT(message_for<CorruptFile>(regex), Names("decoder.content"));
}

// Each factor counts once, whatever is replaced by fewer bytes.
TEST(Replacement, TextsMayBecome64TimesAsLongAndNotMore) {
  size_t times_longer = 1;
  const auto add = [&](const std::string& pattern, const std::string& content) {
    const json component = replace(pattern, content);
    Replacement(view_of(component, "normalizer"), &times_longer);
  };
  add("a", "aaaa");
  EXPECT_EQ(times_longer, 4u);
  add("aa", "bbb");
  EXPECT_EQ(times_longer, 8u);
  add("long", "");
  EXPECT_EQ(times_longer, 8u);
  add("a", "bbbbbbbb");
  EXPECT_EQ(times_longer, 64u);
  EXPECT_THAT(message_of<Unsupported>([&] { add("aaa", "bbbb"); }), Names("normalizer", 64));
  EXPECT_THAT(message_for<Unsupported>(replace("a", std::string(65, 'a'))), Names("decoder", 64));
}

}  // namespace
}  // namespace allot::model
