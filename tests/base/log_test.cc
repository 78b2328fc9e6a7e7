// Text as JSON has it, whatever bytes a peer put into it.
#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace allot {
namespace {

using namespace std::string_literals;

TEST(JsonText, EscapesWhatJsonDoesNotTakeAsItIs) {
  const std::pair<std::string, const char*> texts[] = {
      {"", R"("")"},
      {"plain, \xC3\xBC, \xE2\x82\xAC, \xF0\x9F\x98\x80",
       "\"plain, \xC3\xBC, \xE2\x82\xAC, \xF0\x9F\x98\x80\""},
      {"say \"a\\b\"", R"("say \"a\\b\"")"},
      {"\n\t\x1b[2J\0end"s, R"("\u000a\u0009\u001b[2J\u0000end")"},
  };
  for (const auto& [text, json] : texts) EXPECT_EQ(json_text(text), json);
}

TEST(JsonText, WhatIsNotUtf8BecomesTheReplacementCharacterByteForByte) {
  const std::string replaced = "\xEF\xBF\xBD";
  const std::pair<const char*, int> wrong[] = {
      {"\xFF", 1},              // no character begins so
      {"\x80", 1},              // nor so
      {"\xC3", 1},              // cut off
      {"\xE2\x82", 2},          //
      {"\xC0\xAF", 2},          // longer than needed
      {"\xE0\x80\xAF", 3},      //
      {"\xED\xA0\x80", 3},      // a surrogate
      {"\xF4\x90\x80\x80", 4},  // beyond the last character
  };
  for (const auto& [bytes, count] : wrong) {
    std::string json = "\"a";
    for (int i = 0; i < count; ++i) json += replaced;
    EXPECT_EQ(json_text("a"s + bytes + "b"), json + "b\"");
  }
}

}  // namespace
}  // namespace allot
