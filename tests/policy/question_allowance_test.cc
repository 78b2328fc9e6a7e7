#include "policy/question_allowance.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/json.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

constexpr int64_t kGroup = 8;

// Asked in groups of kGroup.
std::vector<int32_t> asked(QuestionAllowance* allowance, int groups) {
  std::vector<int32_t> counts;
  for (int group = 0; group < groups; ++group) {
    const int32_t questions = allowance->next_group(kGroup);
    for (int64_t k = 0; k < kGroup; ++k) {
      allowance->note(questions);
      counts.push_back(questions);
    }
  }
  return counts;
}

TEST(QuestionAllowance, HalvesAtFirstThenSpendsWhatThatSavedAndThenAsksAsTheRunDoes) {
  QuestionAllowance allowance(16);
  const std::vector<int32_t> counts = asked(&allowance, 40);
  int64_t sum = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    EXPECT_EQ(counts[k], k < 112 ? 8 : k < 168 ? 32 : 16) << k;
    sum += counts[k];
  }
  EXPECT_EQ(sum, 16 * std::ssize(counts));
}

TEST(QuestionAllowance, NeverAsksForMoreInAllThanEpisodesOfUsualSizeHave) {
  for (const int32_t usual : {1, 2, 3, 5, 7, 15, 16, 33, 500}) {
    QuestionAllowance allowance(usual);
    int64_t sum = 0;
    int64_t count = 0;
    for (const int32_t questions : asked(&allowance, 60)) {
      sum += questions;
      ++count;
      EXPECT_GE(questions, std::max(usual / 2, 1)) << usual;
      EXPECT_LE(questions, 2 * usual) << usual;
      EXPECT_LE(sum, usual * count) << usual << " " << count;
    }
    EXPECT_GT(sum, usual * count - kGroup) << usual << ": all but what no group of 8 can have";
  }
}

TEST(QuestionAllowance, RestoredItGoesOnAndOnlyForTheSameUsualNumber) {
  QuestionAllowance allowance(6);
  asked(&allowance, 15);
  QuestionAllowance restored(6);
  restored.restore(allowance.save());
  EXPECT_EQ(asked(&restored, 30), asked(&allowance, 30));
  EXPECT_THAT([&] { QuestionAllowance(7).restore(allowance.save()); },
              ::testing::ThrowsMessage<CorruptFile>(Names(6, 7)));
  EXPECT_THROW(QuestionAllowance(6).restore({{"usual", 6}, {"proposals", 3}, {"saved", -1}}), CorruptFile);
}

}  // namespace
}  // namespace allot::policy
