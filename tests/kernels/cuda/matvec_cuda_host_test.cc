// What matvec_cuda refuses before anything is queued; needs no GPU.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "kernels/matvec_cuda.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

template <class Change>
std::string refused(const Change& change) {
  MatvecParams p{.rows = 4,
                 .out_features = 3,
                 .in_features = 16,
                 .input = reinterpret_cast<const void*>(0x1000),
                 .weight = reinterpret_cast<const void*>(0x2000),
                 .out = reinterpret_cast<void*>(0x3000),
                 .out_stride = 3};
  change(p);
  try {
    matvec_cuda(p, kH200, nullptr);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MatvecCudaHost, RefusesWhatItCannotDoWithTheValues) {
  EXPECT_THAT(refused([](MatvecParams& p) { p.rows = 17; }), Names("rows", 17, 0, 16));
  EXPECT_THAT(refused([](MatvecParams& p) { p.rows = -1; }), Names("rows", -1, 0, 16));
  EXPECT_THAT(refused([](MatvecParams& p) { p.out_features = 0; }), Names("out_features", 0, 1));
  EXPECT_THAT(refused([](MatvecParams& p) { p.in_features = 20; }), Names("in_features", 20, 8, 8));
  EXPECT_THAT(refused([](MatvecParams& p) { p.in_features = 0; }), Names("in_features", 0, 8, 8));
  EXPECT_THAT(refused([](MatvecParams& p) { p.dtype = DType::kFloat32; }),
              Names("dtype", "float32", "bfloat16", "float16"));
  EXPECT_THAT(refused([](MatvecParams& p) { p.out_stride = 2; }), Names("out_stride", 2, 3));
}

TEST(MatvecCudaHost, RefusesArraysThatAreMissingOrNotAligned) {
  EXPECT_THAT(refused([](MatvecParams& p) { p.input = nullptr; }), Names("input", "null"));
  EXPECT_THAT(refused([](MatvecParams& p) { p.weight = nullptr; }), Names("weight", "null"));
  EXPECT_THAT(refused([](MatvecParams& p) { p.out = nullptr; }), Names("out", "null"));
  EXPECT_THAT(refused([](MatvecParams& p) { p.input = reinterpret_cast<const void*>(0x1008); }),
              Names("input", "0x1008", 16));
  EXPECT_THAT(refused([](MatvecParams& p) { p.weight = reinterpret_cast<const void*>(0x2002); }),
              Names("weight", "0x2002", 16));
}

TEST(MatvecCudaHost, QueuesNothingForNoRows) {
  EXPECT_EQ(refused([](MatvecParams& p) {
              p.rows = 0;
              p.input = p.weight = nullptr;
            }),
            "accepted");
}

TEST(MatvecCudaHost, SupportsUpToSixteenRowsOfSixteenBitElementsInWholeVectors) {
  EXPECT_TRUE(matvec_supports(1, 8, DType::kBFloat16));
  EXPECT_TRUE(matvec_supports(16, 14336, DType::kFloat16));
  EXPECT_FALSE(matvec_supports(17, 4096, DType::kBFloat16));
  EXPECT_FALSE(matvec_supports(1, 4100, DType::kBFloat16));
  EXPECT_FALSE(matvec_supports(1, 0, DType::kBFloat16));
  EXPECT_FALSE(matvec_supports(1, 4096, DType::kFloat32));
}

}  // namespace
}  // namespace allot::kernels
