// Numbers of 8 bits and rows of them, against their definition.
#include "kernels/fp8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "base/error.h"
#include "launch.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using testing::Elements;

// (-1)^s 2^(e - 7) (1 + f / 8), or 2^-6 f / 8 where e = 0.
double by_definition(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const double magnitude =
      exponent == 0 ? std::exp2(-6) * fraction / 8 : std::exp2(exponent - 7) * (1 + fraction / 8.0);
  return bits >= 0x80 ? -magnitude : magnitude;
}

bool is_nan_of_e4m3(int bits) {
  return (bits & 0x7F) == kE4m3Nan;
}

TEST(E4m3, OfEveryBitPatternIsTheNumberOfItsDefinitionAndComesBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const float x = float_from_e4m3(static_cast<uint8_t>(bits));
    if (is_nan_of_e4m3(bits)) {
      EXPECT_TRUE(std::isnan(x)) << bits;
    } else {
      EXPECT_EQ(x, by_definition(static_cast<uint8_t>(bits))) << bits;
    }
    EXPECT_EQ(e4m3_from_float(x) & (is_nan_of_e4m3(bits) ? 0x7F : 0xFF),
              is_nan_of_e4m3(bits) ? kE4m3Nan : bits);
  }
  EXPECT_EQ(float_from_e4m3(0x7E), kMostE4m3);
}

TEST(E4m3, IsTheNearestAndInTheMiddleTheOneWithAnEvenFraction) {
  for (int bits = 0; bits < 0x7E; ++bits) {
    const auto lower = static_cast<uint8_t>(bits), upper = static_cast<uint8_t>(bits + 1);
    const auto middle = static_cast<float>((by_definition(lower) + by_definition(upper)) / 2);
    const uint8_t even = bits % 2 == 0 ? lower : upper;
    for (const float sign : {1.0f, -1.0f}) {
      const int negative = sign < 0 ? 0x80 : 0;
      EXPECT_EQ(e4m3_from_float(sign * middle), even | negative) << bits;
      EXPECT_EQ(e4m3_from_float(sign * std::nextafter(middle, 0.0f)), lower | negative) << bits;
      EXPECT_EQ(e4m3_from_float(sign * std::nextafter(middle, 1000.0f)), upper | negative) << bits;
    }
  }
}

TEST(E4m3, BeyondTheLargestIsTheLargestAndNanStaysNan) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {448.0f, 449.0f, 464.0f, 480.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(e4m3_from_float(x), 0x7E) << x;
    EXPECT_EQ(e4m3_from_float(-x), 0xFE) << x;
  }
  EXPECT_TRUE(is_nan_of_e4m3(e4m3_from_float(NAN)));
}

struct Quantized {
  std::vector<uint8_t> bits;
  std::vector<float> scales;
};

Quantized quantized(const Elements& input, DType dtype, int64_t rows, int32_t width, int num_threads = 1) {
  Elements copy = input;
  Quantized result{.bits = std::vector<uint8_t>(static_cast<size_t>(rows * width), 0xAA),
                   .scales = std::vector<float>(static_cast<size_t>(rows), -1)};
  quantize_rows({.rows = rows,
                 .width = width,
                 .dtype = dtype,
                 .input = copy.data(),
                 .out = result.bits.data(),
                 .scales = result.scales.data()},
                num_threads);
  return result;
}

TEST(QuantizeRows, ScalesEachRowByItsLargestAndTakesTheNearestOfItsNumbers) {
  constexpr int64_t kRows = 7;
  constexpr int32_t kWidth = 33;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(name(dtype));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    Elements input(dtype, kRows * kWidth, 0);
    for (int64_t i = 0; i < input.count(); ++i)
      input.set(i, normal(random) * std::exp2(static_cast<float>(i / kWidth) - 3));
    const Quantized result = quantized(input, dtype, kRows, kWidth, 3);
    for (int64_t row = 0; row < kRows; ++row) {
      float largest = 0;
      for (int32_t i = 0; i < kWidth; ++i) largest = std::max(largest, std::abs(input.get(row * kWidth + i)));
      const double scale = result.scales[static_cast<size_t>(row)];
      EXPECT_EQ(scale, largest / 448.0f) << row;
      for (int32_t i = 0; i < kWidth; ++i) {
        const double x = input.get(row * kWidth + i);
        const auto error = [&](int bits) {
          return std::abs(scale * by_definition(static_cast<uint8_t>(bits)) - x);
        };
        double least = std::numeric_limits<double>::infinity();
        for (int bits = 0; bits < 256; ++bits)
          if (!is_nan_of_e4m3(bits)) least = std::min(least, error(bits));
        // The product with the inverse is rounded to float32 before.
        EXPECT_LE(error(result.bits[static_cast<size_t>(row * kWidth + i)]), least + 1e-6 * largest)
            << "row " << row << " element " << i;
      }
    }
  }
}

TEST(QuantizeRows, OfZerosAndOfTinyNumbersIsFinite) {
  Elements input(DType::kFloat32, 3 * 4, 0);
  for (int32_t i = 0; i < 4; ++i) {
    input.set(4 + i, 1e-30f);
    input.set(8 + i, 1e-38f);
  }
  const Quantized result = quantized(input, DType::kFloat32, 3, 4);
  EXPECT_THAT(result.scales, ::testing::Each(kLeastFp8Range / kMostE4m3));
  EXPECT_EQ(result.bits, (std::vector<uint8_t>{0, 0, 0, 0, 0x7E, 0x7E, 0x7E, 0x7E, 0, 0, 0, 0}));
}

TEST(QuantizeRows, OfARowThatIsNotFiniteHasNoScale) {
  for (const float bad :
       {NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    for (const int64_t place : {5, 7}) {
      Elements input(DType::kBFloat16, 12, 2);
      input.set(place, bad);
      const Quantized result = quantized(input, DType::kBFloat16, 3, 4);
      EXPECT_TRUE(std::isnan(result.scales[1])) << bad;
      EXPECT_EQ(result.scales[0], 2 / 448.0f);
      EXPECT_EQ(result.scales[2], 2 / 448.0f);
      EXPECT_EQ(result.bits,
                (std::vector<uint8_t>{0x7E, 0x7E, 0x7E, 0x7E, 0, 0, 0, 0, 0x7E, 0x7E, 0x7E, 0x7E}));
    }
  }
}

TEST(QuantizeRows, RefusesWhatItCannotDoWithTheValues) {
  const auto refused = [](auto change) {
    float input = 0, scale = 0;
    uint8_t out = 0;
    QuantizeRowsParams p{.rows = 1, .width = 1, .input = &input, .out = &out, .scales = &scale};
    change(p);
    return message_of<InvalidArgument>([&] { quantize_rows(p, 1); });
  };
  EXPECT_THAT(refused([](QuantizeRowsParams& p) { p.rows = -1; }), Names("rows", -1, 0));
  EXPECT_THAT(refused([](QuantizeRowsParams& p) { p.width = 0; }), Names("width", 0, 1));
  EXPECT_THAT(refused([](QuantizeRowsParams& p) { p.input = nullptr; }), Names("input", "null"));
  EXPECT_THAT(refused([](QuantizeRowsParams& p) { p.out = nullptr; }), Names("out", "null"));
  EXPECT_THAT(refused([](QuantizeRowsParams& p) { p.scales = nullptr; }), Names("scales", "null"));
}

}  // namespace
}  // namespace allot::kernels
