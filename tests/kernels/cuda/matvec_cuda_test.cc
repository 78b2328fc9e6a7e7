// Products of few rows on a GPU against sums in double precision of the same rounded numbers. Arrays lie
// between guard bands of NaN.
#include "kernels/matvec_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "captured_graph.h"
#include "cuda_launch.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::CapturedGraph;
using testing::CudaTest;
using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::require;

// From which on sums have another order (matvec_cuda.h).
constexpr int32_t kManyFeatures = 65536;
constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat16};

// Of a test, as stored and as doubles.
struct Numbers {
  template <class Draw>
  Numbers(DType dtype, int64_t count, const Draw& draw) : stored(dtype, count, 0) {
    for (int64_t i = 0; i < count; ++i) {
      stored.set(i, draw());
      values.push_back(stored.get(i));
    }
  }
  Elements stored;
  std::vector<double> values;
};

Numbers normal_numbers(DType dtype, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return {dtype, count, [&] { return normal(random); }};
}

// Their products' sums are exact in float32 in any order for up to 2^18 terms.
Numbers small_integers(DType dtype, int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> integer(-8, 8);
  return {dtype, count, [&] { return static_cast<float>(integer(random)); }};
}

struct Sums {
  std::vector<double> exact, magnitude;  // [rows, out_features]
};

Sums sums_of(const Numbers& input, const Numbers& weight, int64_t rows, int32_t out_features,
             int32_t in_features) {
  Sums sums;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t feature = 0; feature < out_features; ++feature) {
      const double* const x = input.values.data() + row * in_features;
      const double* const w = weight.values.data() + feature * in_features;
      double exact = 0, magnitude = 0;
      for (int32_t i = 0; i < in_features; ++i) {
        exact += x[i] * w[i];
        magnitude += std::abs(x[i] * w[i]);
      }
      sums.exact.push_back(exact);
      sums.magnitude.push_back(magnitude);
    }
  }
  return sums;
}

struct Shape {
  int32_t out_features, in_features;
};

std::string where(DType dtype, const Shape& shape, int64_t rows) {
  return std::string(name(dtype)) + ", " + std::to_string(rows) + " rows, [" +
         std::to_string(shape.out_features) + ", " + std::to_string(shape.in_features) + "]";
}

class MatvecCuda : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    drop();
    require(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  }

  GuardedArray& put(const Elements& elements, size_t alignment = 16) {
    arrays_.push_back(std::make_unique<GuardedArray>(elements.bytes().size(), alignment));
    arrays_.back()->upload(elements.bytes().data(), stream_);
    require(cudaStreamSynchronize(stream_), "upload");
    return *arrays_.back();
  }

  // Room for `rows` rows of NaN.
  GuardedArray& put_out(DType dtype, int64_t rows, int64_t out_stride) {
    return put(Elements(dtype, rows * out_stride, NAN), static_cast<size_t>(size_of(dtype)));
  }

  // Gives the arrays back; none of their guards may have changed.
  void drop() {
    for (const auto& array : arrays_) array->expect_guards("an array", stream_);
    arrays_.clear();
  }

  Elements get(DType dtype, const GuardedArray& array) { return Elements(dtype, array.download(stream_)); }

  // Calls queue() in a graph that is replayed `launches` times, with before() ahead of each.
  template <class Queue, class Before, class After>
  void replay(int launches, const Queue& queue, const Before& before, const After& after) {
    CapturedGraph graph(stream_, queue);
    for (int launch = 0; launch < launches; ++launch) {
      before();
      graph.launch();
      after(launch);
    }
  }

  cudaStream_t stream_ = nullptr;
  std::vector<std::unique_ptr<GuardedArray>> arrays_;
};

TEST_F(MatvecCuda, ProductsOfAllSizesAreRoundedOnce) {
  // Odd numbers of features, fewer vectors than lanes, a ragged last run; features for one wave of wider
  // blocks (on an H100), and as many as logits have.
  const Shape shapes[] = {{1, 8},      {3, 8},      {127, 8},     {1, 72},
                          {127, 72},   {2600, 72},  {6001, 72},   {1, 4096},
                          {3, 4096},   {127, 4096}, {2201, 4096}, {kManyFeatures + 3, 8},
                          {127, 3592}, {1, 14336},  {3, 14336},   {127, 14336}};
  for (const DType dtype : kTypes) {
    const double unit = dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
    for (const Shape& shape : shapes) {
      const auto [out_features, in_features] = shape;
      const Numbers input = normal_numbers(dtype, kMaxMatvecRows * in_features, 1);
      const Numbers weight = normal_numbers(dtype, int64_t{out_features} * in_features, 2);
      const Numbers bias = normal_numbers(dtype, out_features, 3);
      const Sums sums = sums_of(input, weight, kMaxMatvecRows, out_features, in_features);
      MatvecParams p{.out_features = out_features,
                     .in_features = in_features,
                     .dtype = dtype,
                     .weight = put(weight.stored).data()};
      const GuardedArray& device_bias = put(bias.stored, static_cast<size_t>(size_of(dtype)));
      for (p.rows = 1; p.rows <= kMaxMatvecRows; ++p.rows) {
        if (out_features >= kManyFeatures && p.rows % 8 > 1) continue;
        Elements rows(dtype, p.rows * in_features, 0);
        std::memcpy(rows.data(), input.stored.bytes().data(), rows.bytes().size());
        p.input = put(rows).data();  // a guard of NaN after the last row
        for (const int32_t gap : {0, 5}) {
          for (const bool with_bias : {false, true}) {
            SCOPED_TRACE(where(dtype, shape, p.rows) + (with_bias ? " with a bias" : ""));
            p.bias = with_bias ? device_bias.data() : nullptr;
            p.out_stride = out_features + gap;
            const GuardedArray& out = put_out(dtype, p.rows, p.out_stride);
            p.out = out.data();
            matvec_cuda(p, gpu_limits(), stream_);
            const Elements result = get(dtype, out);
            for (int64_t i = 0; i < p.rows * p.out_stride; ++i) {
              const int64_t row = i / p.out_stride, feature = i % p.out_stride;
              if (feature >= out_features) {
                ASSERT_TRUE(std::isnan(result.get(i))) << "the gap of row " << row << " was written";
                continue;
              }
              const auto at = static_cast<size_t>(row * out_features + feature);
              const double added = with_bias ? bias.values[static_cast<size_t>(feature)] : 0;
              const double expected = sums.exact[at] + added;
              const double of_sums = 0x1p-18 * (sums.magnitude[at] + std::abs(added));
              ASSERT_NEAR(result.get(i), expected, of_sums + unit * (std::abs(expected) + of_sums))
                  << "row " << row << " feature " << feature;
            }
          }
        }
      }
      drop();
    }
  }
}

TEST_F(MatvecCuda, ExactSumsAreRoundedToTheNearestAfterTheBias) {
  // With sums and biases (halves) that float32 holds exactly only one result is right. Rounded before the
  // bias, about a fifth of them are another.
  for (const DType dtype : kTypes) {
    for (const Shape& shape : {Shape{127, 4096}, Shape{2113, 1024}, Shape{3, 14336}}) {
      const auto [out_features, in_features] = shape;
      const Numbers input = small_integers(dtype, kMaxMatvecRows * in_features, 4);
      const Numbers weight = small_integers(dtype, int64_t{out_features} * in_features, 5);
      Numbers bias = small_integers(dtype, out_features, 6);
      for (int64_t i = 0; i < out_features; ++i) {
        bias.stored.set(i, bias.stored.get(i) + 0.5f);
        bias.values[static_cast<size_t>(i)] += 0.5;
      }
      const Sums sums = sums_of(input, weight, kMaxMatvecRows, out_features, in_features);
      MatvecParams p{.out_features = out_features,
                     .in_features = in_features,
                     .dtype = dtype,
                     .input = put(input.stored).data(),
                     .weight = put(weight.stored).data(),
                     .bias = put(bias.stored).data(),
                     .out_stride = out_features};
      for (const int64_t rows : {int64_t{1}, int64_t{6}, kMaxMatvecRows}) {
        p.rows = rows;
        const GuardedArray& out = put_out(dtype, p.rows, out_features);
        p.out = out.data();
        matvec_cuda(p, gpu_limits(), stream_);
        const Elements result = get(dtype, out);
        Elements expected(dtype, 1, 0);
        for (int64_t i = 0; i < p.rows * out_features; ++i) {
          const double sum =
              sums.exact[static_cast<size_t>(i)] + bias.values[static_cast<size_t>(i % out_features)];
          expected.set(0, static_cast<float>(sum));
          ASSERT_EQ(result.get(i), expected.get(0))
              << where(dtype, shape, p.rows) << ": element " << i << ", exactly " << sum;
        }
      }
      drop();
    }
  }
}

TEST_F(MatvecCuda, LargeTermsThatCancelLeaveTheSmallOnes) {
  // 2,048 terms of 4,096, as many of -4,096, and 32 more in one of them: partial sums stay exact in float32.
  constexpr int32_t kWidth = 4096, kFeatures = 5;
  for (const DType dtype : kTypes) {
    int64_t next = 0;
    const Numbers input(dtype, kWidth, [&] { return next++ < kWidth / 2 ? 64.0f : -64.0f; });
    Elements weight(dtype, int64_t{kFeatures} * kWidth, 64);
    const int32_t places[kFeatures] = {0, 7, 2047, 2048, kWidth - 1};
    for (int32_t feature = 0; feature < kFeatures; ++feature) {
      weight.set(int64_t{feature} * kWidth + places[feature], 64.5f);
    }
    const GuardedArray& out = put_out(dtype, 1, kFeatures);
    matvec_cuda({.rows = 1,
                 .out_features = kFeatures,
                 .in_features = kWidth,
                 .dtype = dtype,
                 .input = put(input.stored).data(),
                 .weight = put(weight).data(),
                 .out = out.data(),
                 .out_stride = kFeatures},
                gpu_limits(), stream_);
    const Elements result = get(dtype, out);
    for (int32_t feature = 0; feature < kFeatures; ++feature) {
      EXPECT_EQ(result.get(feature), places[feature] < kWidth / 2 ? 32 : -32) << "feature " << feature;
    }
    drop();
  }
}

TEST_F(MatvecCuda, NanStaysInItsRowAndFeature) {
  constexpr int32_t kWidth = 1024, kFeatures = 9;
  for (const int64_t rows : {3, 6, 12}) {
    SCOPED_TRACE(std::to_string(rows) + " rows");
    Elements input(DType::kBFloat16, rows * kWidth, 1), weight(DType::kBFloat16, kFeatures * kWidth, 1);
    input.set(kWidth + 1000, NAN);      // row 1
    weight.set(6 * kWidth + 513, NAN);  // feature 6
    const GuardedArray& out = put(Elements(DType::kBFloat16, rows * kFeatures, 0));
    matvec_cuda({.rows = rows,
                 .out_features = kFeatures,
                 .in_features = kWidth,
                 .dtype = DType::kBFloat16,
                 .input = put(input).data(),
                 .weight = put(weight).data(),
                 .out = out.data(),
                 .out_stride = kFeatures},
                gpu_limits(), stream_);
    const Elements result = get(DType::kBFloat16, out);
    for (int64_t i = 0; i < rows * kFeatures; ++i) {
      if (i / kFeatures == 1 || i % kFeatures == 6) {
        EXPECT_TRUE(std::isnan(result.get(i))) << "element " << i;
      } else {
        EXPECT_EQ(result.get(i), kWidth) << "element " << i;
      }
    }
    drop();
  }
}

TEST_F(MatvecCuda, ARowHasTheSameBitsAmongOthersAndInEveryRun) {
  for (const DType dtype : kTypes) {
    for (const Shape& shape :
         {Shape{127, 14336}, Shape{2200, 4096}, Shape{6001, 1032}, Shape{kManyFeatures + 3, 264}}) {
      const auto [out_features, in_features] = shape;
      const Numbers input = normal_numbers(dtype, kMaxMatvecRows * in_features, 7);
      const GuardedArray& device_input = put(input.stored);
      MatvecParams p{
          .out_features = out_features,
          .in_features = in_features,
          .dtype = dtype,
          .input = device_input.data(),
          .weight = put(normal_numbers(dtype, int64_t{out_features} * in_features, 8).stored).data(),
          .out_stride = out_features};
      // Whose sums have the same order.
      struct Range {
        int64_t fewest, most;
      };
      const std::vector<Range> ranges = out_features < kManyFeatures
                                            ? std::vector<Range>{{1, kMaxMatvecRows}}
                                            : std::vector<Range>{{1, 8}, {9, kMaxMatvecRows}};
      for (const auto& [fewest, most] : ranges) {
        p.rows = most;
        p.input = device_input.data();
        const GuardedArray& all = put_out(dtype, most, out_features);
        p.out = all.data();
        matvec_cuda(p, gpu_limits(), stream_);
        const std::vector<unsigned char> expected = all.download(stream_);
        const auto row_bytes = static_cast<size_t>(out_features * size_of(dtype));
        for (p.rows = fewest; p.rows <= most; ++p.rows) {
          // The last p.rows rows.
          const int64_t first = most - p.rows;
          p.input = static_cast<const char*>(device_input.data()) + first * in_features * size_of(dtype);
          const GuardedArray& out = put_out(dtype, p.rows, out_features);
          p.out = out.data();
          for (int run = 0; run < 5; ++run) {
            out.download(stream_);
            matvec_cuda(p, gpu_limits(), stream_);
            const std::vector<unsigned char> got = out.download(stream_);
            const unsigned char* const of_rows = expected.data() + static_cast<size_t>(first) * row_bytes;
            ASSERT_EQ(std::memcmp(got.data(), of_rows, got.size()), 0)
                << where(dtype, shape, p.rows) << ", run " << run;
          }
        }
      }
      drop();
    }
  }
}

TEST_F(MatvecCuda, ItWaitsForASlowKernelThatWritesItsInput) {
  // One block norms a row of 8 MB, about a millisecond, and lets the product start at its beginning; the
  // input is what it writes last.
  constexpr DType kType = DType::kBFloat16;
  constexpr int32_t kWidth = 1 << 22, kInFeatures = 4096, kOutFeatures = 4096;
  const Numbers row = normal_numbers(kType, kWidth, 9);
  GuardedArray& normed = put(Elements(kType, kWidth, NAN));
  const RmsNormParams norm{.rows = 1,
                           .width = kWidth,
                           .dtype = kType,
                           .epsilon = 1e-6f,
                           .input = put(row.stored).data(),
                           .weight = put(Elements(kType, kWidth, 1)).data(),
                           .out = normed.data()};
  GuardedArray& out = put_out(kType, kMaxMatvecRows, kOutFeatures);
  MatvecParams p{.out_features = kOutFeatures,
                 .in_features = kInFeatures,
                 .dtype = kType,
                 .weight = put(normal_numbers(kType, int64_t{kOutFeatures} * kInFeatures, 10).stored).data(),
                 .out = out.data(),
                 .out_stride = kOutFeatures};
  for (p.rows = 1; p.rows <= kMaxMatvecRows; ++p.rows) {
    const int64_t first = kWidth - p.rows * kInFeatures;
    p.input = static_cast<const char*>(normed.data()) + first * size_of(kType);
    const auto queue = [&] {
      rms_norm_cuda(norm, gpu_limits(), stream_);
      matvec_cuda(p, gpu_limits(), stream_);
    };
    const auto forget = [&] {
      normed.fill(0xFF, stream_);
      out.fill(0xFF, stream_);
    };
    forget();
    rms_norm_cuda(norm, gpu_limits(), stream_);
    require(cudaStreamSynchronize(stream_), "the norm");
    matvec_cuda(p, gpu_limits(), stream_);
    const std::vector<unsigned char> expected = out.download(stream_);
    ASSERT_FALSE(std::isnan(Elements(kType, expected).get(0)));
    forget();
    queue();
    ASSERT_EQ(out.download(stream_), expected) << p.rows << " rows, queued";
    replay(3, queue, forget, [&](int launch) {
      ASSERT_EQ(out.download(stream_), expected) << p.rows << " rows, launch " << launch;
    });
  }
}

class MatvecChain : public MatvecCuda, public ::testing::WithParamInterface<int64_t> {};

// As the layers of a decode step: every kernel starts while its predecessors end.
TEST_P(MatvecChain, InAGraphGivesWhatSeparateCallsGive) {
  constexpr DType kType = DType::kBFloat16;
  const int64_t rows = GetParam();
  constexpr int32_t kHidden = 2048, kWide = 5632;
  GuardedArray& hidden = put(Elements(kType, rows * kHidden, 0));
  GuardedArray& residual = put(Elements(kType, rows * kHidden, 0));
  GuardedArray& gate_up = put(Elements(kType, rows * 2 * kWide, 0));
  GuardedArray& activated = put(Elements(kType, rows * kWide, 0));
  const GuardedArray& norm = put(Elements(kType, kHidden, 1));
  const GuardedArray& up = put(normal_numbers(kType, int64_t{2} * kWide * kHidden, 11).stored);
  const GuardedArray& down = put(normal_numbers(kType, int64_t{kWide} * kHidden, 12).stored);
  const Numbers start = normal_numbers(kType, rows * kHidden, 13);
  const auto begin = [&] {
    hidden.upload(start.stored.bytes().data(), stream_);
    residual.fill(0, stream_);
  };
  const auto run = [&](const auto& between) {
    for (int layer = 0; layer < 20; ++layer) {
      rms_norm_cuda({.rows = rows,
                     .width = kHidden,
                     .dtype = kType,
                     .epsilon = 1e-6f,
                     .input = hidden.data(),
                     .residual = residual.data(),
                     .weight = norm.data(),
                     .out = hidden.data()},
                    gpu_limits(), stream_);
      between();
      matvec_cuda({.rows = rows,
                   .out_features = 2 * kWide,
                   .in_features = kHidden,
                   .dtype = kType,
                   .input = hidden.data(),
                   .weight = up.data(),
                   .out = gate_up.data(),
                   .out_stride = 2 * kWide},
                  gpu_limits(), stream_);
      between();
      activate_and_multiply_cuda(
          {.rows = rows, .width = kWide, .dtype = kType, .gate_up = gate_up.data(), .out = activated.data()},
          gpu_limits(), stream_);
      between();
      matvec_cuda({.rows = rows,
                   .out_features = kHidden,
                   .in_features = kWide,
                   .dtype = kType,
                   .input = activated.data(),
                   .weight = down.data(),
                   .out = hidden.data(),
                   .out_stride = kHidden},
                  gpu_limits(), stream_);
      between();
    }
  };
  begin();
  run([&] { require(cudaStreamSynchronize(stream_), "a kernel"); });
  const std::vector<unsigned char> expected = hidden.download(stream_);
  ASSERT_TRUE(std::isfinite(Elements(kType, expected).get(0)));
  replay(
      5, [&] { run([] {}); }, begin,
      [&](int launch) { ASSERT_EQ(hidden.download(stream_), expected) << "launch " << launch; });
}
INSTANTIATE_TEST_SUITE_P(Rows, MatvecChain, ::testing::Values(2, 6, 16));

}  // namespace
}  // namespace allot::kernels
