#include "model/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace allot::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

TEST(PageCount, CoversTheLastToken) {
  EXPECT_EQ(pages_for(1, 16), 1);
  EXPECT_EQ(pages_for(16, 16), 1);
  EXPECT_EQ(pages_for(17, 16), 2);
  EXPECT_EQ(pages_for(5, 1), 5);
}

TEST(PageAllocator, GivesEachPageToOneOwner) {
  PageAllocator allocator(7);
  std::set<int32_t> owned;
  for (int64_t count : {3, 1, 3}) {
    for (int32_t page : allocator.allocate(count)) owned.insert(page);
  }
  EXPECT_THAT(owned, ElementsAre(0, 1, 2, 3, 4, 5, 6));
  EXPECT_EQ(allocator.free_pages(), 0);
}

TEST(PageAllocator, GivesNothingWhenTooFewPagesAreFree) {
  PageAllocator allocator(4);
  const std::vector<int32_t> held = allocator.allocate(3);
  EXPECT_THAT(held, SizeIs(3));
  EXPECT_THAT(allocator.allocate(2), IsEmpty());
  EXPECT_EQ(allocator.free_pages(), 1);
  EXPECT_THAT(allocator.allocate(1), SizeIs(1));
}

TEST(PageAllocator, ReusesThePagesGivenBackLast) {
  PageAllocator allocator(100);
  const std::vector<int32_t> first = allocator.allocate(3);
  const std::vector<int32_t> second = allocator.allocate(2);
  allocator.release(first);
  EXPECT_EQ(allocator.allocate(3), first);
  allocator.release(second);
  EXPECT_EQ(allocator.allocate(2), second);
}

TEST(PageAllocator, RefusesAPageGivenBackTwice) {
  PageAllocator allocator(4);
  const std::vector<int32_t> pages = allocator.allocate(2);
  allocator.release(pages);
  EXPECT_THAT([&] { allocator.release(std::vector<int32_t>{1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("page 1 of 4")));
  EXPECT_THAT([&] { allocator.release(std::vector<int32_t>{4}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("page 4 of 4")));
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
  EXPECT_EQ(kv_bytes_per_token(cache.shape()), 2 * 3 * 2 * 8 * 4);
}

}  // namespace
}  // namespace allot::model
