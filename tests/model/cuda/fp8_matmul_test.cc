// Products with weights of 8 bits on a GPU, against sums in double precision of what their factors stand for:
// the input in 16 bits, or quantised as the library's products take it.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/bfloat16.h"
#include "kernels/fp8.h"
#include "kernels/fp8_cuda.h"
#include "model/cuda/device_memory.h"
#include "model/cuda/matmul.h"
#include "tests/kernels/cuda/cuda_launch.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::model::cuda {
namespace {

using kernels::DType;
using Candidates = Matmul::Candidates;
using Fp8Scaling = Matmul::Fp8Scaling;

constexpr int64_t kMostFp8Rows = 129;
constexpr uint16_t kUnwritten = 0xA5A5;

std::vector<uint16_t> normal_bits(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> bits;
  for (int64_t i = 0; i < count; ++i) bits.push_back(kernels::bfloat16_from_float(normal(random)));
  return bits;
}

template <class X>
DeviceBuffer upload(const std::vector<X>& values) {
  DeviceBuffer buffer(static_cast<int64_t>(values.size() * sizeof(X)));
  check(cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(X), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");  // other streams do not wait for this one
  return buffer;
}

std::vector<uint16_t> download(const DeviceBuffer& buffer, const Stream& stream) {
  stream.synchronize();
  std::vector<uint16_t> values(static_cast<size_t>(buffer.size()) / 2);
  check(cudaMemcpy(values.data(), buffer.data(), static_cast<size_t>(buffer.size()), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return values;
}

struct QuantizedRows {
  std::vector<uint8_t> bits;
  std::vector<float> scales;

  double at(int64_t row, int64_t i) const {
    const auto width = static_cast<int64_t>(bits.size() / scales.size());
    return double{scales[static_cast<size_t>(row)]} *
           kernels::float_from_e4m3(bits[static_cast<size_t>(row * width + i)]);
  }
};

QuantizedRows quantize(const std::vector<uint16_t>& rows, int64_t count) {
  QuantizedRows result{.bits = std::vector<uint8_t>(rows.size()),
                       .scales = std::vector<float>(static_cast<size_t>(count))};
  kernels::quantize_rows({.rows = count,
                          .width = static_cast<int32_t>(static_cast<int64_t>(rows.size()) / count),
                          .dtype = DType::kBFloat16,
                          .input = rows.data(),
                          .out = result.bits.data(),
                          .scales = result.scales.data()},
                         1);
  return result;
}

// How a product was computed.
enum class Kind { kNone, kInput16, kInput8 };

// Products of up to kMostFp8Rows rows.
class Fp8Case {
 public:
  Fp8Case(int32_t out_features, int32_t in_features)
      : out_features_(out_features),
        in_features_(in_features),
        input_(normal_bits(kMostFp8Rows * in_features, 1)),
        bias_(normal_bits(out_features, 3)),
        weight_(quantize(normal_bits(int64_t{out_features} * in_features, 2), out_features)),
        quantized_input_(quantize(input_, kMostFp8Rows)),
        input_device_(upload(input_)),
        bias_device_(upload(bias_)),
        weight_device_(upload(weight_.bits)),
        scales_device_(upload(weight_.scales)) {
    for (int64_t row = 0; row < kMostFp8Rows; ++row) {
      for (int64_t feature = 0; feature < out_features; ++feature) {
        Sums sums;
        for (int32_t i = 0; i < in_features; ++i) {
          const double x = kernels::float_from_bfloat16(input_[static_cast<size_t>(row * in_features + i)]);
          const double w = weight_.at(feature, i);
          sums.input16 += x * w;
          sums.input8 += quantized_input_.at(row, i) * w;
          sums.magnitude += std::abs(x * w);
        }
        sums_.push_back(sums);
      }
    }
  }

  MatmulParams params(int64_t rows, int64_t out_stride, bool bias) const {
    return {.rows = rows,
            .out_features = out_features_,
            .in_features = in_features_,
            .dtype = DType::kBFloat16,
            .input = input_device_.data(),
            .weight = weight_device_.data(),
            .weight_scales = scales_device_.as<const float>(),
            .bias = bias ? bias_device_.data() : nullptr,
            .out_stride = out_stride};
  }

  // With one row after the last.
  static DeviceBuffer unwritten(const MatmulParams& p) {
    return upload(std::vector<uint16_t>(static_cast<size_t>((p.rows + 1) * p.out_stride), kUnwritten));
  }

  // The kind whose sums all elements are within rounding of; fails the test where neither has that, and where
  // something beside the product was written.
  Kind kind_of(const MatmulParams& p, const std::vector<uint16_t>& out, const std::string& where) const {
    bool input16 = true, input8 = true;
    std::string off;
    for (int64_t i = 0; i < static_cast<int64_t>(out.size()); ++i) {
      const int64_t row = i / p.out_stride, feature = i % p.out_stride;
      if (row == p.rows || feature >= out_features_) {
        if (out[static_cast<size_t>(i)] != kUnwritten) {
          ADD_FAILURE() << where << ": element " << i << " outside the product was written";
          return Kind::kNone;
        }
        continue;
      }
      const Sums& sums = sums_[static_cast<size_t>(row * out_features_ + feature)];
      const double bias =
          p.bias != nullptr ? kernels::float_from_bfloat16(bias_[static_cast<size_t>(feature)]) : 0;
      const double got = kernels::float_from_bfloat16(out[static_cast<size_t>(i)]);
      // `sums_error` of each unit of magnitude. A product is rounded once or, where it is scaled afterwards
      // or the library adds the bias, twice.
      const auto within = [&](double sum, double sums_error, double roundings) {
        return std::abs(got - sum - bias) <=
               sums_error * sums.magnitude + roundings * 0x1.02p-8 * (std::abs(sum) + std::abs(bias));
      };
      input16 = input16 && within(sums.input16, 0x1p-18, 1);
      // Tensor cores add products of 8 bits with some 14 bits of fraction.
      input8 = input8 && within(sums.input8, 0x1p-12, 2);
      if (!input16 && !input8 && off.empty()) {
        off = "row " + std::to_string(row) + " feature " + std::to_string(feature) + " is " +
              std::to_string(got) + "; expected " + std::to_string(sums.input16 + bias) + " or " +
              std::to_string(sums.input8 + bias);
      }
    }
    if (input16) return Kind::kInput16;
    if (input8) return Kind::kInput8;
    ADD_FAILURE() << where << ": " << off;
    return Kind::kNone;
  }

 private:
  struct Sums {
    double input16 = 0, input8 = 0, magnitude = 0;
  };
  int32_t out_features_, in_features_;
  std::vector<uint16_t> input_, bias_;
  QuantizedRows weight_, quantized_input_;
  DeviceBuffer input_device_, bias_device_, weight_device_, scales_device_;
  std::vector<Sums> sums_;  // [kMostFp8Rows, out_features]
};

class Fp8MatmulTest : public kernels::testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && kernels::testing::gpu_limits().compute_capability < 89)
      GTEST_SKIP() << "products of 8 bits need compute capability 8.9";
  }
};

std::string text_of(const MatmulParams& p, const char* what) {
  return std::to_string(p.rows) + " rows of " + std::to_string(p.in_features) + " to " +
         std::to_string(p.out_features) + ", stride " + std::to_string(p.out_stride) +
         (p.bias != nullptr ? ", bias, " : ", ") + what;
}

TEST_F(Fp8MatmulTest, FewRowsKeepTheInputIn16Bits) {
  for (const auto& [out_features, in_features] : {std::pair{256, 96}, std::pair{97, 320}}) {
    const Fp8Case numbers(out_features, in_features);
    const Stream stream;
    Matmul matmul;  // no memory for quantised inputs
    for (const int64_t rows : {1, 4, 7, 16}) {
      for (const bool bias : {false, true}) {
        MatmulParams p = numbers.params(rows, out_features + 3, bias);
        const DeviceBuffer out = Fp8Case::unwritten(p);
        p.out = out.data();
        matmul.run(p, stream.get());
        EXPECT_EQ(numbers.kind_of(p, download(out, stream), text_of(p, "not tuned")), Kind::kInput16);
      }
    }
  }
}

TEST_F(Fp8MatmulTest, TheLibrarysProductsAreThoseOfTheQuantisedInput) {
  for (const auto& [out_features, in_features] :
       {std::pair{256, 96}, std::pair{1008, 320}, std::pair{64, 8192}}) {
    const Fp8Case numbers(out_features, in_features);
    const Stream stream;
    for (const Fp8Scaling scaling : {Fp8Scaling::kInProduct, Fp8Scaling::kAfterwards}) {
      Matmul matmul(Candidates::kLibrary, scaling);
      matmul.reserve_fp8(kMostFp8Rows, in_features);
      for (const int64_t rows : {int64_t{1}, int64_t{16}, int64_t{17}, int64_t{64}, kMostFp8Rows}) {
        for (const int64_t gap : {0, 8}) {
          for (const bool bias : {false, true}) {
            for (const bool tuned : {false, true}) {
              MatmulParams p = numbers.params(rows, out_features + gap, bias);
              const DeviceBuffer out = Fp8Case::unwritten(p);
              p.out = out.data();
              if (tuned) matmul.tune(p, stream.get());
              matmul.run(p, stream.get());
              const std::string where =
                  text_of(p, tuned ? "tuned" : "not tuned") +
                  (scaling == Fp8Scaling::kInProduct ? ", scaled in the product" : ", scaled afterwards");
              EXPECT_EQ(numbers.kind_of(p, download(out, stream), where), Kind::kInput8) << where;
            }
          }
        }
      }
    }
  }
}

// What is measured to be fastest is one of the two.
TEST_F(Fp8MatmulTest, TunedProductsOfAnyRowsAreOfOneKind) {
  const Fp8Case numbers(512, 1024);
  const Stream stream;
  Matmul matmul;
  matmul.reserve_fp8(kMostFp8Rows, 1024);
  for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{16}, int64_t{17}, kMostFp8Rows}) {
    for (const bool bias : {false, true}) {
      MatmulParams p = numbers.params(rows, 512, bias);
      const DeviceBuffer out = Fp8Case::unwritten(p);
      p.out = out.data();
      matmul.tune(p, stream.get());
      matmul.run(p, stream.get());
      const Kind kind = numbers.kind_of(p, download(out, stream), text_of(p, "tuned"));
      EXPECT_TRUE(kind == Kind::kInput8 || (kind == Kind::kInput16 && rows <= 16)) << rows;
    }
  }
}

// Outputs that are not aligned are none of the library's.
TEST_F(Fp8MatmulTest, ProductsThatTheLibraryDoesNotHaveAreThoseOfFewRowsAgainAndAgain) {
  const Fp8Case numbers(97, 96);
  const Stream stream;
  Matmul matmul;
  matmul.reserve_fp8(kMostFp8Rows, 96);
  for (const int64_t rows : {int64_t{17}, int64_t{64}, kMostFp8Rows}) {
    for (const bool tuned : {false, true}) {
      MatmulParams p = numbers.params(rows, 97, true);
      const DeviceBuffer out = Fp8Case::unwritten(p);
      p.out = out.data();
      if (tuned) matmul.tune(p, stream.get());
      matmul.run(p, stream.get());
      EXPECT_EQ(numbers.kind_of(p, download(out, stream), text_of(p, tuned ? "tuned" : "not tuned")),
                Kind::kInput16);
    }
  }
}

TEST_F(Fp8MatmulTest, AQuantisedInputThatHasNoRoomIsRefused) {
  const Fp8Case numbers(256, 96);
  const Stream stream;
  Matmul matmul;
  MatmulParams p = numbers.params(64, 256, false);
  const DeviceBuffer out = Fp8Case::unwritten(p);
  p.out = out.data();
  EXPECT_THAT(message_of<InvalidArgument>([&] { matmul.run(p, stream.get()); }),
              Names(64, 96, 64 * 96, "reserve_fp8"));
}

// The operation before a product may leave its input where the product has it. What the product then reads
// is known to be that: it is of the other rows' numbers.
TEST_F(Fp8MatmulTest, AnInputThatIsQuantisedAlreadyIsTakenAsItIs) {
  const Fp8Case numbers(256, 96);
  const Stream stream;
  for (const Fp8Scaling scaling : {Fp8Scaling::kInProduct, Fp8Scaling::kAfterwards}) {
    Matmul matmul(Candidates::kLibrary, scaling);
    matmul.reserve_fp8(kMostFp8Rows, 96);
    MatmulParams p = numbers.params(64, 256, true);
    const DeviceBuffer out = Fp8Case::unwritten(p), zeros = upload(std::vector<uint16_t>(64 * 96, 0));
    p.out = out.data();
    const kernels::QuantizedRows place = matmul.quantized_input(p);
    ASSERT_NE(place.elements, nullptr);
    kernels::quantize_rows_cuda({.rows = p.rows,
                                 .width = p.in_features,
                                 .dtype = p.dtype,
                                 .input = p.input,
                                 .out = place.elements,
                                 .scales = place.scales},
                                kernels::testing::gpu_limits(), stream.get());
    p.input = zeros.data();
    p.quantized = true;
    matmul.run(p, stream.get());
    EXPECT_EQ(numbers.kind_of(p, download(out, stream), text_of(p, "quantised before")), Kind::kInput8);
  }
}

TEST_F(Fp8MatmulTest, AQuantisedInputIsForProductsThatTakeIt) {
  const Fp8Case numbers(256, 96);
  const Stream stream;
  Matmul matmul;
  MatmulParams many = numbers.params(64, 256, false), few = numbers.params(4, 256, false);
  const DeviceBuffer out = Fp8Case::unwritten(many);
  many.out = few.out = out.data();
  EXPECT_EQ(matmul.quantized_input(many).elements, nullptr);  // has no room
  matmul.reserve_fp8(kMostFp8Rows, 96);
  EXPECT_NE(matmul.quantized_input(many).elements, nullptr);
  EXPECT_EQ(matmul.quantized_input(few).elements, nullptr);
  few.quantized = true;
  EXPECT_THAT(message_of<InvalidArgument>([&] { matmul.run(few, stream.get()); }),
              Names("16 bits", "quantized_input"));
}

// Weights of 8 bits and of 16 with the same sizes have plans of their own.
TEST_F(Fp8MatmulTest, ProductsWithBothKindsOfWeightsDoNotMix) {
  const Fp8Case numbers(256, 96);
  const Stream stream;
  Matmul matmul;
  matmul.reserve_fp8(kMostFp8Rows, 96);
  MatmulParams wide = numbers.params(64, 256, false);
  const DeviceBuffer zeros = upload(std::vector<uint16_t>(256 * 96, 0));
  wide.weight = zeros.data();
  wide.weight_scales = nullptr;
  const DeviceBuffer wide_out = Fp8Case::unwritten(wide);
  wide.out = wide_out.data();
  MatmulParams p = numbers.params(64, 256, false);
  const DeviceBuffer out = Fp8Case::unwritten(p);
  p.out = out.data();
  matmul.run(wide, stream.get());
  matmul.run(p, stream.get());
  EXPECT_EQ(numbers.kind_of(p, download(out, stream), "after 16 bits"), Kind::kInput8);
  const std::vector<uint16_t> wide_bits = download(wide_out, stream);
  EXPECT_EQ(std::count(wide_bits.begin(), wide_bits.end(), 0), 64 * 256);
}

}  // namespace
}  // namespace allot::model::cuda
