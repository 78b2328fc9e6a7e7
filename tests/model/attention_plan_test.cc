#include "model/attention_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "episode/samples.h"

namespace allot::model {
namespace {

using ::testing::ElementsAre;

// Sequences with `new_tokens[i]` new tokens after `cached[i]` tokens in the cache; sequence i owns page 100 +
// i alone.
ForwardBatch batch_of(const std::vector<int32_t>& new_tokens, const std::vector<int32_t>& cached) {
  ForwardBatch batch;
  batch.query_start.push_back(0);
  batch.max_pages = 1;
  for (size_t i = 0; i < new_tokens.size(); ++i) {
    batch.tokens.resize(batch.tokens.size() + new_tokens[i]);
    batch.query_start.push_back(batch.num_tokens());
    batch.lengths.push_back(cached[i] + new_tokens[i]);
    batch.page_table.push_back(100 + static_cast<int32_t>(i));
    batch.draws.push_back({.key = {}, .question = static_cast<uint32_t>(i)});
  }
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (size_t i = 0; i < new_tokens.size(); ++i)
      batch.budgets.push_back(10 * layer + static_cast<int32_t>(i));
  }
  return batch;
}

// --- Batches of sequences

// [layers, KV heads, sequences]: 2 layers of 3 KV heads.
TEST(MakeBatch, GivesKvHeadsTheirBudgetsAndOthersTheirLayers) {
  const std::vector<int32_t> tokens{10, 11}, pages{0};
  const std::vector<int32_t> by_head{4, 1, kExactLayer, 4, 4, 4}, by_layer{7, kExactLayer};
  std::vector<SequencePart> parts(3, {.tokens = tokens, .begin = 0, .end = 2, .pages = pages});
  parts[0].samples = by_layer;
  parts[1].samples = by_head;
  const ForwardBatch batch = make_batch(parts, /*num_layers=*/2, /*page_size=*/2);
  constexpr int32_t kDense = kernels::kDenseBudget;
  EXPECT_THAT(batch.budgets, ElementsAre(7, 4, kDense, kDense, 4, kDense));
  EXPECT_THAT(batch.head_budgets, ElementsAre(7, 4, kDense, 7, 1, kDense, 7, kDense, kDense,  //
                                              kDense, 4, kDense, kDense, 4, kDense, kDense, 4, kDense));
  EXPECT_THAT(make_batch({parts.data(), 1}, 2, 2).head_budgets, testing::IsEmpty());

  const std::vector<int64_t> rows{0, 1, 2, 3, 4, 5};
  const AttentionPlan plan(batch, rows, /*threads=*/1);
  ASSERT_EQ(plan.launches().size(), 1u);
  const auto heads = plan.head_budgets(plan.launches()[0], 0);
  ASSERT_EQ(heads.size(), 3u);
  EXPECT_THAT(heads[1].budgets, ElementsAre(7, 1, kDense));
  EXPECT_THAT(heads[1].kv_heads, ElementsAre(1));
  EXPECT_THAT(plan.head_budgets(plan.launches()[0], 1), testing::IsEmpty()) << "all heads have the layer's";
  EXPECT_FALSE(plan.all_dense(0));
}

TEST(AttentionPlan, ALayerIsDenseWhereAllOfItsKvHeadsAre) {
  const std::vector<int32_t> tokens{10, 11}, pages{0}, samples{kExactLayer, 3, kExactLayer, kExactLayer};
  const SequencePart part{.tokens = tokens, .begin = 0, .end = 2, .pages = pages, .samples = samples};
  const ForwardBatch batch = make_batch({&part, 1}, /*num_layers=*/2, /*page_size=*/2);
  const std::vector<int64_t> rows{0, 1};
  const AttentionPlan plan(batch, rows, /*threads=*/1);
  EXPECT_FALSE(plan.all_dense(0));
  EXPECT_TRUE(plan.all_dense(1));
}

TEST(MakeBatch, PutsPartsOfSequencesBehindOneAnother) {
  const std::vector<int32_t> first{10, 11, 12, 13, 14}, second{20, 21};
  const std::vector<int32_t> first_pages{7, 3, 9}, second_pages{5}, samples{2, 4};
  const std::vector<SequencePart> parts{
      {.tokens = first,
       .begin = 1,
       .end = 3,
       .pages = first_pages,
       .samples = samples,
       .draws = {.key = {}, .question = 1},
       .first_output = 2},
      {.tokens = second, .begin = 0, .end = 2, .pages = second_pages, .draws = {.key = {}, .question = 2}},
      {.tokens = first,
       .begin = 3,
       .end = 5,
       .pages = first_pages,
       .samples = {},
       .draws = {},
       .first_output = 9},
  };
  const ForwardBatch batch = make_batch(parts, /*num_layers=*/2, /*page_size=*/2);
  EXPECT_THAT(batch.tokens, ElementsAre(11, 12, 20, 21, 13, 14));
  EXPECT_THAT(batch.query_start, ElementsAre(0, 2, 4, 6));
  EXPECT_THAT(batch.lengths, ElementsAre(3, 2, 5));
  EXPECT_THAT(batch.positions, ElementsAre(1, 2, 0, 1, 3, 4));
  EXPECT_EQ(batch.max_pages, 3);
  EXPECT_THAT(batch.page_table, ElementsAre(7, 3, 9, 5, 0, 0, 7, 3, 9));
  EXPECT_THAT(batch.slots, ElementsAre(15, 6, 10, 11, 7, 18));
  constexpr int32_t kDense = kernels::kDenseBudget;
  EXPECT_THAT(batch.budgets, ElementsAre(2, kDense, kDense, 4, kDense, kDense));
  EXPECT_THAT(batch.output_rows, ElementsAre(1, 2, 3));
  EXPECT_EQ(batch.draws[1].question, 2u);
}

TEST(MakeBatch, AnExactLayerOfAScheduleHasADenseBudget) {
  const std::vector<int32_t> tokens{10}, pages{0}, samples{kExactLayer, 0, 4};
  const SequencePart part{.tokens = tokens, .begin = 0, .end = 1, .pages = pages, .samples = samples};
  const ForwardBatch batch = make_batch({&part, 1}, /*num_layers=*/3, /*page_size=*/2);
  EXPECT_THAT(batch.budgets, ElementsAre(kernels::kDenseBudget, 0, 4));
}

// --- Plans

struct Query {
  uint32_t question;
  int32_t length;  // keys it sees
  int32_t page;
  int32_t budget;
  friend bool operator==(const Query&, const Query&) = default;
};

// Every query of the plan's launches in row order, as the kernel would see it.
std::vector<Query> queries_of(const AttentionPlan& plan, int32_t layer) {
  std::vector<Query> queries;
  for (const AttentionPlan::Launch& launch : plan.launches()) {
    EXPECT_EQ(launch.first_row, static_cast<int64_t>(queries.size()));
    kernels::AttentionParams params;
    plan.describe(launch, layer, params);
    EXPECT_EQ(params.query_start[0], 0);
    for (int64_t b = 0; b < params.batch; ++b) {
      const int64_t count = params.query_start[b + 1] - params.query_start[b];
      for (int64_t i = 0; i < count; ++i) {
        queries.push_back({params.draws[b].question,
                           static_cast<int32_t>(params.lengths[b] - (count - 1 - i)),
                           params.page_table[b * params.max_pages], params.budgets[b]});
      }
    }
  }
  return queries;
}

std::vector<int64_t> all_rows(const ForwardBatch& batch) {
  std::vector<int64_t> rows(batch.tokens.size());
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

TEST(PlaceTokens, FollowEachSequencesPagesFromWhereItsCacheEnds) {
  ForwardBatch batch;
  batch.tokens.resize(5);
  batch.query_start = {0, 3, 5};
  batch.lengths = {6, 2};
  batch.max_pages = 3;
  batch.page_table = {7, 0, 2, 5, 0, 0};
  place_tokens(batch, 2);
  EXPECT_THAT(batch.positions, ElementsAre(3, 4, 5, 0, 1));
  EXPECT_THAT(batch.slots, ElementsAre(0 * 2 + 1, 2 * 2, 2 * 2 + 1, 5 * 2, 5 * 2 + 1));
}

TEST(PrefillTokens, FillTheRoomWithoutLeavingOneTokenAlone) {
  EXPECT_EQ(prefill_tokens(100, 100, 40), 40);
  EXPECT_EQ(prefill_tokens(100, 20, 40), 20);
  EXPECT_EQ(prefill_tokens(41, 41, 40), 41);  // one more rather than one left
  EXPECT_EQ(prefill_tokens(100, 100, 1), 0);  // not one alone at the start
  EXPECT_EQ(prefill_tokens(100, 2, 1), 2);
  EXPECT_EQ(prefill_tokens(1, 1, 1), 1);
  for (int64_t size = 2; size < 40; ++size) {
    for (int64_t room = 2; room < 10; ++room) {
      for (int64_t remaining = size; remaining > 0;) {
        const int64_t tokens = prefill_tokens(size, remaining, room);
        ASSERT_GE(tokens, 2) << size << " with room " << room;
        ASSERT_LE(tokens, room + 1);
        remaining -= tokens;
      }
    }
  }
}

TEST(AttentionPlan, NeverLeavesTheLastQueryOfAPromptAlone) {
  for (int32_t count : {129, 257, 385}) {
    const ForwardBatch batch = batch_of({count}, {0});
    const AttentionPlan plan(batch, all_rows(batch), 2);
    for (const AttentionPlan::Launch& launch : plan.launches()) {
      kernels::AttentionParams params;
      plan.describe(launch, 0, params);
      for (int64_t b = 0; b < params.batch; ++b)
        EXPECT_GT(params.query_start[b + 1] - params.query_start[b], 1);
    }
  }
}

TEST(AttentionPlan, EveryQuerySeesItsOwnSequenceUpToItself) {
  const std::vector<int32_t> new_tokens{1, 150, 64, 3}, cached{40, 7, 0, 200};
  const ForwardBatch batch = batch_of(new_tokens, cached);
  std::vector<Query> expected;
  for (uint32_t i = 0; i < new_tokens.size(); ++i) {
    for (int32_t token = 0; token < new_tokens[i]; ++token) {
      expected.push_back(
          {i, cached[i] + token + 1, 100 + static_cast<int32_t>(i), 10 + static_cast<int32_t>(i)});
    }
  }
  for (int threads : {1, 2, 8}) {
    EXPECT_EQ(queries_of(AttentionPlan(batch, all_rows(batch), threads), 1), expected)
        << threads << " threads";
  }
}

TEST(AttentionPlan, KeepsOnlyTheRowsAskedFor) {
  const ForwardBatch batch = batch_of({3, 4, 2}, {10, 0, 5});
  const std::vector<int64_t> rows{
      2, 5, 6};  // the last of sequence 0, the last two of sequence 1, none of sequence 2
  EXPECT_THAT(queries_of(AttentionPlan(batch, rows, 2), 0),
              ElementsAre(Query{0, 13, 100, 0}, Query{1, 3, 101, 1}, Query{1, 4, 101, 1}));
}

TEST(AttentionPlan, SkipsSequencesWithoutARow) {
  const ForwardBatch batch = batch_of({3, 4, 2}, {10, 0, 5});
  EXPECT_THAT(queries_of(AttentionPlan(batch, std::vector<int64_t>{8}, 1), 0),
              ElementsAre(Query{2, 7, 102, 2}));
}

TEST(AttentionPlan, CutsOneLongSequenceForAllThreads) {
  const ForwardBatch batch = batch_of({1024}, {0});
  EXPECT_GE(AttentionPlan(batch, all_rows(batch), 4).launches().size(), 4u);
  EXPECT_EQ(AttentionPlan(batch, all_rows(batch), 1).launches().size(), 1u);
}

TEST(AttentionPlan, KnowsWhichLayersSample) {
  ForwardBatch batch = batch_of({1, 1}, {3, 3});
  batch.budgets = {kernels::kDenseBudget, kernels::kDenseBudget, kernels::kDenseBudget, 4};
  const AttentionPlan plan(batch, all_rows(batch), 2);
  EXPECT_TRUE(plan.all_dense(0));
  EXPECT_FALSE(plan.all_dense(1));
}

}  // namespace
}  // namespace allot::model
