#include "app/scoring/prompt_lengths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::ElementsAre;

std::string refusal_of_lengths(const char* text) {
  try {
    (void)parse_lengths(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(PromptLengths, AreRisingNumbersOfTokensAndKIs1024) {
  EXPECT_THAT(parse_lengths("1k,4k,8000"), ElementsAre(1024, 4096, 8000));
  EXPECT_THAT(refusal_of_lengths("1k,1024"), Names("1024", "rising"));
  EXPECT_THAT(refusal_of_lengths("1k,4m"), Names("\"4m\""));
  EXPECT_THAT(refusal_of_lengths("1k,"), Names("\"\""));
  EXPECT_THAT(refusal_of_lengths("0,5"), Names("\"0\""));
  EXPECT_THAT(refusal_of_lengths("4k"), Names("one band"));
}

// `right` of 40 questions.
std::vector<double> questions(int right) {
  std::vector<double> scores(40, 0.0);
  std::fill_n(scores.begin(), right, 1.0);
  return scores;
}

TEST(PromptLengths, BandsPayWhereEachBandsOwnScheduleBeatsTheBestOfThemForAll) {
  const std::vector<LengthScores> apart = {{{questions(30), questions(10)}}, {{questions(5), questions(36)}}};
  const LengthVerdict pays = judge_lengths(apart);
  EXPECT_EQ(pays.best, 1u);  // 41 against 40 of 80
  EXPECT_TRUE(pays.pays);
  EXPECT_EQ(pays.by_length.pairs.only_first, 25);  // 30 against 5 in the first band, the same in the second
  EXPECT_EQ(pays.by_length.pairs.only_second, 0);

  const std::vector<LengthScores> alike = {{{questions(30), questions(33)}},
                                           {{questions(28), questions(35)}}};
  const LengthVerdict undecided = judge_lengths(alike);
  EXPECT_EQ(undecided.best, 0u);  // the first of equal ones
  EXPECT_GT(undecided.by_length.difference, 0);
  EXPECT_FALSE(undecided.pays);

  const std::vector<LengthScores> one_is_best = {{{questions(10), questions(9)}},
                                                 {{questions(30), questions(20)}}};
  EXPECT_EQ(judge_lengths(one_is_best).best, 1u);
  EXPECT_FALSE(judge_lengths(one_is_best).pays);  // significantly worse is no reason
}

}  // namespace
}  // namespace allot::app
