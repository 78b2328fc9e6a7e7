// The order in which the kernel for many short rows hands out sequences.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "emulated_kernels.h"

namespace allot::kernels {
namespace {

using testing::emulated_length_order;

// Where a row is much shorter than others may be, long ones are begun first.
TEST(LengthOrder, TheLongestSequencesComeFirst) {
  std::vector<int32_t> lengths;
  for (int32_t b = 0; b < 300; ++b) lengths.push_back(b * 577 % 2049);
  const std::vector<int32_t> order = emulated_length_order(lengths, 2048, 256);
  ASSERT_EQ(order.size(), lengths.size());
  std::vector<int32_t> sequences = order;
  std::ranges::sort(sequences);
  for (int32_t b = 0; b < 300; ++b) ASSERT_EQ(sequences[static_cast<size_t>(b)], b);
  for (size_t i = 1; i < order.size(); ++i) {
    const int32_t before = lengths[static_cast<size_t>(order[i - 1])];
    const int32_t length = lengths[static_cast<size_t>(order[i])];
    EXPECT_LE(length, before + 2048 / 8 + 64) << "place " << i;
    if ((before + 63) / 64 == (length + 63) / 64) {
      EXPECT_LT(order[i - 1], order[i]) << "place " << i;
    }
  }
  // A length that the launch does not allow is a fault of its sequence alone.
  EXPECT_EQ(emulated_length_order({5, 1 << 30, -7, 2048}, 2048, 32), (std::vector<int32_t>{1, 3, 0, 2}));
}

TEST(LengthOrder, SequencesOfSimilarLengthsStayInOrder) {
  EXPECT_TRUE(emulated_length_order({1100, 2048, 1024, 1500}, 2048, 64).empty());
  EXPECT_FALSE(emulated_length_order({1100, 2048, 900, 1500}, 2048, 64).empty());
}

}  // namespace
}  // namespace allot::kernels
