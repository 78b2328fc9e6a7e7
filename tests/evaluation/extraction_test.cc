#include "evaluation/gsm8k/extraction.h"

#include <gtest/gtest.h>

#include <string>

#include "evaluation/gsm8k/latex.h"

namespace allot::evaluation::gsm8k {
namespace {

using Found = std::optional<std::string_view>;

TEST(LastBoxed, TakesTheLastBoxWhoseBracesBalance) {
  EXPECT_EQ(last_boxed("first \\boxed{3}, then \\boxed{18}."), Found("18"));
  EXPECT_EQ(last_boxed("\\boxed{\\frac{1}{2}}"), Found("\\frac{1}{2}"));
  EXPECT_EQ(last_boxed("\\boxed{\\text{a {deep {nest}}} 7}"), Found("\\text{a {deep {nest}}} 7"));
  EXPECT_EQ(last_boxed("\\boxed {18}"), Found("18"));
  EXPECT_EQ(last_boxed("\\boxed{3} and then cut off: \\boxed{1"), Found("3"));
  EXPECT_EQ(last_boxed("\\boxed{\\boxed{5}}"), Found("5"));
  EXPECT_EQ(last_boxed("a stray } and { before \\boxed{18}"), Found("18"));
  EXPECT_EQ(last_boxed("\\boxed{\\{18\\}}"), Found("\\{18\\}"));
  EXPECT_EQ(last_boxed("\\boxed{}"), Found(""));
}

TEST(LastBoxed, FindsNothingWhereThereIsNoBox) {
  EXPECT_EQ(last_boxed(""), std::nullopt);
  EXPECT_EQ(last_boxed("\\boxed"), std::nullopt);
  EXPECT_EQ(last_boxed("\\boxed{18"), std::nullopt);
  EXPECT_EQ(last_boxed("boxed{18}"), std::nullopt);
}

TEST(LastBoxed, AMegabyteOfNestedBoxesIsReadInOnePass) {
  std::string text;
  for (int i = 0; i < 150'000; ++i) text += "\\boxed{";
  EXPECT_EQ(last_boxed(text), std::nullopt);
  EXPECT_EQ(last_boxed(text + "18}"), Found("18"));
}

TEST(BoxedAnswer, FallsBackToWhatTheEndOfTheReplyStates) {
  EXPECT_EQ(boxed_answer("18"), Found("18"));
  EXPECT_EQ(boxed_answer("The answer is 18."), Found("18."));
  EXPECT_EQ(boxed_answer("She makes 9 * 2 = $18"), Found("$18"));
  EXPECT_EQ(boxed_answer("Final answer: 18 dollars\n\n"), Found("18 dollars"));
  EXPECT_EQ(boxed_answer("Nine eggs at 2 each.\n#### 18"), Found("18"));
}

TEST(BoxedAnswer, AnEmptyBoxIsTheAnswerAndIsNotReplacedByTheFallback) {
  EXPECT_EQ(boxed_answer("\\boxed{} so it is 18"), Found(""));
}

TEST(BoxedAnswer, DoesNotPickANumberOutOfAnUnfinishedSentence) {
  EXPECT_EQ(boxed_answer("5 6"), std::nullopt);
  EXPECT_EQ(boxed_answer("The answer is not 18"), std::nullopt);
  EXPECT_EQ(boxed_answer("It is 5 or 6"), std::nullopt);
  EXPECT_EQ(boxed_answer("Now 16 eggs less 3 gives 13 and then"), std::nullopt);
  EXPECT_EQ(boxed_answer(""), std::nullopt);
}

TEST(BoxedAnswer, LooksAtTheFinalTwoHundredCharactersOnly) {
  const std::string filler(kTailBytes, '.');
  EXPECT_EQ(boxed_answer("#### 18 " + filler), std::nullopt);
  EXPECT_EQ(boxed_answer(filler + " #### 18"), Found("18"));
  // A word at the cut is left out whole: "4 eggs" is not what "1234 eggs" says.
  EXPECT_EQ(boxed_answer("1234" + std::string(kTailBytes - 5, ' ') + "eggs"), std::nullopt);
}

TEST(LastLineAnswer, TakesTheFirstNumberOfTheLastLine) {
  EXPECT_EQ(last_line_answer("She sells 9 eggs.\n\n18\n\n"), Found("18"));
  EXPECT_EQ(last_line_answer("18"), Found("18"));
  EXPECT_EQ(last_line_answer("work\n**$1,234**"), Found("1,234"));
  EXPECT_EQ(last_line_answer("work\n-18"), Found("-18"));
  EXPECT_EQ(last_line_answer("work\n-$18"), Found("-$18"));
  EXPECT_EQ(last_line_answer("work\nThe answer is 18 of 20."), Found("18"));
  EXPECT_EQ(last_line_answer("work\n#### 18"), Found("18"));
  EXPECT_EQ(last_line_answer("work\n$\\boxed{18}$"), Found("18"));
}

TEST(LastLineAnswer, KeepsANumberWhole) {
  EXPECT_EQ(last_line_answer("18.50"), Found("18.50"));
  EXPECT_EQ(last_line_answer("1/2"), Found("1/2"));
  EXPECT_EQ(last_line_answer("50%"), Found("50%"));
  EXPECT_EQ(last_line_answer("2019-20"), Found("2019"));
  EXPECT_EQ(last_line_answer("item-5"), Found("5"));
}

TEST(LastLineAnswer, PassesOverWhatIsNoNumber) {
  EXPECT_EQ(last_line_answer("R2 12.3.4 1,2 1e3 18"), Found("18"));
  EXPECT_EQ(last_line_answer("R2 12.3.4 1,2 1e3"), std::nullopt);
}

TEST(LastLineAnswer, WithoutANumberThereLooksAtTheFinalTwentyFiveWords) {
  EXPECT_EQ(last_line_answer("That makes 18 dollars.\nI hope this helps!"), Found("18"));
  std::string words;
  for (size_t i = 0; i < kTailTokens - 1; ++i) words += " word";
  EXPECT_EQ(last_line_answer("7 18\n" + words), Found("18"));
  EXPECT_EQ(last_line_answer("18\n" + words + " word"), std::nullopt);
}

TEST(LastLineAnswer, FindsNothingInNothing) {
  EXPECT_EQ(last_line_answer(""), std::nullopt);
  EXPECT_EQ(last_line_answer(" \n \n"), std::nullopt);
}

TEST(MarkedAnswer, IsTheRestOfTheLineAfterTheFirstMarker) {
  EXPECT_EQ(marked_answer("work\n#### 18\nNext question\n#### 5"), Found("18"));
  EXPECT_EQ(marked_answer("work ####18"), Found("18"));
  EXPECT_EQ(marked_answer("work 18"), std::nullopt);
}

TEST(Extraction, AMegabyteOfAnythingIsReadWithoutHarm) {
  for (const char* piece :
       {"9", "{", "}", "\\boxed{", "\n", " ", "1,", "#", "9 ", ".", "\\", "$", "a", "\xFF"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += piece;
    boxed_answer(text);
    last_line_answer(text);
    marked_answer(text);
    EXPECT_EQ(boxed_answer(text + "\\boxed{18}"), Found("18")) << piece;
  }
}

}  // namespace
}  // namespace allot::evaluation::gsm8k
