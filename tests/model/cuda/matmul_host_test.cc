// What products on CUDA refuse before anything of CUDA is called; needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "model/cuda/matmul.h"
#include "tests/names.h"

namespace allot::model::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

alignas(16) std::byte data[64];  // addresses; nothing is read there

MatmulParams product() {
  return {.rows = 3,
          .out_features = 8,
          .in_features = 16,
          .input = data,
          .weight = data + 16,
          .bias = data + 32,
          .out = data + 48,
          .out_stride = 10};
}

template <class Change>
std::string refused(const Change& change) {
  MatmulParams p = product();
  change(p);
  try {
    validate_matmul(p);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MatmulHost, AcceptsWhatTheContractAllows) {
  EXPECT_EQ(refused([](MatmulParams&) {}), "accepted");
  EXPECT_EQ(refused([](MatmulParams& p) { p.bias = nullptr; }), "accepted");
  EXPECT_EQ(refused([](MatmulParams& p) { p.out_stride = 8; }), "accepted");
  EXPECT_EQ(refused([](MatmulParams& p) { p.rows = p.in_features = 2147483647; }), "accepted");
  EXPECT_EQ(refused([](MatmulParams& p) { p.dtype = kernels::DType::kFloat32; }), "accepted");
}

TEST(MatmulHost, RefusesSizesOutOfRangeWithTheValue) {
  EXPECT_THAT(refused([](MatmulParams& p) { p.rows = 0; }), Names("rows", 0, 1, 2147483647));
  EXPECT_THAT(refused([](MatmulParams& p) { p.rows = 2147483648; }),
              Names("rows", 2147483648, 1, 2147483647));
  EXPECT_THAT(refused([](MatmulParams& p) { p.out_features = -4; }),
              Names("out_features", -4, 1, 2147483647));
  EXPECT_THAT(refused([](MatmulParams& p) { p.in_features = 0; }), Names("in_features", 0, 1, 2147483647));
}

TEST(MatmulHost, RefusesStridesThatRowsOfTheOutputDoNotFit) {
  EXPECT_THAT(refused([](MatmulParams& p) { p.out_stride = 7; }),
              Names("out_stride", 7, "out_features", 8, 2147483647));
  EXPECT_THAT(refused([](MatmulParams& p) { p.out_stride = 2147483648; }), Names("out_stride", 2147483648));
}

TEST(MatmulHost, GateAndUpAreOfOneWidthWithoutAGap) {
  const auto refused_gated = [](int32_t out_features, int64_t out_stride) {
    return refused([&](MatmulParams& p) {
      p.activated = data;
      p.out_features = out_features;
      p.out_stride = out_stride;
    });
  };
  EXPECT_EQ(refused_gated(8, 8), "accepted");
  EXPECT_THAT(refused_gated(7, 7), Names("activated", "out_features", 7));
  EXPECT_THAT(refused_gated(8, 10), Names("activated", "out_features", 8, "out_stride", 10));
}

TEST(MatmulHost, RefusesMissingAndMisalignedArraysByName) {
  EXPECT_THAT(refused([](MatmulParams& p) { p.input = nullptr; }), Names("input", "null"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.weight = nullptr; }), Names("weight", "null"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.out = nullptr; }), Names("out", "null"));
  const auto misaligned = [](const char* name) {
    return AllOf(HasSubstr(std::string(name) + " is at 0x"), Names(16));
  };
  EXPECT_THAT(refused([](MatmulParams& p) { p.input = data + 8; }), misaligned("input"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.weight = data + 2; }), misaligned("weight"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.bias = data + 4; }), misaligned("bias"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.out = data + 56; }), misaligned("out"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.activated = data + 8; }), misaligned("activated"));
}

TEST(MatmulHost, RefusesADtypeThatIsNone) {
  EXPECT_THAT(refused([](MatmulParams& p) { p.dtype = static_cast<kernels::DType>(9); }), Names("dtype", 9));
}

TEST(MatmulHost, WeightsOfEightBitsNeedBFloat16AndWholeVectorsOfThem) {
  const auto refused_fp8 = [](auto change) {
    return refused([&](MatmulParams& p) {
      p.weight_scales = reinterpret_cast<const float*>(data);
      change(p);
    });
  };
  EXPECT_EQ(refused_fp8([](MatmulParams&) {}), "accepted");
  EXPECT_THAT(refused_fp8([](MatmulParams& p) { p.dtype = kernels::DType::kFloat16; }),
              Names("float16", "weight_scales", "bfloat16"));
  EXPECT_THAT(refused_fp8([](MatmulParams& p) { p.in_features = 24; }),
              Names("in_features", 24, "weight_scales", 16));
  EXPECT_THAT(
      refused_fp8([](MatmulParams& p) { p.weight_scales = reinterpret_cast<const float*>(data + 4); }),
      AllOf(HasSubstr("weight_scales is at 0x"), Names(16)));
}

}  // namespace
}  // namespace allot::model::cuda
