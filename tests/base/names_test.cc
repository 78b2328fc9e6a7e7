#include "tests/names.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace allot {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

TEST(Names, FindsWholeTokensInAnyOrder) {
  const std::string text = "--total is 3, expected 5 to 7.5 (see /data/run/spec.json)";
  EXPECT_THAT(text, Names("--total", 3, 5, 7.5));
  EXPECT_THAT(text, Names(7.5, std::string("spec.json"), std::string_view("--total")));
  EXPECT_THAT(text, Names(std::filesystem::path("/data/run")));
  EXPECT_THAT("layer 8.", Names(8));
  EXPECT_THAT("shape [8,-2]", Names("[8,-2]", 8, -2));
  EXPECT_THAT("the field 'a.b[1]' is \"x y\"", Names("a.b[1]", "a.b", "x y"));
  EXPECT_THAT(text, NamesAll({"--total", "3"}));
}

TEST(Names, APartOfALongerTokenIsNotNamed) {
  for (const char* other : {"13", "31", "3.5", "0.3", "-3", "1e-3", "3rd", "a3", "3_", "3-x", "a.3", ""}) {
    EXPECT_THAT(other, Not(Names(3))) << other;
  }
  for (const char* other : {"--total-tokens", "--totals", "---total", "x--total", "--total.x", "-total"}) {
    EXPECT_THAT(other, Not(Names("--total"))) << other;
  }
  for (const char* other : {"--total", "total_samples", "learning.total", "total.samples", "sub-total"}) {
    EXPECT_THAT(other, Not(Names("total"))) << other;
  }
  EXPECT_THAT("text", Not(Names("")));
  EXPECT_THAT("text", Not(NamesAll({})));
}

TEST(Names, EachValueIsNeededAsOftenAsGiven) {
  EXPECT_THAT("3 and 4", Not(Names(3, 5)));
  EXPECT_THAT("3 and 4", Not(Names(3, 3)));
  EXPECT_THAT("3 and 3", Names(3, 3));
}

TEST(Names, SaysWhatIsMissing) {
  testing::StringMatchResultListener listener;
  const testing::Matcher<std::string> matcher = Names("--total", 3, 4, 4);
  EXPECT_FALSE(matcher.MatchAndExplain("--total is 4", &listener));
  EXPECT_EQ(listener.str(), "which does not name \"3\" nor \"4\" 2 times");
  EXPECT_EQ(testing::DescribeMatcher<std::string>(Names("a", 1)), "names \"a\", \"1\"");
}

TEST(Names, WorksWithinOtherMatchers) {
  const auto refuse = [] { throw InvalidArgument("--total is 13"); };
  EXPECT_THAT(refuse, ThrowsMessage<InvalidArgument>(AllOf(Names("--total", 13), Not(HasSubstr("--floor")))));
  EXPECT_THAT(refuse, Not(ThrowsMessage<InvalidArgument>(Names("--total", 3))));
}

}  // namespace
}  // namespace allot
