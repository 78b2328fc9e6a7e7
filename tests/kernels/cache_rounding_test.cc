// What a cache of fewer bits leaves of a row, against formulas of each format in double precision, and where
// in the cache it is written.
#include "kernels/cache_rounding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "kernels/bfloat16.h"
#include "kernels/split_keys.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using ::testing::Each;

std::vector<float> random_row(size_t size, uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> row(size);
  for (float& x : row) x = normal(random);
  return row;
}

std::vector<float> rounded(std::vector<float> row, CacheFormat format) {
  round_row(row, format);
  return row;
}

double largest_of(const std::vector<float>& row) {
  double largest = 0;
  for (const float x : row) largest = std::max(largest, std::abs(double{x}));
  return largest;
}

// The nearest multiple of `step`, in the middle the even one.
double to_multiple(double x, double step) {
  return std::nearbyint(x / step) * step;
}

// e4m3 by its grid: steps of 2^-9 below 2^-6, else of 1/8 of the power of two below; 448 at most.
double to_e4m3(double x) {
  const double magnitude = std::min(std::abs(x), 448.0);
  const double power = std::max(-6.0, magnitude == 0 ? -6.0 : std::floor(std::log2(magnitude)));
  return std::copysign(std::min(to_multiple(magnitude, std::exp2(power - 3)), 448.0), x);
}

TEST(CacheRounding, ToFp8IsToTheGridOfE4m3) {
  std::vector<float> row = random_row(256, 1, 20);
  row[0] = 1000;  // saturates
  row[1] = -449;
  row[2] = 0.0009f;  // less than half the least
  row[3] = 0.0061f;  // a few of the least
  const std::vector<float> found = rounded(row, CacheFormat::kFp8);
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(found[i], to_e4m3(row[i])) << row[i];
  EXPECT_EQ(found[0], 448);
  EXPECT_EQ(found[1], -448);
  EXPECT_EQ(found[2], 0);
}

TEST(CacheRounding, ToFp8WithAScaleIsToThatGridTimesTheLargestOver448) {
  for (const float deviation : {1e-4f, 1.0f, 1e4f}) {
    const std::vector<float> row = random_row(64, 2, deviation);
    const std::vector<float> found = rounded(row, CacheFormat::kFp8Scaled);
    const double scale = largest_of(row) / 448;
    for (size_t i = 0; i < row.size(); ++i) {
      const double expected = to_e4m3(row[i] / scale) * scale;
      // An element in the middle of two numbers may go either way by the rounding of the scale.
      const double step =
          std::abs(to_e4m3(row[i] / scale * (1 + 1e-6)) - to_e4m3(row[i] / scale * (1 - 1e-6)));
      EXPECT_NEAR(found[i], expected, step * scale + 1e-6 * std::abs(expected)) << row[i];
    }
    EXPECT_NEAR(largest_of(found), largest_of(row), 1e-6 * largest_of(row));
  }
}

TEST(CacheRounding, ToInt8IsToWholeNumbersTimesTheLargestOver127) {
  const std::vector<float> row = random_row(64, 3);
  const std::vector<float> found = rounded(row, CacheFormat::kInt8);
  const double unit = largest_of(row) / 127;
  double most = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const double whole = found[i] / unit;
    EXPECT_NEAR(whole, std::nearbyint(whole), 1e-4) << row[i];
    EXPECT_NEAR(found[i], row[i], 0.5001 * unit) << row[i];
    most = std::max(most, std::abs(whole));
  }
  EXPECT_NEAR(most, 127, 1e-4);
}

TEST(CacheRounding, ToBfloat16IsThatOfTheElements) {
  const std::vector<float> row = random_row(24, 4);
  const std::vector<float> found = rounded(row, CacheFormat::kBFloat16);
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(found[i], float_from_bfloat16(bfloat16_from_float(row[i])));
    EXPECT_EQ(std::bit_cast<uint32_t>(found[i]) & 0xFFFFu, 0u);
  }
  EXPECT_EQ(rounded(row, CacheFormat::kDtype), row);
}

// A restored element by the definition: the transposed rotation of the planes that store_split_keys makes,
// times the unit. As restore_split_keys_cuda, to the bit (split_rows_cuda_test.cc).
TEST(CacheRounding, ToPlanesIsTheRotationOfWhatTheCacheStoresUndone) {
  for (const int32_t size : {8, 64, 128}) {
    std::vector<float> row = random_row(static_cast<size_t>(size), 5);
    row[3] = 60;
    std::vector<unsigned char> block(static_cast<size_t>(split_block_bytes(size)));
    std::vector<int8_t> low(static_cast<size_t>(kSplitBlockKeys * size));
    const int64_t slot = 0;
    store_split_keys({.tokens = 1,
                      .num_kv_heads = 1,
                      .head_dim = size,
                      .keys = row.data(),
                      .key_stride = size,
                      .high = block.data(),
                      .low = low.data(),
                      .num_pages = 1,
                      .page_size = kSplitBlockKeys,
                      .slots = &slot});
    float unit = 0;
    std::memcpy(&unit, block.data() + split_unit_offset(size, 0), sizeof unit);
    const auto restored = [&](bool with_low, int32_t i) {
      int64_t sum = 0;
      for (int32_t j = 0; j < size; ++j) {
        const int64_t fixed =
            256 * static_cast<int8_t>(block[static_cast<size_t>(j)]) + (with_low ? low[j] : 0);
        sum += std::popcount(static_cast<uint32_t>(i & j)) % 2 == 0 ? fixed : -fixed;
      }
      const float element = static_cast<float>(sum) * (unit / (256.0f * static_cast<float>(size)));
      return rotation_negates(i) ? -element : element;
    };
    const std::vector<float> split = rounded(row, CacheFormat::kSplit),
                             high = rounded(row, CacheFormat::kHighPlane);
    for (int32_t i = 0; i < size; ++i) {
      EXPECT_EQ(split[i], restored(true, i)) << size << " element " << i;
      EXPECT_EQ(high[i], restored(false, i)) << size << " element " << i;
      EXPECT_NEAR(split[i], row[i], unit / 256) << size << " element " << i;
      EXPECT_NEAR(high[i], row[i], unit) << size << " element " << i;
    }
    EXPECT_NE(split, high);
    EXPECT_NE(split, row);
  }
}

// What the formats are for: one channel a hundred times as large as the others. Errors of the others, root
// mean square, over their size.
TEST(CacheRounding, AnOutlierCostsWholeNumbersMostAndPlanesOfTwoLittle) {
  constexpr size_t kSize = 64;
  const auto error = [](CacheFormat format) {
    double squares = 0;
    for (uint32_t seed = 0; seed < 50; ++seed) {
      std::vector<float> row = random_row(kSize, seed);
      row[7] = 100;
      const std::vector<float> found = rounded(row, format);
      for (size_t i = 0; i < kSize; ++i) squares += i == 7 ? 0 : std::pow(found[i] - row[i], 2);
    }
    return std::sqrt(squares / (50 * (kSize - 1)));
  };
  // A unit of u leaves u / sqrt(12): that of the row is 100 / 127; rotated, elements are 1/8 of 100 and
  // some more, in units of the rotation that is one.
  EXPECT_NEAR(error(CacheFormat::kInt8), 100 / 127.0 / std::sqrt(12.0), 0.03);
  EXPECT_NEAR(error(CacheFormat::kHighPlane), 15 / 127.0 / std::sqrt(12.0), 0.01);
  EXPECT_NEAR(error(CacheFormat::kSplit), error(CacheFormat::kHighPlane) / 256, 2e-5);
  EXPECT_NEAR(error(CacheFormat::kFp8), 0.026, 0.003) << "1/16 of the power of two below at most";
  EXPECT_NEAR(error(CacheFormat::kFp8Scaled), 0.026, 0.003);
}

TEST(CacheRounding, OfZerosIsZerosAndOfNoNumbersNoNumbers) {
  for (const std::string& text : cache_format_names()) {
    const CacheFormat format = parse_cache_format(text);
    EXPECT_THAT(rounded(std::vector<float>(64, 0.0f), format), Each(0.0f)) << text;
    std::vector<float> row = random_row(64, 6);
    row[63] = NAN;
    EXPECT_TRUE(std::isnan(rounded(row, format)[63])) << text;
    row[63] = std::numeric_limits<float>::infinity();
    const float last = rounded(row, format)[63];
    if (format == CacheFormat::kFp8) {
      EXPECT_EQ(last, 448);
    } else {
      EXPECT_FALSE(std::isfinite(last)) << text;
    }
  }
}

// --- In the cache

struct Pages {
  static constexpr int32_t kHeads = 2, kDim = 16, kPageSize = 4;
  static constexpr int64_t kPages = 3;

  std::vector<float> keys = random_row(kPages * kHeads * kPageSize * kDim, 7),
                     values = random_row(kPages * kHeads * kPageSize * kDim, 8),
                     norms = std::vector<float>(kPages * kHeads * kPageSize, -1.0f);
  std::vector<int64_t> slots = {9, 2};

  static size_t row(int64_t slot, int32_t head) {
    return static_cast<size_t>((slot / kPageSize * kHeads + head) * kPageSize + slot % kPageSize);
  }
  RoundCacheParams params(const CacheFormats& formats) {
    return {.tokens = std::ssize(slots),
            .num_kv_heads = kHeads,
            .head_dim = kDim,
            .formats = formats,
            .key_pages = keys.data(),
            .value_pages = values.data(),
            .value_norms = norms.data(),
            .num_pages = kPages,
            .page_size = kPageSize,
            .slots = slots.data()};
  }
};

TEST(CacheRounding, RoundsTheRowsOfTheSlotsAloneAndTheirNorms) {
  Pages pages;
  const Pages before = pages;
  round_cache(pages.params({.keys = CacheFormat::kHighPlane, .values = CacheFormat::kInt8}));
  for (int64_t slot = 0; slot < Pages::kPages * Pages::kPageSize; ++slot) {
    for (int32_t head = 0; head < Pages::kHeads; ++head) {
      SCOPED_TRACE(slot);
      const size_t row = Pages::row(slot, head);
      const auto of = [&](const std::vector<float>& all) {
        const auto first = all.begin() + static_cast<int64_t>(row) * Pages::kDim;
        return std::vector<float>(first, first + Pages::kDim);
      };
      const bool is_rounded = slot == 9 || slot == 2;
      EXPECT_EQ(of(pages.keys),
                is_rounded ? rounded(of(before.keys), CacheFormat::kHighPlane) : of(before.keys));
      EXPECT_EQ(of(pages.values),
                is_rounded ? rounded(of(before.values), CacheFormat::kInt8) : of(before.values));
      double squares = 0;
      for (const float x : of(pages.values)) squares += double{x} * x;
      if (is_rounded) {
        EXPECT_NEAR(pages.norms[row], std::sqrt(squares), 1e-5);
      } else {
        EXPECT_EQ(pages.norms[row], -1);
      }
    }
  }
}

TEST(CacheRounding, LeavesWhatHasTheDtypeAsItIs) {
  Pages pages;
  const Pages before = pages;
  round_cache(pages.params({.keys = CacheFormat::kFp8}));
  EXPECT_NE(pages.keys, before.keys);
  EXPECT_EQ(pages.values, before.values);
  EXPECT_EQ(pages.norms, before.norms);
  pages = before;
  round_cache(pages.params({.values = CacheFormat::kFp8}));
  EXPECT_EQ(pages.keys, before.keys);
  EXPECT_NE(pages.values, before.values);
}

TEST(CacheRounding, OfBfloat16PagesRoundsTheResultOnce) {
  std::vector<float> row = random_row(16, 9);
  for (float& x : row) x = float_from_bfloat16(bfloat16_from_float(x));
  std::vector<uint16_t> keys, values(16);
  for (const float x : row) keys.push_back(bfloat16_from_float(x));
  float norm = 0;
  const int64_t slot = 0;
  round_cache({.tokens = 1,
               .num_kv_heads = 1,
               .head_dim = 16,
               .dtype = DType::kBFloat16,
               .formats = {.keys = CacheFormat::kInt8},
               .key_pages = keys.data(),
               .value_pages = values.data(),
               .value_norms = &norm,
               .num_pages = 1,
               .page_size = 1,
               .slots = &slot});
  const std::vector<float> expected = rounded(row, CacheFormat::kInt8);
  for (size_t i = 0; i < row.size(); ++i) EXPECT_EQ(keys[i], bfloat16_from_float(expected[i])) << i;
}

TEST(CacheRounding, RefusesWhatItCannotDoAndWritesNothing) {
  Pages pages;
  const Pages before = pages;
  const auto refusal = [&](auto&& change) {
    RoundCacheParams params = pages.params({.keys = CacheFormat::kSplit});
    change(params);
    const std::string message = message_of<InvalidArgument>([&] { round_cache(params); });
    EXPECT_EQ(pages.keys, before.keys);
    return message;
  };
  using P = RoundCacheParams;
  EXPECT_THAT(refusal([](P& p) { p.head_dim = 12; }), Names("round_cache", "head_dim", 12, "split"));
  EXPECT_THAT(refusal([](P& p) { p.dtype = DType::kFloat16; }), Names("float16", "bfloat16"));
  EXPECT_THAT(refusal([](P& p) { p.key_pages = nullptr; }), Names("key_pages"));
  EXPECT_THAT(refusal([](P& p) { p.num_pages = 2; }), Names("token 0", 9, 0, 7));
  EXPECT_THAT(refusal([](P& p) { p.page_size = 0; }), Names("page_size", 0, 1));
}

// --- Names and bytes

TEST(CacheFormat, HasANameThatComesBack) {
  for (const std::string& text : cache_format_names()) EXPECT_EQ(name(parse_cache_format(text)), text);
  EXPECT_THAT(message_of<InvalidArgument>([] { parse_cache_format("fp4"); }),
              Names("fp4", "dtype", "bfloat16", "split", "high", "fp8", "fp8-scaled", "int8"));
  EXPECT_EQ(parse_cache_formats("split"), (CacheFormats{.keys = CacheFormat::kSplit}));
  EXPECT_EQ(parse_cache_formats("fp8/int8"),
            (CacheFormats{.keys = CacheFormat::kFp8, .values = CacheFormat::kInt8}));
  EXPECT_EQ(name(parse_cache_formats("dtype/fp8-scaled")), "dtype/fp8-scaled");
  for (const char* wrong : {"", "fp8/", "/fp8", "fp8/int8/int8"})
    EXPECT_THAT(message_of<InvalidArgument>([&] { parse_cache_formats(wrong); }), Names("split")) << wrong;
  EXPECT_FALSE(parse_cache_formats("dtype/dtype").any());
  EXPECT_TRUE(parse_cache_formats("dtype/int8").any());
}

TEST(CacheFormat, OfARowHasTheBytesOfItsElementsAndItsScale) {
  const auto bytes = [](CacheFormat format) { return row_bytes(format, 128, 4); };
  EXPECT_EQ(bytes(CacheFormat::kDtype), 512);
  EXPECT_EQ(bytes(CacheFormat::kBFloat16), 256);
  EXPECT_EQ(bytes(CacheFormat::kSplit), 260);
  EXPECT_EQ(bytes(CacheFormat::kHighPlane), 132);
  EXPECT_EQ(bytes(CacheFormat::kFp8), 128);
  EXPECT_EQ(bytes(CacheFormat::kFp8Scaled), 132);
  EXPECT_EQ(bytes(CacheFormat::kInt8), 132);
  EXPECT_EQ(cache_format(KeyFormat::kSixteenBits), CacheFormat::kDtype);
  EXPECT_EQ(cache_format(KeyFormat::kSplit), CacheFormat::kSplit);
  EXPECT_EQ(cache_format(KeyFormat::kHighPlane), CacheFormat::kHighPlane);
}

}  // namespace
}  // namespace allot::kernels
