#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace allot {
namespace {

// Known answers of Random123 1.14 (Salmon et al., SC 2011), examples/kat_vectors, lines "philox4x32 10".
TEST(Philox, GivesTheKnownAnswersOfRandom123) {
  struct Vector {
    PhiloxBlock counter;
    uint32_t key0, key1;
    PhiloxBlock expected;
  };
  const Vector vectors[] = {
      {{{0, 0, 0, 0}}, 0, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
      {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
       0xffffffff,
       0xffffffff,
       {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
      {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
       0xa4093822,
       0x299f31d0,
       {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
  };
  for (const Vector& v : vectors) {
    const PhiloxBlock block = philox4x32_10(v.counter, v.key0, v.key1);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(block.word[i], v.expected.word[i]) << "word " << i;
  }
}

// Layer and head share a counter word; four draws share a block.
TEST(Philox, DrawsDifferInEveryCoordinate) {
  const DrawRow row{.key = {1, 2}, .question = 3, .layer = 4, .head = 5, .position = 6};
  std::set<uint32_t> seen;
  for (uint32_t draw = 0; draw < 9; ++draw) seen.insert(draw_bits(row, draw));
  DrawRow other = row;
  other.key.run_seed = 9;
  seen.insert(draw_bits(other, 0));
  other = row;
  other.key.sampling_seed = 9;
  seen.insert(draw_bits(other, 0));
  other = row;
  other.question = 9;
  seen.insert(draw_bits(other, 0));
  other = row;
  other.layer = 9;
  seen.insert(draw_bits(other, 0));
  other = row;
  other.head = 9;
  seen.insert(draw_bits(other, 0));
  other = row;
  other.position = 9;
  seen.insert(draw_bits(other, 0));
  EXPECT_EQ(seen.size(), 15u);
}

TEST(Philox, ADrawIsTheWordOfItsBlock) {
  const DrawRow row{.key = {1, 2}, .question = 3, .layer = 4, .head = 5, .position = 6};
  const PhiloxBlock block = philox4x32_10({{3, (4u << 16) | 5u, 6, 2}}, 1, 2);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(draw_bits(row, 8 + i), block.word[i]);
}

TEST(Philox, UniformsAreMultiplesOf2ToTheMinus24Below1WithTheRightMean) {
  double sum = 0;
  constexpr uint32_t kDraws = 100000;
  for (uint32_t draw = 0; draw < kDraws; ++draw) {
    const float u = draw_uniform({.key = {1, 2}}, draw);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ASSERT_EQ(u * 0x1p24f, static_cast<float>(static_cast<uint32_t>(u * 0x1p24f)));
    sum += u;
  }
  // Standard deviation of the mean of uniforms is sqrt(1/12/n); 4.5 of them.
  EXPECT_NEAR(sum / kDraws, 0.5, 4.5 * std::sqrt(1.0 / 12 / kDraws));
}

}  // namespace
}  // namespace allot
