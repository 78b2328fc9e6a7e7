#include "model/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "kernels/bfloat16.h"

namespace allot::model {
namespace {

using kernels::bfloat16_from_float;
using kernels::DType;
using kernels::float_from_bfloat16;

constexpr int64_t kIn = 96, kOut = 520;  // two threads share the columns of out

std::vector<uint16_t> random_bfloat16(int64_t count, int seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> numbers(count);
  for (uint16_t& number : numbers) number = bfloat16_from_float(normal(random));
  return numbers;
}

std::shared_ptr<const Buffer> buffer_of(const std::vector<uint16_t>& numbers) {
  Buffer buffer(static_cast<int64_t>(numbers.size() * sizeof(uint16_t)));
  std::memcpy(buffer.data(), numbers.data(), numbers.size() * sizeof(uint16_t));
  return std::make_shared<const Buffer>(std::move(buffer));
}

class LinearOfBfloat16 : public ::testing::TestWithParam<Products> {
 protected:
  Linear linear(bool bias, int parts) const {
    return {buffer_of(weight_), bias ? buffer_of(bias_) : nullptr, kOut, kIn, DType::kBFloat16, parts,
            GetParam()};
  }
  std::vector<uint16_t> applied(const Linear& linear, int64_t rows, int threads) const {
    std::vector<uint16_t> out(rows * kOut);
    linear.apply(input_.data(), rows, out.data(), threads);
    return out;
  }

  static constexpr int64_t kRows = 256 + 2 * kRowGroup;  // more than one call
  std::vector<uint16_t> weight_ = random_bfloat16(kOut * kIn, 1), bias_ = random_bfloat16(kOut, 2),
                        input_ = random_bfloat16(kRows * kIn, 3);
};

TEST_P(LinearOfBfloat16, IsTheExactProductRoundedOnce) {
  for (const bool with_bias : {false, true}) {
    const auto out = applied(linear(with_bias, 2), kRows, 1);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kOut; ++column) {
        double sum = with_bias ? float_from_bfloat16(bias_[column]) : 0, size = std::abs(sum);
        for (int64_t i = 0; i < kIn; ++i) {
          const double term = double{float_from_bfloat16(input_[row * kIn + i])} *
                              float_from_bfloat16(weight_[column * kIn + i]);
          sum += term;
          size += std::abs(term);
        }
        // Half a unit of 8 bits for the rounding, and the errors of kIn sums in float32.
        const double error = std::abs(sum) * 0x1p-8 + size * kIn * 0x1p-24;
        ASSERT_NEAR(float_from_bfloat16(out[row * kOut + column]), sum, error)
            << "row " << row << ", column " << column << ", bias " << with_bias;
      }
    }
  }
}

TEST_P(LinearOfBfloat16, DoesNotDependOnThreadsOrOnTheOtherGroupsOfRows) {
  const Linear product = linear(true, 2);
  const auto all = applied(product, kRows, 1);
  EXPECT_EQ(applied(product, kRows, 2), all);
  EXPECT_EQ(applied(linear(true, 1), kRows, 2), all) << "parts";
  const auto first = applied(product, kRowGroup, 1);
  EXPECT_EQ(first, std::vector(all.begin(), all.begin() + kRowGroup * kOut));
}

#if defined(__x86_64__)
// oneDNN has its own copy of the weight, and so have products of our own.
TEST_P(LinearOfBfloat16, KeepsOneCopyOfTheWeight) {
  if (GetParam() == Products::kLibrary && __builtin_cpu_supports("avx512f") == 0)
    GTEST_SKIP() << "this processor has no AVX-512: oneDNN packs no weights of bfloat16";
  auto weight = buffer_of(weight_);
  const std::weak_ptr<const Buffer> seen = weight;
  const Linear product(std::move(weight), nullptr, kOut, kIn, DType::kBFloat16, /*parts=*/2, GetParam());
  EXPECT_TRUE(seen.expired());
}
#endif

INSTANTIATE_TEST_SUITE_P(Products, LinearOfBfloat16, ::testing::Values(Products::kLibrary, Products::kOwn),
                         [](const auto& of) { return of.param == Products::kLibrary ? "Library" : "Own"; });

}  // namespace
}  // namespace allot::model
