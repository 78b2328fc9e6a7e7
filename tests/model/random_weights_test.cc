#include "model/random_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "kernels/bfloat16.h"

namespace allot::model {
namespace {

std::vector<float> elements(const RandomTensor& tensor, uint64_t first, size_t count) {
  std::vector<float> out(count);
  fill_random(tensor, first, out);
  return out;
}

// The bits are a contract: a machine with another processor, or a GPU, has to make the same model. Golden
// numbers from tests/data/make_random_weights_golden.py, which computes the header's formula with Python's
// integers.
TEST(RandomWeights, HaveTheDocumentedBits) {
  const RandomTensor tensor = random_tensor(0x123456789ABCDEF0u, "model.layers.0.mlp.up_proj.weight", 0.02);
  EXPECT_EQ(tensor.name_hash, 0xBB99F1CAD1E26788u);
  EXPECT_EQ(std::bit_cast<uint32_t>(tensor.step), 0x350DE3BDu);
  std::vector<uint32_t> bits;
  for (const uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{6}, uint64_t{15}, (uint64_t{5} << 35) + 3})
    bits.push_back(std::bit_cast<uint32_t>(random_element(tensor, index)));
  EXPECT_THAT(bits, testing::ElementsAre(0x3C3614F4u, 0x3CF4941Du, 0x3C9F8B25u, 0x3C6CCC1Eu, 0xBC7F80E4u));
}

TEST(RandomWeights, AreTheSameInAnySplit) {
  const RandomTensor tensor = random_tensor(3, "lm_head.weight", 0.5);
  constexpr size_t kCount = 3000;
  const uint64_t begin = (uint64_t{1} << 35) - 1500;  // where the block number outgrows 32 bits
  std::vector<float> expected;
  for (size_t i = 0; i < kCount; ++i) expected.push_back(random_element(tensor, begin + i));
  EXPECT_EQ(elements(tensor, begin, kCount), expected);
  for (const size_t cut : {1, 7, 8, 9, 255, 256, 257, 1499, 2999}) {
    std::vector<float> parts = elements(tensor, begin, cut);
    const std::vector<float> rest = elements(tensor, begin + cut, kCount - cut);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, expected) << "cut at " << cut;
  }
  EXPECT_TRUE(elements(tensor, 5, 0).empty());
}

TEST(RandomWeights, InBFloat16AreTheRoundedOnes) {
  for (const RandomTensor& tensor :
       {random_tensor(3, "lm_head.weight", 0.02), RandomTensor{.constant = 1.01f}}) {
    const std::vector<float> wide = elements(tensor, 11, 1500);
    std::vector<uint16_t> narrow(1500);
    fill_random_bfloat16(tensor, 11, narrow);
    for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(narrow[i], kernels::bfloat16_from_float(wide[i])) << i;
  }
}

TEST(RandomWeights, HaveTheirMeanDeviationAndRange) {
  constexpr size_t kCount = 1 << 20;
  double sum = 0, squares = 0, largest = 0;
  for (const float x : elements(random_tensor(9, "model.embed_tokens.weight", 0.02), 0, kCount)) {
    sum += x;
    squares += double{x} * x;
    largest = std::max(largest, std::abs(double{x}));
  }
  // Standard errors over 2^20 draws: 2e-5 of the mean, 9e-6 of the deviation. Five of each.
  EXPECT_NEAR(sum / kCount, 0, 1e-4);
  EXPECT_NEAR(std::sqrt(squares / kCount), 0.02, 4.5e-5);
  EXPECT_LE(largest, 0.02 * std::sqrt(3.0) * 1.00001);
  EXPECT_GE(largest, 0.02 * std::sqrt(3.0) * 0.999);
}

TEST(RandomWeights, DifferBySeedNameAndPlace) {
  std::set<std::vector<float>> distinct;
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 32}) {
    for (const char* name : {"model.layers.1.mlp.up_proj.weight", "model.layers.2.mlp.up_proj.weight"}) {
      for (const uint64_t first : {uint64_t{0}, uint64_t{8}, uint64_t{1} << 35})
        distinct.insert(elements(random_tensor(seed, name, 1), first, 8));
    }
  }
  EXPECT_EQ(distinct.size(), 18u);
}

TEST(RandomWeights, WithoutAStepAreConstant) {
  EXPECT_EQ(elements({.constant = 1}, 3, 400), std::vector<float>(400, 1.0f));
  EXPECT_EQ(random_element({.constant = 1}, 7), 1.0f);
}

}  // namespace
}  // namespace allot::model
