#include "kernels/cuda/divisor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace allot::kernels::cuda {
namespace {

constexpr int32_t kLargest = std::numeric_limits<int32_t>::max();

// Quotients change at multiples: those, their neighbours and the ends of the range.
std::vector<int32_t> telling_dividends(int32_t value) {
  std::vector<int32_t> dividends = {0, 1, kLargest - 1, kLargest};
  for (int64_t multiple : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{1000}, int64_t{kLargest} / value / 2,
                           int64_t{kLargest} / value - 1, int64_t{kLargest} / value}) {
    for (int64_t x = multiple * value - 1; x <= multiple * value + 1; ++x) {
      if (x >= 0 && x <= kLargest) dividends.push_back(static_cast<int32_t>(x));
    }
  }
  return dividends;
}

void expect_quotients(int32_t value) {
  const Divisor divisor(value);
  EXPECT_EQ(divisor.value(), value);
  for (const int32_t x : telling_dividends(value)) {
    ASSERT_EQ(divisor.quotient(x), x / value) << x << " / " << value;
  }
}

TEST(Divisor, DividesByEverySmallNumber) {
  for (int32_t value = 1; value <= 20'000; ++value) expect_quotients(value);
}

TEST(Divisor, DividesByNumbersAroundPowersOfTwo) {
  for (int shift = 14; shift < 31; ++shift) {
    for (int32_t value : {(1 << shift) - 1, 1 << shift, (1 << shift) + 1}) expect_quotients(value);
  }
  expect_quotients(kLargest - 1);
  expect_quotients(kLargest);
}

TEST(Divisor, IsOneUntilItIsGivenANumber) {
  EXPECT_EQ(Divisor().value(), 1);
  EXPECT_EQ(Divisor().quotient(kLargest), kLargest);
}

}  // namespace
}  // namespace allot::kernels::cuda
