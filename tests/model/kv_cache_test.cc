#include "model/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

TEST(PageCount, CoversTheLastToken) {
  EXPECT_EQ(pages_for(1, 16), 1);
  EXPECT_EQ(pages_for(16, 16), 1);
  EXPECT_EQ(pages_for(17, 16), 2);
  EXPECT_EQ(pages_for(5, 1), 5);
}

// 2 layers of 3 KV heads of 4: 96 bytes a token in bfloat16.
ModelConfig planned_model() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 3;
  config.head_dim = 4;
  config.max_position_embeddings = 1000;
  return config;
}

TEST(PlanCache, GivesEverySlotAllPositionsWhereThereIsRoom) {
  EngineOptions options{.page_size = 16, .max_sequences = 10};
  EXPECT_EQ(plan_cache(options, planned_model(), std::nullopt).num_pages, 625);
  EXPECT_EQ(plan_cache(options, planned_model(), 10'000 * 120).num_pages, 625);
  EXPECT_EQ(plan_cache(options, planned_model(), 160 * 120).num_pages, 10);
  options.max_sequences = 3'000'000;  // more tokens than 32 bits count
  EXPECT_EQ(plan_cache(options, planned_model(), std::nullopt).num_pages, 187'500'000);
}

TEST(PlanCache, HasRoomForSequencesOfAKnownLengthAndAPassOfTexts) {
  // Seven pages a sequence: 10 of them, and of texts 2,049 tokens of a pass, a page for each and one
  // sequence.
  EngineOptions options{.page_size = 16, .max_sequences = 10, .sequence_tokens = 100};
  EXPECT_EQ(plan_cache(options, planned_model(), std::nullopt).num_pages,
            pages_for(1120 + 2049 + 160 + 112, 16));
  EXPECT_EQ(plan_cache(options, planned_model(), 160 * 120).num_pages, 10) << "all the memory there is";
  options.sequence_tokens = 5000;
  EXPECT_EQ(plan_cache(options, planned_model(), std::nullopt).num_pages, 625)
      << "the model has 1,000 positions";
}

TEST(PlanCache, TakesTheCapacityThatIsAskedFor) {
  const EngineOptions options{.page_size = 16, .cache_tokens = 33};
  const KvCacheShape shape = plan_cache(options, planned_model(), 120);
  EXPECT_EQ(shape.num_pages, 3);
  EXPECT_EQ(shape.dtype, kernels::DType::kBFloat16);
  EXPECT_EQ(kv_bytes_per_token(shape), 120);
}

// 2 layers of 3 KV heads of 64.
ModelConfig model_of_heads_of_64() {
  ModelConfig config = planned_model();
  config.head_dim = 64;
  return config;
}

TEST(PlanCache, CountsTheBytesOfSplitKeysAndOfTheCopyOfALayer) {
  using kernels::KeyFormat;
  // Of a head in a layer 128 bytes of values and a norm of 4; of keys 128, 64 and 64 with a unit of 4 and
  // as much to the next line, or 64 with the same.
  for (const auto& [keys, bytes] : {std::pair{KeyFormat::kSixteenBits, 6 * (128 + 128 + 4)},
                                    std::pair{KeyFormat::kSplit, 6 * (128 + 4 + 64 + 64 + 8) + 3 * 128},
                                    std::pair{KeyFormat::kHighPlane, 6 * (128 + 4 + 64 + 8) + 3 * 128}}) {
    const EngineOptions options{.keys = keys, .page_size = 16};
    const KvCacheShape shape = plan_cache(options, model_of_heads_of_64(), 160 * int64_t{bytes});
    EXPECT_EQ(shape.keys, keys);
    EXPECT_EQ(kv_bytes_per_token(shape), bytes) << kernels::name(keys);
    EXPECT_EQ(shape.num_pages, 10) << kernels::name(keys);
  }
}

TEST(LayerBytes, OfSplitKeysAreBlocksOf16AndTheirLowPlanes) {
  KvCacheShape shape{.num_layers = 2,
                     .num_kv_heads = 3,
                     .head_dim = 128,
                     .page_size = 48,
                     .num_pages = 7,
                     .dtype = kernels::DType::kBFloat16};
  EXPECT_EQ(layer_value_bytes(shape), 7 * 48 * 3 * 256);
  EXPECT_EQ(layer_key_bytes(shape).first, 7 * 48 * 3 * 256);
  EXPECT_EQ(layer_key_bytes(shape).low, 0);
  shape.keys = kernels::KeyFormat::kSplit;
  EXPECT_EQ(layer_key_bytes(shape).first, 7 * 3 * 3 * 2176);
  EXPECT_EQ(layer_key_bytes(shape).low, 7 * 48 * 3 * 128);
  shape.keys = kernels::KeyFormat::kHighPlane;
  EXPECT_EQ(layer_key_bytes(shape).all(), 7 * 3 * 3 * 2176);
}

TEST(PlanCache, RefusesWhatMakesNoPage) {
  EXPECT_THAT([] { (void)plan_cache({.page_size = 16}, planned_model(), 119); },
              ThrowsMessage<Error>(Names("KV cache", 119, 120)));
}

TEST(PageAllocator, GivesEachPageToOneOwner) {
  PageAllocator allocator(7);
  std::vector<OwnedPages> owners;
  std::set<int32_t> owned;
  for (int64_t count : {3, 1, 3}) {
    owners.push_back(allocator.allocate(count));
    for (int32_t page : owners.back().numbers()) owned.insert(page);
  }
  EXPECT_THAT(owned, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(allocator.free_pages(), 0);
}

TEST(PageAllocator, GivesNothingWhenTooFewPagesAreFree) {
  PageAllocator allocator(4);
  const OwnedPages held = allocator.allocate(3);
  EXPECT_THAT(held.numbers(), SizeIs(3));
  EXPECT_TRUE(allocator.allocate(2).empty());
  EXPECT_EQ(allocator.free_pages(), 1);
  EXPECT_THAT(allocator.allocate(1).numbers(), SizeIs(1));
}

TEST(PageAllocator, TakesPagesBackWhenTheirOwnerEndsOrIsReplaced) {
  PageAllocator allocator(10);
  {
    const OwnedPages pages = allocator.allocate(4);
    EXPECT_EQ(allocator.free_pages(), 6);
  }
  EXPECT_EQ(allocator.free_pages(), 10);
  OwnedPages pages = allocator.allocate(4);
  OwnedPages moved = std::move(pages);
  EXPECT_EQ(allocator.free_pages(), 6);
  moved = allocator.allocate(1);
  EXPECT_EQ(allocator.free_pages(), 9);
  OwnedPages other = allocator.allocate(2);
  moved = std::move(other);  // gives its page back now, not when `other` ends
  EXPECT_EQ(allocator.free_pages(), 8);
  moved = {};
  EXPECT_EQ(allocator.free_pages(), 10);
}

TEST(PageAllocator, ReusesThePagesGivenBackLast) {
  PageAllocator allocator(100);
  OwnedPages first = allocator.allocate(3);
  const OwnedPages second = allocator.allocate(2);
  const std::vector<int32_t> numbers(first.numbers().begin(), first.numbers().end());
  first = {};
  EXPECT_THAT(allocator.allocate(3).numbers(), ElementsAreArray(numbers));
}

TEST(KvCache, LayersAndKeysAndValuesDoNotOverlap) {
  KvCache cache({.num_layers = 3, .num_kv_heads = 2, .head_dim = 8, .page_size = 4, .num_pages = 5});
  const int64_t bytes = int64_t{5} * 2 * 4 * 8 * 4;
  std::vector<std::byte*> starts;
  for (int32_t layer = 0; layer < 3; ++layer) {
    starts.push_back(static_cast<std::byte*>(cache.keys(layer)));
    starts.push_back(static_cast<std::byte*>(cache.values(layer)));
  }
  for (size_t i = 1; i < starts.size(); ++i) EXPECT_EQ(starts[i] - starts[i - 1], bytes);
  starts.back()[bytes - 1] = std::byte{1};  // the last byte is mapped
  EXPECT_EQ(kv_bytes_per_token(cache.shape()), 3 * 2 * (2 * 8 * 4 + 4));
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(cache.value_norms(layer) - cache.value_norms(0), layer * 5 * 2 * 4);
    cache.value_norms(layer)[5 * 2 * 4 - 1] = 1;
  }
}

}  // namespace
}  // namespace allot::model
