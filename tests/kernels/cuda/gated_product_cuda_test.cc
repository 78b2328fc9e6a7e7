// Gate and up of an MLP in one kernel against sums in double precision of the same rounded numbers. Arrays
// lie between guard bands of NaN.
#include "kernels/gated_product_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "captured_graph.h"
#include "kernels/rows_cuda.h"
#include "rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::CapturedGraph;
using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::require;
using testing::RowsCuda;

constexpr DType kSixteenBitTypes[] = {DType::kBFloat16, DType::kFloat16};

struct GatedShape {
  int64_t rows;
  int32_t width, in_features;
};

std::string of_shape(DType dtype, const GatedShape& shape) {
  return std::string(name(dtype)) + ", " + std::to_string(shape.rows) + " rows of " +
         std::to_string(shape.in_features) + ", width " + std::to_string(shape.width);
}

Elements normal_elements(DType dtype, int64_t count, double deviation, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, deviation);
  Elements elements(dtype, count, 0);
  for (int64_t i = 0; i < count; ++i) elements.set(i, static_cast<float>(normal(random)));
  return elements;
}

std::vector<double> values_of(const Elements& elements, int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(elements.get(i));
  return values;
}

double activated(Activation activation, double x) {
  if (activation == Activation::kReluSquared) return x < 0 ? 0 : x * x;
  return x / (1 + std::exp(-x));
}
// Largest slope there.
double steepness(Activation activation, double x) {
  return activation == Activation::kReluSquared ? 2 * std::max(x, 0.0) + 1e-3 : 1.1;
}

class GatedProductCuda : public RowsCuda {
 protected:
  void SetUp() override {
    RowsCuda::SetUp();
    if (!IsSkipped() && !gated_product_supports(8, 8, DType::kBFloat16, gpu_limits()))
      GTEST_SKIP() << "needs compute capability 9.0 and machine code for it; this is "
                   << gpu_limits().compute_capability;
  }

  // Weights about as large as make sums of the input's size.
  GatedProductParams product(DType dtype, const GatedShape& shape, const Elements& input) {
    const auto [rows, width, in_features] = shape;
    const Elements weight = normal_elements(dtype, int64_t{2} * width * in_features,
                                            1 / std::sqrt(static_cast<double>(in_features)), 2);
    weights_ = values_of(weight, int64_t{2} * width * in_features);
    return {.rows = rows,
            .width = width,
            .in_features = in_features,
            .dtype = dtype,
            .input = put(input).data(),
            .weight = put(weight).data()};
  }

  Elements run(GatedProductParams p) {
    const GuardedArray& out = put(Elements(p.dtype, p.rows * p.width, NAN));
    p.out = out.data();
    gated_product_cuda(p, gpu_limits(), stream_);
    return get(p.dtype, out);
  }

  void expect_sums(const GatedProductParams& p, const Elements& input, const Elements& result) const {
    const double unit = p.dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
    const std::vector<double> inputs = values_of(input, p.rows * p.in_features);
    for (int64_t row = 0; row < p.rows; ++row) {
      const double* const x = inputs.data() + row * p.in_features;
      for (int32_t feature = 0; feature < p.width; ++feature) {
        double sums[2] = {}, errors[2] = {};
        for (int half = 0; half < 2; ++half) {
          const double* const w = weights_.data() + (int64_t{half} * p.width + feature) * p.in_features;
          for (int32_t i = 0; i < p.in_features; ++i) {
            sums[half] += x[i] * w[i];
            errors[half] += 0x1p-18 * std::abs(x[i] * w[i]);
          }
        }
        const double gate = activated(p.activation, sums[0]), expected = gate * sums[1];
        const double of_sums =
            errors[0] * steepness(p.activation, sums[0]) * std::abs(sums[1]) + errors[1] * std::abs(gate);
        ASSERT_NEAR(result.get(row * p.width + feature), expected,
                    1e-7 + of_sums + 1.01 * unit * std::abs(expected))
            << "row " << row << " feature " << feature;
      }
    }
  }

  std::vector<double> weights_;
};

TEST_F(GatedProductCuda, SumsAreActivatedMultipliedAndRoundedOnce) {
  // Less than a tile in every direction, ragged ends, one row more than a block and than a cluster has, and
  // more tiles than clusters, of several bands of rows.
  const GatedShape shapes[] = {{1, 8, 8},        {1, 264, 72},    {127, 136, 64},   {128, 128, 128},
                               {129, 1000, 520}, {257, 320, 200}, {1100, 2048, 64}, {2200, 640, 72}};
  for (const DType dtype : kSixteenBitTypes) {
    for (const GatedShape& shape : shapes) {
      SCOPED_TRACE(of_shape(dtype, shape));
      const Elements input = normal_elements(dtype, shape.rows * shape.in_features, 1, 1);
      GatedProductParams p = product(dtype, shape, input);
      for (const Activation activation : {Activation::kSilu, Activation::kReluSquared}) {
        p.activation = activation;
        expect_sums(p, input, run(p));
        if (HasFatalFailure()) return;
      }
      for (const auto& array : arrays_) array->expect_guards("an array", stream_);
      arrays_.clear();
    }
  }
}

TEST_F(GatedProductCuda, GatesFarFromZeroAreZeroOrThemselves) {
  constexpr GatedShape kShape{3, 16, 8};
  Elements input(DType::kBFloat16, kShape.rows * kShape.in_features, 0);
  for (const int64_t row : {0, 1, 2})
    input.set(row * kShape.in_features, row == 2 ? 0 : row == 1 ? -1.0f : 1.0f);
  Elements weight(DType::kBFloat16, int64_t{2} * kShape.width * kShape.in_features, 0);
  const float gates[] = {20, 88, 100, 1000, 1e30f, 0.5f, 1, 0};
  for (int32_t i = 0; i < kShape.width; ++i) {
    weight.set(int64_t{i} * kShape.in_features, gates[i % 8]);
    weight.set(int64_t{kShape.width + i} * kShape.in_features, 1);
  }
  const Elements result = run({.rows = kShape.rows,
                               .width = kShape.width,
                               .in_features = kShape.in_features,
                               .input = put(input).data(),
                               .weight = put(weight).data()});
  for (int32_t i = 0; i < kShape.width; ++i) {
    const double gate = weight.get(int64_t{i} * kShape.in_features);
    EXPECT_NEAR(result.get(i), activated(Activation::kSilu, gate), 0x1p-8 * gate) << gate;
    EXPECT_NEAR(result.get(kShape.width + i), -activated(Activation::kSilu, -gate), 0x1p-8) << -gate;
    EXPECT_EQ(result.get(2 * kShape.width + i), 0) << gate;
  }
}

TEST_F(GatedProductCuda, ARowHasTheSameBitsAmongAnyOthers) {
  constexpr GatedShape kShape{600, 392, 328};
  for (const DType dtype : kSixteenBitTypes) {
    const Elements input = normal_elements(dtype, kShape.rows * kShape.in_features, 1, 3);
    const GatedProductParams all = product(dtype, kShape, input);
    const Elements together = run(all);
    ASSERT_EQ(run(all).bytes(), together.bytes());
    const auto row_bytes = static_cast<size_t>(kShape.in_features * size_of(dtype));
    for (const int64_t row : {int64_t{0}, int64_t{127}, int64_t{128}, int64_t{300}, int64_t{599}}) {
      Elements alone(dtype, kShape.in_features, 0);
      std::memcpy(alone.data(), input.bytes().data() + static_cast<size_t>(row) * row_bytes, row_bytes);
      GatedProductParams p = all;
      p.rows = 1;
      p.input = put(alone).data();
      const Elements result = run(p);
      for (int32_t i = 0; i < kShape.width; ++i)
        ASSERT_EQ(result.get(i), together.get(row * kShape.width + i)) << "row " << row << " feature " << i;
    }
  }
}

TEST_F(GatedProductCuda, NaNStaysInItsRow) {
  constexpr GatedShape kShape{130, 136, 72};
  Elements input = normal_elements(DType::kBFloat16, kShape.rows * kShape.in_features, 1, 4);
  input.set(7 * kShape.in_features + 5, NAN);
  const GatedProductParams p = product(DType::kBFloat16, kShape, input);
  const Elements result = run(p);
  for (int64_t i = 0; i < kShape.rows * kShape.width; ++i)
    ASSERT_EQ(std::isnan(result.get(i)), i / kShape.width == 7) << "row " << i / kShape.width;
}

// Each product overwrites what the one before has made of its input, and the norm between them reads that.
TEST_F(GatedProductCuda, InAGraphItWaitsForTheKernelsBefore) {
  constexpr int32_t kWidth = 512;
  constexpr int64_t kRows = 700;
  const Elements start = normal_elements(DType::kBFloat16, kRows * kWidth, 1, 5);
  GuardedArray& hidden = put(start);
  GuardedArray& normed = put(Elements(DType::kBFloat16, kRows * kWidth, 0));
  const GuardedArray& norm = put(Elements(DType::kBFloat16, kWidth, 1));
  GatedProductParams p = product(DType::kBFloat16, {kRows, kWidth, kWidth}, start);
  p.input = normed.data();
  p.out = hidden.data();
  const auto begin = [&] { hidden.upload(start.bytes().data(), stream_); };
  const auto queue = [&](const auto& between) {
    for (int layer = 0; layer < 12; ++layer) {
      rms_norm_cuda({.rows = kRows,
                     .width = kWidth,
                     .dtype = DType::kBFloat16,
                     .epsilon = 1e-6f,
                     .input = hidden.data(),
                     .weight = norm.data(),
                     .out = normed.data()},
                    gpu_limits(), stream_);
      between();
      gated_product_cuda(p, gpu_limits(), stream_);
      between();
    }
  };
  begin();
  queue([&] { require(cudaStreamSynchronize(stream_), "a kernel"); });
  const std::vector<unsigned char> expected = hidden.download(stream_);
  ASSERT_TRUE(std::isfinite(Elements(DType::kBFloat16, expected).get(0)));
  CapturedGraph graph(stream_, [&] { queue([] {}); });
  for (int launch = 0; launch < 5; ++launch) {
    begin();
    graph.launch();
    ASSERT_EQ(hidden.download(stream_), expected) << "launch " << launch;
  }
}

}  // namespace
}  // namespace allot::kernels
