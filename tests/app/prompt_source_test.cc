// Prompts a line.
#include "app/scoring/prompt_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

std::vector<GivenPrompt> prompts(const std::string& text, const std::string& field = "") {
  std::istringstream in(text);
  return read_prompts(in, "somewhere", field);
}

TEST(PromptSource, LinesKeepTheirNumbersOverBlankOnes) {
  const auto found = prompts("first\r\n\n  \nfourth {\"x\": 1}");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].line, 0u);
  EXPECT_EQ(found[0].text, "first");
  EXPECT_EQ(found[1].line, 3u);
  EXPECT_EQ(found[1].text, "fourth {\"x\": 1}");
}

TEST(PromptSource, AFieldIsTakenFromTheObjectOfEachLine) {
  const auto found = prompts("{\"q\": \"one\\ntwo\", \"a\": 1}\n", "q");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].text, "one\ntwo");
}

TEST(PromptSource, ALineWithoutItIsNamed) {
  EXPECT_THAT(message_of<CorruptFile>([] { prompts("{\"q\": \"a\"}\nnothing\n", "q"); }),
              Names("somewhere", "line 2", "q"));
  EXPECT_THAT(message_of<CorruptFile>([] { prompts("{\"q\": 3}\n", "q"); }), Names("line 1", "q"));
  EXPECT_THAT(message_of<CorruptFile>([] { prompts("\n \n"); }), Names("somewhere"));
}

}  // namespace
}  // namespace allot::app
