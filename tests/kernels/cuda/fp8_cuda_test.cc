// Products with weights of 8 bits on a GPU against sums in double precision of the numbers that the bits
// stand for. Arrays lie between guard bands of NaN.
#include "kernels/fp8_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/rows_cuda.h"
#include "rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;

constexpr int64_t kRowsToQuantise = 5;

class Fp8Cuda : public testing::RowsCuda {
 protected:
  template <class X>
  GuardedArray& put_aligned(const std::vector<X>& values, size_t alignment) {
    return put_bytes(values.data(), values.size() * sizeof(X), alignment);
  }
  const uint8_t* put_weights(const std::vector<uint8_t>& bits) {
    return static_cast<const uint8_t*>(put_aligned(bits, 16).data());
  }
  // Aligned as little as results and biases may be.
  GuardedArray& put_elements(const Elements& elements) { return put_aligned(elements.bytes(), 2); }

  // Rows of 8 bits on the device.
  struct Made {
    GuardedArray &elements, &scales;
    QuantizedRows rows() const {
      return {.elements = static_cast<uint8_t*>(elements.data()),
              .scales = static_cast<float*>(scales.data())};
    }
  };
  Made room(int32_t width) {
    return {put_aligned(std::vector<uint8_t>(static_cast<size_t>(kRowsToQuantise * width), 0xAA), 16),
            put_aligned(std::vector<float>(kRowsToQuantise, -1), 4)};
  }
  Made quantized(const GuardedArray& rows, int32_t width) {
    const Made made = room(width);
    quantize_rows_cuda({.rows = kRowsToQuantise,
                        .width = width,
                        .dtype = DType::kBFloat16,
                        .input = rows.data(),
                        .out = made.rows().elements,
                        .scales = made.rows().scales},
                       gpu_limits(), stream_);
    return made;
  }
  void expect_same(const Made& expected, const Made& got) {
    EXPECT_TRUE(expected.elements.download(stream_) == got.elements.download(stream_));
    const Elements scales = get(DType::kFloat32, expected.scales), others = get(DType::kFloat32, got.scales);
    int64_t finite = 0;
    for (int64_t row = 0; row < kRowsToQuantise; ++row) {
      const float scale = scales.get(row), other = others.get(row);
      EXPECT_TRUE(scale == other || (std::isnan(scale) && std::isnan(other))) << scale << " " << other;
      if (!std::isnan(scale)) ++finite;
    }
    EXPECT_EQ(finite, kRowsToQuantise - 2);
  }

  // Gives the arrays back; none of their guards may have changed.
  void drop() {
    for (const auto& array : arrays_) array->expect_guards("an array", stream_);
    arrays_.clear();
  }
};

// --- Rows of 8 bits

TEST_F(Fp8Cuda, RowsAreQuantisedAsOnTheCpuToTheBit) {
  // A row is kept in registers up to 512 threads x 4 vectors; beyond it is read again.
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t width : {1, 7, 8, 96, 576, 4096, 4104, 18944, 20001}) {
      for (const size_t alignment : {size_t{16}, static_cast<size_t>(size_of(dtype))}) {
        SCOPED_TRACE(std::string(name(dtype)) + " width " + std::to_string(width) + " aligned to " +
                     std::to_string(alignment));
        constexpr int64_t kRows = 9;
        std::mt19937 random(static_cast<uint32_t>(width));
        std::normal_distribution<float> normal;
        Elements input(dtype, kRows * width, 0);
        for (int64_t i = 0; i < input.count(); ++i) {
          const auto row = static_cast<float>(i / width);
          input.set(i, normal(random) * std::exp2(row) * (random() % 64 == 0 ? 20.0f : 1.0f));
        }
        for (int32_t i = 0; i < width; ++i) input.set(3 * width + i, 0);
        input.set(4 * width + width / 2, NAN);
        input.set(5 * width + width - 1, std::numeric_limits<float>::infinity());
        std::vector<uint8_t> bits(static_cast<size_t>(kRows * width));
        std::vector<float> scales(kRows);
        Elements copy = input;
        quantize_rows({.rows = kRows,
                       .width = width,
                       .dtype = dtype,
                       .input = copy.data(),
                       .out = bits.data(),
                       .scales = scales.data()},
                      1);
        const GuardedArray& out =
            put_aligned(std::vector<uint8_t>(bits.size(), 0xAA), alignment == 16 ? 16 : 1);
        const GuardedArray& out_scales = put_aligned(std::vector<float>(kRows, -1), 4);
        quantize_rows_cuda({.rows = kRows,
                            .width = width,
                            .dtype = dtype,
                            .input = put_aligned(input.bytes(), alignment).data(),
                            .out = static_cast<uint8_t*>(out.data()),
                            .scales = static_cast<float*>(out_scales.data())},
                           gpu_limits(), stream_);
        EXPECT_TRUE(out.download(stream_) == bits);
        const Elements got = get(DType::kFloat32, out_scales);
        for (int64_t row = 0; row < kRows; ++row) {
          if (row == 4 || row == 5) {
            EXPECT_TRUE(std::isnan(got.get(row)) && std::isnan(scales[static_cast<size_t>(row)])) << row;
          } else {
            EXPECT_EQ(got.get(row), scales[static_cast<size_t>(row)]) << row;
          }
        }
        drop();
      }
    }
  }
}

// Rows that are kept in registers and longer ones, of which a part is computed again.
constexpr int32_t kQuantizedWidths[] = {16, 96, 576, 3584, 8192, 8208, 18944, 32768, 33008};
// Rows of different sizes, of which two have no scale.
Elements rows_to_quantise(int64_t width, uint32_t seed) {
  Elements rows = testing::random_elements(DType::kBFloat16, kRowsToQuantise * width, seed);
  for (int64_t i = 0; i < width; ++i) rows.set(i, 40 * rows.get(i));
  rows.set(2 * width + width / 2, NAN);
  rows.set(3 * width + width - 1, std::numeric_limits<float>::infinity());
  return rows;
}

TEST_F(Fp8Cuda, ANormLeavesTheRowsThatQuantisingItsResultGives) {
  for (const int32_t width : kQuantizedWidths) {
    for (const bool with_residual : {false, true}) {
      SCOPED_TRACE("width " + std::to_string(width) + (with_residual ? " with a residual" : ""));
      const Elements stream = testing::random_elements(DType::kBFloat16, kRowsToQuantise * width, 12);
      GuardedArray &residual = put_aligned(stream.bytes(), 16), &other = put_aligned(stream.bytes(), 16);
      GuardedArray& normed = put_aligned(stream.bytes(), 16);
      RmsNormParams p{
          .rows = kRowsToQuantise,
          .width = width,
          .dtype = DType::kBFloat16,
          .epsilon = 1e-6f,
          .input = put_aligned(rows_to_quantise(width, 11).bytes(), 16).data(),
          .residual = with_residual ? residual.data() : nullptr,
          .weight = put_aligned(testing::random_elements(DType::kBFloat16, width, 13).bytes(), 16).data(),
          .out = normed.data()};
      rms_norm_cuda(p, gpu_limits(), stream_);
      const Made expected = quantized(normed, width), got = room(width);
      p.out = nullptr;
      if (with_residual) p.residual = other.data();
      rms_norm_quantized_cuda(p, got.rows(), gpu_limits(), stream_);
      expect_same(expected, got);
      EXPECT_TRUE(residual.download(stream_) == other.download(stream_));
      drop();
    }
  }
}

TEST_F(Fp8Cuda, AnActivationLeavesTheRowsThatQuantisingItsResultGives) {
  for (const int32_t width : kQuantizedWidths) {
    for (const Activation activation : {Activation::kSilu, Activation::kReluSquared}) {
      SCOPED_TRACE("width " + std::to_string(width) + " activation " +
                   std::to_string(static_cast<int>(activation)));
      GuardedArray& activated =
          put_aligned(Elements(DType::kBFloat16, kRowsToQuantise * width, testing::kOld).bytes(), 16);
      ActivateAndMultiplyParams p{.rows = kRowsToQuantise,
                                  .width = width,
                                  .dtype = DType::kBFloat16,
                                  .activation = activation,
                                  .gate_up = put_aligned(rows_to_quantise(2 * width, 14).bytes(), 16).data(),
                                  .out = activated.data()};
      activate_and_multiply_cuda(p, gpu_limits(), stream_);
      const Made expected = quantized(activated, width), got = room(width);
      p.out = nullptr;
      activate_and_multiply_quantized_cuda(p, got.rows(), gpu_limits(), stream_);
      expect_same(expected, got);
      drop();
    }
  }
}

// --- Products of few rows

// Weights of 8 bits with scales, and what they stand for without them.
struct Weights {
  // All bit patterns but NaN, subnormal numbers too.
  Weights(int32_t out_features, int32_t in_features, uint32_t seed) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> bit(0, 255);
    std::uniform_real_distribution<float> scale(0.001f, 0.01f);
    for (int64_t i = 0; i < int64_t{out_features} * in_features; ++i) {
      int next = bit(random);
      while ((next & 0x7F) == kE4m3Nan) next = bit(random);
      bits.push_back(static_cast<uint8_t>(next));
    }
    for (int32_t i = 0; i < out_features; ++i) scales.push_back(scale(random));
  }
  std::vector<uint8_t> bits;
  std::vector<float> scales;
};

Elements normal_rows(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Elements rows(DType::kBFloat16, count, 0);
  for (int64_t i = 0; i < count; ++i) rows.set(i, normal(random));
  return rows;
}

// The first `count` elements.
Elements first_of(const Elements& elements, int64_t count) {
  return {DType::kBFloat16,
          {elements.bytes().begin(), elements.bytes().begin() + static_cast<std::ptrdiff_t>(2 * count)}};
}

struct Fp8Sum {
  double exact = 0, magnitude = 0;
};

Fp8Sum sum_of(const Elements& input, int64_t row, const Weights& weights, int64_t feature,
              int32_t in_features) {
  Fp8Sum sum;
  const double scale = weights.scales[static_cast<size_t>(feature)];
  for (int32_t i = 0; i < in_features; ++i) {
    const double term = scale * input.get(row * in_features + i) *
                        float_from_e4m3(weights.bits[static_cast<size_t>(feature * in_features + i)]);
    sum.exact += term;
    sum.magnitude += std::abs(term);
  }
  return sum;
}

TEST_F(Fp8Cuda, ProductsOfAllSizesAreRoundedOnce) {
  // Odd numbers of features; one vector, a chunk that is not full, runs of several warps, several runs a
  // warp.
  const struct {
    int32_t out_features, in_features;
  } shapes[] = {{1, 16}, {3, 48}, {127, 80}, {17, 256}, {40, 2064}, {127, 4096}, {33, 14336}};
  for (const auto& [out_features, in_features] : shapes) {
    const Weights weights(out_features, in_features, 2);
    const Elements input = normal_rows(kMaxFp8MatvecRows * in_features, 1),
                   bias = normal_rows(out_features, 3);
    std::vector<Fp8Sum> sums;
    for (int64_t row = 0; row < kMaxFp8MatvecRows; ++row)
      for (int64_t feature = 0; feature < out_features; ++feature)
        sums.push_back(sum_of(input, row, weights, feature, in_features));
    Fp8MatvecParams p{.out_features = out_features,
                      .in_features = in_features,
                      .weight = put_weights(weights.bits),
                      .weight_scales = put(weights.scales)};
    const void* const device_bias = put_elements(bias).data();
    for (p.rows = 1; p.rows <= kMaxFp8MatvecRows; ++p.rows) {
      p.input = put(first_of(input, p.rows * in_features)).data();  // a guard of NaN after the last row
      for (const bool with_bias : {false, true}) {
        SCOPED_TRACE(std::to_string(p.rows) + " rows, [" + std::to_string(out_features) + ", " +
                     std::to_string(in_features) + "]" + (with_bias ? " with a bias" : ""));
        p.bias = with_bias ? device_bias : nullptr;
        p.out_stride = out_features + (with_bias ? 5 : 0);
        const GuardedArray& out = put_elements(Elements(DType::kBFloat16, p.rows * p.out_stride, NAN));
        p.out = out.data();
        fp8_matvec_cuda(p, gpu_limits(), stream_);
        const Elements result = get(DType::kBFloat16, out);
        for (int64_t i = 0; i < p.rows * p.out_stride; ++i) {
          const int64_t row = i / p.out_stride, feature = i % p.out_stride;
          if (feature >= out_features) {
            ASSERT_TRUE(std::isnan(result.get(i))) << "the gap of row " << row << " was written";
            continue;
          }
          const Fp8Sum& sum = sums[static_cast<size_t>(row * out_features + feature)];
          const double added = with_bias ? bias.get(feature) : 0, expected = sum.exact + added;
          const double of_sums = 0x1p-18 * (sum.magnitude + std::abs(added));
          ASSERT_NEAR(result.get(i), expected, of_sums + 0x1p-8 * (std::abs(expected) + of_sums))
              << "row " << row << " feature " << feature;
        }
      }
    }
    drop();
  }
}

// Up to 8 rows, and more, have an order of their own.
TEST_F(Fp8Cuda, ARowsBitsDoNotDependOnTheOtherRows) {
  constexpr int32_t kFeatures = 100, kWidth = 4112;
  const Weights weights(kFeatures, kWidth, 4);
  const Elements input = normal_rows(kMaxFp8MatvecRows * kWidth, 5);
  Fp8MatvecParams p{.out_features = kFeatures,
                    .in_features = kWidth,
                    .input = put(input).data(),
                    .weight = put_weights(weights.bits),
                    .weight_scales = put(weights.scales),
                    .out_stride = kFeatures};
  std::vector<unsigned char> all;
  for (p.rows = kMaxFp8MatvecRows; p.rows > 0; --p.rows) {
    const GuardedArray& out = put_elements(Elements(DType::kBFloat16, p.rows * kFeatures, NAN));
    p.out = out.data();
    fp8_matvec_cuda(p, gpu_limits(), stream_);
    const std::vector<unsigned char> bytes = out.download(stream_);
    if (p.rows == kMaxFp8MatvecRows || p.rows == 8) all = bytes;
    ASSERT_TRUE(std::equal(bytes.begin(), bytes.end(), all.begin())) << p.rows << " rows";
  }
}

TEST_F(Fp8Cuda, AChannelWithoutScaleIsNanAndOnlyThat) {
  constexpr int32_t kFeatures = 40, kWidth = 64;
  Weights weights(kFeatures, kWidth, 6);
  weights.scales[7] = NAN;
  const GuardedArray& out = put_elements(Elements(DType::kBFloat16, 2 * kFeatures, 0));
  fp8_matvec_cuda({.rows = 2,
                   .out_features = kFeatures,
                   .in_features = kWidth,
                   .input = put(normal_rows(2 * kWidth, 7)).data(),
                   .weight = put_weights(weights.bits),
                   .weight_scales = put(weights.scales),
                   .out = out.data(),
                   .out_stride = kFeatures},
                  gpu_limits(), stream_);
  const Elements result = get(DType::kBFloat16, out);
  for (int64_t i = 0; i < 2 * kFeatures; ++i) EXPECT_EQ(std::isnan(result.get(i)), i % kFeatures == 7) << i;
}

// --- Products that are scaled afterwards

TEST_F(Fp8Cuda, AProductIsScaledByRowAndChannelAndRoundedOnce) {
  constexpr int64_t kRows = 3;
  for (const int32_t features : {1, 31, 1000}) {
    for (const bool with_bias : {false, true}) {
      const int64_t stride = features + 3;
      const Elements product = normal_rows(kRows * stride, 8), bias = normal_rows(features, 9);
      const std::vector<float> of_rows{0.25f, 3.1f, 1e-3f};
      const Weights weights(features, 1, 10);
      const GuardedArray& out = put_elements(product);
      scale_product_cuda({.rows = kRows,
                          .out_features = features,
                          .input_scales = put(of_rows),
                          .weight_scales = put(weights.scales),
                          .bias = with_bias ? put_elements(bias).data() : nullptr,
                          .out = out.data(),
                          .out_stride = stride},
                         gpu_limits(), stream_);
      const Elements result = get(DType::kBFloat16, out);
      for (int64_t i = 0; i < kRows * stride; ++i) {
        const int64_t feature = i % stride;
        if (feature >= features) {
          ASSERT_EQ(result.get(i), product.get(i)) << "the gap was written";
          continue;
        }
        const double expected = double{product.get(i)} * of_rows[static_cast<size_t>(i / stride)] *
                                    weights.scales[static_cast<size_t>(feature)] +
                                (with_bias ? bias.get(feature) : 0);
        ASSERT_NEAR(result.get(i), expected, 0x1.01p-8 * std::abs(expected) + 1e-9) << i;
      }
      drop();
    }
  }
}

}  // namespace
}  // namespace allot::kernels
