#include "bench/attention/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace allot::bench::attention {
namespace {

using ::testing::ElementsAre;

// Token of a sequence's key as a kernel finds it, through the page table.
int64_t token_at(const PagePlan& plan, int64_t sequence, int64_t key) {
  const int64_t page = plan.page_table[sequence * plan.max_pages + key / plan.page_size];
  return plan.token_of_slot[page * plan.page_size + key % plan.page_size];
}

TEST(PagePlan, SequentialPagesHoldTokensInOrder) {
  const std::vector<int32_t> lengths = {3, 2};
  const PagePlan plan = plan_pages(lengths, 2, PageOrder::kSequential);
  EXPECT_EQ(plan.num_pages, 3);
  EXPECT_EQ(plan.num_tokens, 5);
  EXPECT_EQ(plan.max_pages, 2);
  EXPECT_THAT(plan.page_table, ElementsAre(0, 1, 2, 0));
  EXPECT_THAT(plan.token_of_slot, ElementsAre(0, 1, 2, 5, 3, 4));
}

TEST(PagePlan, ShuffledPagesStillGiveEachSequenceItsTokens) {
  std::vector<int32_t> lengths = {1, 17, 97, 64, 2048};
  const PagePlan plan = plan_pages(lengths, 16, PageOrder::kShuffled);
  int64_t token = 0;
  for (size_t b = 0; b < lengths.size(); ++b) {
    for (int32_t key = 0; key < lengths[b]; ++key) {
      ASSERT_EQ(token_at(plan, static_cast<int64_t>(b), key), token++) << "sequence " << b << ", key " << key;
    }
  }
  EXPECT_EQ(token, plan.num_tokens);
  // Every slot without a token is marked.
  EXPECT_EQ(std::ranges::count(plan.token_of_slot, plan.num_tokens), plan.num_pages * 16 - plan.num_tokens);
}

TEST(PagePlan, ShuffleMovesPagesAndRepeats) {
  const std::vector<int32_t> lengths = {2048};
  const PagePlan plan = plan_pages(lengths, 16, PageOrder::kShuffled);
  EXPECT_FALSE(std::ranges::is_sorted(plan.page_table));
  EXPECT_EQ(plan.page_table, plan_pages(lengths, 16, PageOrder::kShuffled).page_table);
  std::vector<int32_t> sorted = plan.page_table;
  std::ranges::sort(sorted);
  std::vector<int32_t> all(128);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(sorted, all);
}

TEST(PagePlan, ContiguousIsOnePageASequence) {
  const std::vector<int32_t> lengths = {5, 17};
  const PagePlan plan = plan_contiguous(lengths, 16);
  EXPECT_EQ(plan.page_size, 32);
  EXPECT_EQ(plan.max_pages, 1);
  EXPECT_THAT(plan.page_table, ElementsAre(0, 1));
  EXPECT_EQ(token_at(plan, 1, 16), 21);
  EXPECT_EQ(plan.token_of_slot[5], plan.num_tokens);
}

}  // namespace
}  // namespace allot::bench::attention
