// Products on a GPU against sums in double precision of the same rounded numbers.
#include "model/cuda/matmul.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/bfloat16.h"
#include "kernels/float16.h"
#include "kernels/gated_product_cuda.h"
#include "model/cuda/device_memory.h"
#include "tests/kernels/cuda/cuda_launch.h"
#include "tests/names.h"

namespace allot::model::cuda {
namespace {

using kernels::DType;

using Bytes = std::vector<std::byte>;

constexpr std::byte kGuard{0xA5};
constexpr int64_t kMostRows = 129;

void store(DType dtype, std::byte* at, float value) {
  if (dtype == DType::kFloat32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16_t bits =
      dtype == DType::kBFloat16 ? kernels::bfloat16_from_float(value) : kernels::float16_from_float(value);
  std::memcpy(at, &bits, sizeof(bits));
}

double load(DType dtype, const std::byte* at) {
  if (dtype == DType::kFloat32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBFloat16 ? kernels::float_from_bfloat16(bits) : kernels::float_from_float16(bits);
}

// Largest relative error of rounding to nearest once.
double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return 0x1p-24;
    case DType::kBFloat16:
      return 0x1p-8;
    case DType::kFloat16:
      return 0x1p-11;
  }
  return 0;
}

// Normal numbers, as stored and as read back.
struct Numbers {
  Numbers(DType dtype, int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    const int64_t size = size_of(dtype);
    stored.resize(static_cast<size_t>(count * size));
    for (int64_t i = 0; i < count; ++i) {
      store(dtype, stored.data() + i * size, normal(random));
      values.push_back(load(dtype, stored.data() + i * size));
    }
  }
  Bytes stored;
  std::vector<double> values;
};

DeviceBuffer on_device(const Bytes& bytes) {
  DeviceBuffer buffer(static_cast<int64_t>(bytes.size()));
  check(cudaMemcpy(buffer.data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // other streams do not wait for this one
  return buffer;
}

Bytes on_host(const DeviceBuffer& buffer, const Stream& stream) {
  stream.synchronize();
  Bytes bytes(static_cast<size_t>(buffer.size()));
  check(cudaMemcpy(bytes.data(), buffer.data(), bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  return bytes;
}

// The arrays of products of up to kMostRows rows, and what the products are.
class Case {
 public:
  Case(DType dtype, int32_t out_features, int32_t in_features)
      : dtype_(dtype),
        out_features_(out_features),
        in_features_(in_features),
        input_(dtype, kMostRows * in_features, 1),
        weight_(dtype, int64_t{out_features} * in_features, 2),
        bias_(dtype, out_features, 3),
        input_device_(on_device(input_.stored)),
        weight_device_(on_device(weight_.stored)),
        bias_device_(on_device(bias_.stored)) {
    for (int64_t row = 0; row < kMostRows; ++row) {
      for (int64_t feature = 0; feature < out_features; ++feature) {
        const double* a = input_.values.data() + row * in_features;
        const double* b = weight_.values.data() + feature * in_features;
        double sum = 0, magnitude = 0;
        for (int32_t i = 0; i < in_features; ++i) {
          sum += a[i] * b[i];
          magnitude += std::abs(a[i] * b[i]);
        }
        sums_.push_back(sum);
        magnitudes_.push_back(magnitude);
      }
    }
  }

  MatmulParams params(int64_t rows, int64_t out_stride, bool bias) const {
    return {.rows = rows,
            .out_features = out_features_,
            .in_features = in_features_,
            .dtype = dtype_,
            .input = input_device_.data(),
            .weight = weight_device_.data(),
            .bias = bias ? bias_device_.data() : nullptr,
            .out_stride = out_stride};
  }

  // An output of guard bytes, with one guard row after the last.
  DeviceBuffer guarded_out(const MatmulParams& p) const {
    return on_device(Bytes(static_cast<size_t>((p.rows + 1) * p.out_stride * size_of(dtype_)), kGuard));
  }

  // Fails the test at the first element that is off by more than one rounding, two with a bias, and the
  // rounding of float32 sums, and at the first byte after a row that was written.
  void expect_product(const MatmulParams& p, const Bytes& out, const std::string& where) const {
    const int64_t size = size_of(dtype_);
    for (int64_t row = 0; row <= p.rows; ++row) {
      const std::byte* at = out.data() + row * p.out_stride * size;
      const int64_t written = row < p.rows ? out_features_ : 0;
      for (int64_t feature = 0; feature < written; ++feature) {
        const auto index = static_cast<size_t>(row * out_features_ + feature);
        const double bias = p.bias != nullptr ? bias_.values[static_cast<size_t>(feature)] : 0;
        const double expected = sums_[index] + bias;
        // Float32 sums in any order stay far below this; TF32 or sums in 16 bits do not.
        const double of_sums = 0x1p-18 * (magnitudes_[index] + std::abs(bias));
        double error = of_sums;
        if (p.bias != nullptr) error += unit_roundoff(dtype_) * (std::abs(sums_[index]) + of_sums);
        const double tolerance = error + unit_roundoff(dtype_) * (std::abs(expected) + error);
        const double got = load(dtype_, at + feature * size);
        if (!(std::abs(got - expected) <= tolerance)) {
          ADD_FAILURE() << where << ": row " << row << ", feature " << feature << " is " << got
                        << "; expected " << expected << " within " << tolerance;
          return;
        }
      }
      for (int64_t byte = written * size; byte < p.out_stride * size; ++byte) {
        if (at[byte] != kGuard) {
          ADD_FAILURE() << where << ": byte " << byte << " of row " << row << ", after its " << written
                        << " elements, was written";
          return;
        }
      }
    }
  }

  // The same of `activated`, with a guard row after the last: the product may have been rounded before its
  // activation.
  void expect_activated(const MatmulParams& p, const Bytes& out, const std::string& where) const {
    const int64_t size = size_of(dtype_), width = out_features_ / 2;
    const double unit = unit_roundoff(dtype_);
    for (int64_t row = 0; row < p.rows; ++row) {
      for (int64_t feature = 0; feature < width; ++feature) {
        double sums[2], errors[2];
        for (const int64_t half : {0, 1}) {
          const auto index = static_cast<size_t>(row * out_features_ + half * width + feature);
          const double bias =
              p.bias != nullptr ? bias_.values[static_cast<size_t>(half * width + feature)] : 0;
          sums[half] = sums_[index] + bias;
          errors[half] = 0x1p-18 * (magnitudes_[index] + std::abs(bias)) +
                         unit * (std::abs(sums_[index]) + 1.01 * std::abs(sums[half]));
        }
        const double gate = sums[0] / (1 + std::exp(-sums[0])), expected = gate * sums[1];
        const double tolerance = 1e-6 + 1.1 * errors[0] * (std::abs(sums[1]) + errors[1]) +
                                 std::abs(gate) * errors[1] + unit * std::abs(expected);
        const double got = load(dtype_, out.data() + (row * width + feature) * size);
        if (!(std::abs(got - expected) <= tolerance)) {
          ADD_FAILURE() << where << ": row " << row << ", feature " << feature << " is " << got
                        << "; expected " << expected << " within " << tolerance;
          return;
        }
      }
    }
    for (auto at = static_cast<size_t>(p.rows * width * size); at < out.size(); ++at) {
      if (out[at] != kGuard) {
        ADD_FAILURE() << where << ": a byte after the last row was written";
        return;
      }
    }
  }

 private:
  DType dtype_;
  int32_t out_features_, in_features_;
  Numbers input_, weight_, bias_;
  DeviceBuffer input_device_, weight_device_, bias_device_;
  std::vector<double> sums_, magnitudes_;  // [kMostRows, out_features]
};

class MatmulTest : public kernels::testing::CudaTest {};

// Products of all row counts, with and without a bias and a gap between rows.
void expect_products(DType dtype, int32_t out_features, int32_t in_features) {
  const Case numbers(dtype, out_features, in_features);
  const Stream stream;
  Matmul first_choice, tuned;
  for (const int64_t rows :
       {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{7}, int64_t{16}, int64_t{17}, kMostRows}) {
    for (const int64_t gap : {0, 8, 3}) {
      for (const bool bias : {false, true}) {
        MatmulParams p = numbers.params(rows, out_features + gap, bias);
        const std::string where = std::string(name(dtype)) + " [" + std::to_string(rows) + ", " +
                                  std::to_string(in_features) + "] x [" + std::to_string(out_features) +
                                  ", " + std::to_string(in_features) + "], gap " + std::to_string(gap) +
                                  (bias ? ", bias" : ", no bias");
        const DeviceBuffer out = numbers.guarded_out(p);
        p.out = out.data();
        first_choice.run(p, stream.get());
        numbers.expect_product(p, on_host(out, stream), where + ", not tuned");

        if (gap == 3 && rows != 7) continue;  // measuring takes time
        const DeviceBuffer tuned_out = numbers.guarded_out(p);
        p.out = tuned_out.data();
        tuned.tune(p, stream.get());
        numbers.expect_product(p, on_host(tuned_out, stream), where + ", measured last");
        const DeviceBuffer again = numbers.guarded_out(p);
        p.out = again.data();
        tuned.run(p, stream.get());
        numbers.expect_product(p, on_host(again, stream), where + ", tuned");
      }
    }
  }
}

TEST_F(MatmulTest, BFloat16ProductsAreRoundedOnce) {
  expect_products(DType::kBFloat16, 256, 96);
  expect_products(DType::kBFloat16, 1000, 320);
}

TEST_F(MatmulTest, Float16ProductsAreRoundedOnce) {
  expect_products(DType::kFloat16, 256, 96);
  expect_products(DType::kFloat16, 1000, 320);
}

TEST_F(MatmulTest, Float32ProductsHaveNoShorterFactors) {
  expect_products(DType::kFloat32, 256, 96);
  expect_products(DType::kFloat32, 1000, 320);
}

TEST_F(MatmulTest, FeaturesThatAreNoMultipleOf16BytesAreMultiplied) {
  expect_products(DType::kBFloat16, 97, 33);
  expect_products(DType::kFloat16, 97, 33);
  expect_products(DType::kFloat32, 97, 33);
}

TEST_F(MatmulTest, ALongSumOfFewFeaturesIsRoundedOnce) {
  // Few outputs of many inputs: what algorithms that split in_features are for.
  expect_products(DType::kBFloat16, 64, 8192);
}

TEST_F(MatmulTest, GateAndUpAreActivatedWhicheverKernelMultiplies) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Case numbers(dtype, 1008, 320);
    const Stream stream;
    Matmul first_choice, tuned, of_library(Matmul::Candidates::kLibrary);
    for (const int64_t rows : {int64_t{1}, int64_t{16}, int64_t{17}, kMostRows}) {
      for (const bool bias : {false, true}) {
        MatmulParams p = numbers.params(rows, 1008, bias);
        const DeviceBuffer out = numbers.guarded_out(p);
        p.out = out.data();
        const auto expect = [&](Matmul& matmul, const char* which) {
          const DeviceBuffer activated =
              on_device(Bytes(static_cast<size_t>((rows + 1) * 504 * size_of(dtype)), kGuard));
          p.activated = activated.data();
          matmul.run(p, stream.get());
          numbers.expect_activated(p, on_host(activated, stream),
                                   std::string(name(dtype)) + ", " + std::to_string(rows) + " rows, " +
                                       which + (bias ? ", bias" : ""));
        };
        expect(first_choice, "not tuned");
        expect(of_library, "the library");
        const DeviceBuffer measured(rows * 504 * size_of(dtype));
        p.activated = measured.data();
        tuned.tune(p, stream.get());
        expect(tuned, "tuned");
      }
    }
  }
}

// The first choice from 512 rows on, where there is a kernel, and the rounding that the library's way has.
TEST_F(MatmulTest, ManyRowsOfGateAndUpAreFirstGivenToTheGatedKernel) {
  constexpr int32_t kWidth = 264, kInputs = 200;
  for (const int64_t rows : {int64_t{511}, int64_t{512}}) {
    const Numbers input(DType::kBFloat16, rows * kInputs, 1),
        weight(DType::kBFloat16, int64_t{2} * kWidth * kInputs, 2);
    const DeviceBuffer input_device = on_device(input.stored), weight_device = on_device(weight.stored);
    const DeviceBuffer out(rows * 2 * kWidth * 2), activated(rows * kWidth * 2), expected(rows * kWidth * 2);
    const Stream stream;
    Matmul matmul;
    matmul.run({.rows = rows,
                .out_features = 2 * kWidth,
                .in_features = kInputs,
                .input = input_device.data(),
                .weight = weight_device.data(),
                .out = out.data(),
                .out_stride = 2 * kWidth,
                .activated = activated.data()},
               stream.get());
    const kernels::DeviceLimits limits = kernels::device_limits(0);
    if (!kernels::gated_product_supports(kWidth, kInputs, DType::kBFloat16, limits))
      GTEST_SKIP() << "this device has no gated kernel";
    kernels::gated_product_cuda({.rows = rows,
                                 .width = kWidth,
                                 .in_features = kInputs,
                                 .input = input_device.data(),
                                 .weight = weight_device.data(),
                                 .out = expected.data()},
                                limits, stream.get());
    EXPECT_EQ(on_host(activated, stream) == on_host(expected, stream), rows == 512) << rows << " rows";
  }
}

TEST_F(MatmulTest, TheSameProductHasTheSameBitsInEveryRun) {
  const Case numbers(DType::kBFloat16, 64, 8192);
  const Stream stream;
  Matmul matmul;
  MatmulParams p = numbers.params(17, 64, true);
  Bytes first;
  for (int run = 0; run < 20; ++run) {
    const DeviceBuffer out = numbers.guarded_out(p);
    p.out = out.data();
    if (run == 0) matmul.tune(p, stream.get());
    matmul.run(p, stream.get());
    const Bytes bytes = on_host(out, stream);
    if (run == 0) first = bytes;
    ASSERT_EQ(bytes, first) << "run " << run;
  }
}

TEST_F(MatmulTest, EachRunReadsItsOwnArrays) {
  const Case numbers(DType::kFloat16, 256, 96);
  const Stream stream;
  Matmul matmul;
  MatmulParams p = numbers.params(7, 256, true);
  const DeviceBuffer out = numbers.guarded_out(p);
  p.out = out.data();
  matmul.run(p, stream.get());
  // Another bias and other weights with the plan of the first product: zeros, so that only the bias is left.
  const DeviceBuffer weight = on_device(Bytes(2 * 256 * 96, std::byte{0}));
  const Numbers bias(DType::kFloat16, 256, 4);
  const DeviceBuffer bias_device = on_device(bias.stored);
  p.weight = weight.data();
  p.bias = bias_device.data();
  matmul.run(p, stream.get());
  const Bytes bytes = on_host(out, stream);
  for (int64_t row = 0; row < p.rows; ++row) {
    ASSERT_EQ(std::memcmp(bytes.data() + row * 512, bias.stored.data(), 512), 0) << "row " << row;
  }
}

TEST_F(MatmulTest, ATunedProductIsNotMeasuredAgain) {
  const Case numbers(DType::kBFloat16, 256, 96);
  const Stream stream;
  Matmul matmul;
  MatmulParams p = numbers.params(16, 256, false);
  const DeviceBuffer out = numbers.guarded_out(p), untouched = numbers.guarded_out(p);
  p.out = out.data();
  matmul.tune(p, stream.get());
  p.out = untouched.data();
  matmul.tune(p, stream.get());
  EXPECT_EQ(on_host(untouched, stream), on_host(numbers.guarded_out(p), stream));
}

TEST_F(MatmulTest, ACapturedProductReadsItsArraysWhenItIsReplayed) {
  for (const bool tune : {false, true}) {
    for (const bool bias : {false, true}) {
      const Case numbers(DType::kBFloat16, 1000, 320);
      const Stream stream;
      Matmul matmul;
      MatmulParams p = numbers.params(17, 1008, bias);
      const DeviceBuffer eager = numbers.guarded_out(p), replayed = numbers.guarded_out(p);
      // The graph is captured while its input is NaN, which is written over before the replay.
      const DeviceBuffer input(17 * 320 * 2);
      check(cudaMemset(input.data(), 0xFF, static_cast<size_t>(input.size())), "cudaMemset");
      check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
      p.out = eager.data();
      if (tune) matmul.tune(p, stream.get());
      matmul.run(p, stream.get());
      const Bytes expected = on_host(eager, stream);
      numbers.expect_product(p, expected, "eager");

      const void* whole_input = p.input;
      p.input = input.data();
      p.out = replayed.data();
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin a capture");
      matmul.run(p, stream.get());
      check(cudaStreamEndCapture(stream.get(), &graph), "end a capture");
      check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
      EXPECT_EQ(on_host(replayed, stream), on_host(numbers.guarded_out(p), stream)) << "ran while captured";
      check(cudaMemcpyAsync(input.data(), whole_input, static_cast<size_t>(input.size()),
                            cudaMemcpyDeviceToDevice, stream.get()),
            "cudaMemcpyAsync");
      check(cudaGraphLaunch(executable, stream.get()), "cudaGraphLaunch");
      EXPECT_EQ(on_host(replayed, stream), expected) << (tune ? "tuned" : "not tuned");
      check(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
      check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
  }
}

TEST_F(MatmulTest, NothingIsTunedWhileTheStreamIsCaptured) {
  const Case numbers(DType::kBFloat16, 256, 96);
  const Stream stream;
  Matmul matmul;
  MatmulParams p = numbers.params(2, 256, false);
  const DeviceBuffer out = numbers.guarded_out(p);
  p.out = out.data();
  check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "begin a capture");
  std::string message = "accepted";
  try {
    matmul.tune(p, stream.get());
  } catch (const InvalidArgument& error) {
    message = error.what();
  }
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream.get(), &graph), "end a capture");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  EXPECT_THAT(message, Names("stream", "captured"));
}

}  // namespace
}  // namespace allot::model::cuda
