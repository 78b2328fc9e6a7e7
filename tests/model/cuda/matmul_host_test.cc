// What products on CUDA refuse before anything of CUDA is called; needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "model/cuda/matmul.h"

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
  EXPECT_EQ(refused([](MatmulParams& p) { p.rows = 0; }),
            "matmul on CUDA: rows is 0; expected 1 to 2147483647");
  EXPECT_EQ(refused([](MatmulParams& p) { p.rows = 2147483648; }),
            "matmul on CUDA: rows is 2147483648; expected 1 to 2147483647");
  EXPECT_EQ(refused([](MatmulParams& p) { p.out_features = -4; }),
            "matmul on CUDA: out_features is -4; expected 1 to 2147483647");
  EXPECT_EQ(refused([](MatmulParams& p) { p.in_features = 0; }),
            "matmul on CUDA: in_features is 0; expected 1 to 2147483647");
}

TEST(MatmulHost, RefusesStridesThatRowsOfTheOutputDoNotFit) {
  EXPECT_EQ(refused([](MatmulParams& p) { p.out_stride = 7; }),
            "matmul on CUDA: out_stride is 7; expected out_features, 8, to 2147483647");
  EXPECT_THAT(refused([](MatmulParams& p) { p.out_stride = 2147483648; }),
              HasSubstr("out_stride is 2147483648"));
}

TEST(MatmulHost, RefusesMissingAndMisalignedArraysByName) {
  EXPECT_EQ(refused([](MatmulParams& p) { p.input = nullptr; }),
            "matmul on CUDA: input is null; it must point to device memory");
  EXPECT_THAT(refused([](MatmulParams& p) { p.weight = nullptr; }), HasSubstr("weight is null"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.out = nullptr; }), HasSubstr("out is null"));
  const auto misaligned = [](const char* name) {
    return AllOf(HasSubstr(std::string(name) + " is at 0x"), HasSubstr("expected a multiple of 16 bytes"));
  };
  EXPECT_THAT(refused([](MatmulParams& p) { p.input = data + 8; }), misaligned("input"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.weight = data + 2; }), misaligned("weight"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.bias = data + 4; }), misaligned("bias"));
  EXPECT_THAT(refused([](MatmulParams& p) { p.out = data + 56; }), misaligned("out"));
}

TEST(MatmulHost, RefusesADtypeThatIsNone) {
  EXPECT_EQ(refused([](MatmulParams& p) { p.dtype = static_cast<kernels::DType>(9); }),
            "matmul on CUDA: dtype is 9; expected one of kernels::DType");
}

}  // namespace
}  // namespace allot::model::cuda
