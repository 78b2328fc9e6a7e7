// Keys and queries in planes of 8 bits: what is stored of them, and attention by it.
#include "kernels/split_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "base/error.h"
#include "kernels/reference.h"
#include "launch.h"
#include "tests/message_of.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::Launch;
using testing::LaunchSpec;

// One key, split, and what it stands for after the rotation.
struct Planes {
  std::vector<int8_t> high, low;
  float unit = 0;

  double fixed(size_t i) const { return unit * (high[i] + low[i] / 256.0); }
};

Planes split_key(const std::vector<float>& key) {
  const auto size = static_cast<int32_t>(key.size());
  std::vector<unsigned char> blocks(static_cast<size_t>(split_block_bytes(size)), 0xFF);
  Planes planes{.high = std::vector<int8_t>(key.size()), .low = std::vector<int8_t>(16 * key.size())};
  const int64_t slot = 3;
  store_split_keys({.tokens = 1,
                    .num_kv_heads = 1,
                    .head_dim = size,
                    .keys = key.data(),
                    .key_stride = size,
                    .high = blocks.data(),
                    .low = planes.low.data(),
                    .num_pages = 1,
                    .page_size = 16,
                    .slots = &slot});
  for (int32_t i = 0; i < size; ++i)
    planes.high[i] = static_cast<int8_t>(blocks[static_cast<size_t>(split_high_offset(size, 3, i))]);
  std::memcpy(&planes.unit, blocks.data() + split_unit_offset(size, 3), sizeof(float));
  planes.low = {planes.low.begin() + 3 * size, planes.low.begin() + 4 * size};
  return planes;
}

// The rotation in double precision, straight from its definition: entry (i, j) of the Hadamard matrix is -1
// where i and j have an odd number of common bits.
std::vector<double> rotated(const std::vector<float>& x) {
  std::vector<double> result;
  for (size_t i = 0; i < x.size(); ++i) {
    double sum = 0;
    for (size_t j = 0; j < x.size(); ++j) {
      const bool negative = (std::popcount(i & j) % 2 != 0) != rotation_negates(static_cast<int32_t>(j));
      sum += negative ? -x[j] : x[j];
    }
    result.push_back(sum);
  }
  return result;
}

std::vector<float> random_vector(int32_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x;
  for (int32_t i = 0; i < size; ++i) x.push_back(normal(random));
  return x;
}

TEST(SplitKeys, AreTheRotatedKeyToWithinHalfAUnitOfTheLowPlane) {
  for (const int32_t size : {8, 64, 128, 256}) {
    std::vector<float> key = random_vector(size, static_cast<uint32_t>(size));
    key[5] = 40;  // an outlier channel
    const std::vector<double> expected = rotated(key);
    const Planes planes = split_key(key);
    double largest = 0;
    for (const double x : expected) largest = std::max(largest, std::abs(x));
    EXPECT_NEAR(planes.unit, largest / 127, 1e-5 * largest) << size;
    for (size_t i = 0; i < key.size(); ++i) {
      EXPECT_NEAR(planes.fixed(i), expected[i], 0.501 * planes.unit / 256 + 1e-5) << size << " element " << i;
      EXPECT_NEAR(planes.unit * planes.high[i], expected[i], 0.51 * planes.unit) << size << " element " << i;
    }
  }
}

TEST(SplitKeys, SpreadAnOutlierOverAllElements) {
  std::vector<float> key(128, 0.0f);
  key[17] = 100;
  const Planes planes = split_key(key);
  for (size_t i = 0; i < key.size(); ++i) EXPECT_EQ(std::abs(planes.high[i]), 127) << i;
}

TEST(SplitKeys, OfZerosAndOfAlmostZerosAreZerosAndOfNoNumbersHaveNoUnit) {
  const Planes zeros = split_key(std::vector<float>(64, 0.0f));
  EXPECT_EQ(zeros.unit, 1);
  EXPECT_THAT(zeros.high, ::testing::Each(0));
  EXPECT_THAT(zeros.low, ::testing::Each(0));
  const Planes small = split_key(std::vector<float>(64, 0x1p-130f));
  EXPECT_GT(small.unit, 0);
  EXPECT_THAT(small.high, ::testing::Each(0));
  EXPECT_THAT(small.low, ::testing::Each(0));
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> key = random_vector(64, 2);
    key[63] = bad;
    const Planes planes = split_key(key);
    EXPECT_TRUE(std::isnan(planes.unit)) << bad;
    EXPECT_THAT(planes.high, ::testing::Each(0)) << bad;
    EXPECT_THAT(planes.low, ::testing::Each(0)) << bad;
  }
}

TEST(SplitKeys, ProductsWithSplitQueriesAreThoseOfTheVectors) {
  for (const int32_t size : {64, 128}) {
    const std::vector<float> key = random_vector(size, 3), query = random_vector(size, 4);
    const Planes planes = split_key(key);
    std::vector<int8_t> of_query(static_cast<size_t>(2 * size));
    float unit = 0;
    split_queries({.tokens = 1,
                   .num_q_heads = 1,
                   .head_dim = size,
                   .queries = query.data(),
                   .query_stride = size,
                   .planes = of_query.data(),
                   .units = &unit});
    double expected = 0, product = 0;
    for (int32_t i = 0; i < size; ++i) {
      expected += query[i] * key[i];
      product += unit * (of_query[i] + of_query[size + i] / 256.0) * planes.fixed(static_cast<size_t>(i));
    }
    EXPECT_NEAR(product, expected, 2e-3) << size;
  }
}

// The banks that 16 bytes of shared memory from an offset on lie in, of the eight such groups.
int64_t bank_group(int64_t offset) {
  return offset / 16 % 8;
}

TEST(SplitKeys, OfABlockFillItsPlanesAndBeginAtALine) {
  for (const int32_t head_dim : {8, 16, 32, 64, 128, 256}) {
    EXPECT_EQ(split_block_bytes(head_dim) % 128, 0) << head_dim;
    EXPECT_GE(split_block_bytes(head_dim), split_block_content(head_dim)) << head_dim;
    for (int32_t key = 0; key < kSplitBlockKeys; ++key) {
      std::set<int64_t> offsets;
      for (int32_t i = 0; i < head_dim; ++i) offsets.insert(split_high_offset(head_dim, key, i));
      EXPECT_EQ(offsets.size(), head_dim) << "head_dim " << head_dim << ", key " << key;
      EXPECT_EQ(*offsets.begin(), int64_t{key} * head_dim);
      EXPECT_EQ(*offsets.rbegin(), int64_t{key + 1} * head_dim - 1);
    }
  }
}

TEST(SplitKeys, AreReadFromAllBanks) {
  for (const int32_t head_dim : {64, 128}) {
    for (int32_t first = 0; first < kSplitBlockKeys; first += 8) {
      for (int32_t chunk = 0; chunk < head_dim / kSplitChunk; ++chunk) {
        std::set<int64_t> of_eight_keys;
        for (int32_t key = first; key < first + 8; ++key)
          of_eight_keys.insert(bank_group(split_high_offset(head_dim, key, chunk * kSplitChunk)));
        EXPECT_EQ(of_eight_keys.size(), 8) << "head_dim " << head_dim << ", chunk " << chunk;
      }
    }
    for (int32_t key = 0; key < kSplitBlockKeys; key += 2) {
      std::set<int64_t> of_two_keys;
      for (int32_t i = 0; i < 8; ++i)
        of_two_keys.insert(bank_group(split_high_offset(head_dim, key + i / 4, i % 4 * kSplitChunk)));
      EXPECT_EQ(of_two_keys.size(), 8) << "head_dim " << head_dim << ", key " << key;
    }
  }
}

TEST(SplitKeys, RefuseWhatTheyCannotHold) {
  StoreSplitKeysParams p{.tokens = 1, .num_kv_heads = 1, .head_dim = 96, .key_stride = 96, .page_size = 16};
  EXPECT_EQ(message_of<InvalidArgument>([&] { store_split_keys(p); }),
            "store_split_keys: head_dim is 96; expected a power of two from 8 to 256");
  p.head_dim = 64;
  p.page_size = 24;
  EXPECT_EQ(message_of<InvalidArgument>([&] { store_split_keys(p); }),
            "store_split_keys: page_size is 24; expected a multiple of 16");
  p.page_size = 16;
  EXPECT_EQ(message_of<InvalidArgument>([&] { store_split_keys(p); }),
            "store_split_keys: keys is null; it must point to the operation's data");
}

LaunchSpec launch_spec(Estimator estimator) {
  return {.sequences = {{1, 300, 8}, {1, 40, 600}, {1, 5, 2}},
          .num_q_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 64,
          .dtype = DType::kBFloat16,
          .estimator = estimator,
          .score_deviation = 2};
}

// A batch of which nothing is sampled: the correction of the reference makes it exact.
TEST(SplitReference, WithEveryKeyIsExactAttention) {
  LaunchSpec spec = launch_spec(Estimator::kSys);
  for (testing::Sequence& sequence : spec.sequences) sequence.budget = kDenseBudget;
  Launch launch(spec);
  const std::vector<double> expected = reference::attend(launch.params);
  // Without keys of 16 bits exact attention reads the planes.
  const auto attend_by_planes = [&](bool with_low_plane) {
    launch.split_keys(with_low_plane);
    AttentionParams planes = launch.params;
    planes.key_pages = nullptr;
    return reference::attend(planes);
  };
  const std::vector<double> corrected = attend_by_planes(true);
  const std::vector<double> by_high = attend_by_planes(false);
  double largest = 0, largest_by_high = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(corrected[i] - expected[i]));
    largest_by_high = std::max(largest_by_high, std::abs(by_high[i] - expected[i]));
  }
  EXPECT_LT(largest, 2e-4);
  EXPECT_GT(largest_by_high, 5e-3) << "the low plane must have something to correct";
  EXPECT_LT(largest_by_high, 0.2);
}

TEST(SplitKeys, AreRefusedOnTheCpu) {
  Launch launch(launch_spec(Estimator::kSys));
  launch.split_keys();
  EXPECT_EQ(message_of<Unsupported>([&] { launch.run(cpu::best_isa()); }),
            "attention: split keys have CUDA kernels only; on the CPU use 16-bit or 32-bit keys");
}

}  // namespace
}  // namespace allot::kernels
