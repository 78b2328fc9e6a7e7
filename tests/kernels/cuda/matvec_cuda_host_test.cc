// What matvec_cuda refuses before anything is queued; needs no GPU.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "kernels/matvec_cuda.h"

namespace allot::kernels {
namespace {

constexpr DeviceLimits kH200{
    .compute_capability = 90, .multiprocessors = 132, .shared_bytes_per_block = 232448};

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
  EXPECT_EQ(refused([](MatvecParams& p) { p.rows = 5; }), "matvec on CUDA: rows is 5; expected 0 to 4");
  EXPECT_EQ(refused([](MatvecParams& p) { p.rows = -1; }), "matvec on CUDA: rows is -1; expected 0 to 4");
  EXPECT_EQ(refused([](MatvecParams& p) { p.out_features = 0; }),
            "matvec on CUDA: out_features is 0; expected at least 1");
  EXPECT_EQ(refused([](MatvecParams& p) { p.in_features = 20; }),
            "matvec on CUDA: in_features is 20; expected a multiple of 8, at least 8");
  EXPECT_EQ(refused([](MatvecParams& p) { p.in_features = 0; }),
            "matvec on CUDA: in_features is 0; expected a multiple of 8, at least 8");
  EXPECT_EQ(refused([](MatvecParams& p) { p.dtype = DType::kFloat32; }),
            "matvec on CUDA: dtype is float32; expected bfloat16 or float16");
  EXPECT_EQ(refused([](MatvecParams& p) { p.out_stride = 2; }),
            "matvec on CUDA: out_stride is 2; expected at least 3");
}

TEST(MatvecCudaHost, RefusesArraysThatAreMissingOrNotAligned) {
  EXPECT_EQ(refused([](MatvecParams& p) { p.input = nullptr; }),
            "matvec on CUDA: input is null; it must point to device memory");
  EXPECT_EQ(refused([](MatvecParams& p) { p.weight = nullptr; }),
            "matvec on CUDA: weight is null; it must point to device memory");
  EXPECT_EQ(refused([](MatvecParams& p) { p.out = nullptr; }),
            "matvec on CUDA: out is null; it must point to device memory");
  EXPECT_EQ(refused([](MatvecParams& p) { p.input = reinterpret_cast<const void*>(0x1008); }),
            "matvec on CUDA: input is at 0x1008; expected a multiple of 16 bytes");
  EXPECT_EQ(refused([](MatvecParams& p) { p.weight = reinterpret_cast<const void*>(0x2002); }),
            "matvec on CUDA: weight is at 0x2002; expected a multiple of 16 bytes");
}

TEST(MatvecCudaHost, QueuesNothingForNoRows) {
  EXPECT_EQ(refused([](MatvecParams& p) {
              p.rows = 0;
              p.input = p.weight = nullptr;
            }),
            "accepted");
}

TEST(MatvecCudaHost, SupportsUpToFourRowsOfSixteenBitElementsInWholeVectors) {
  EXPECT_TRUE(matvec_supports(1, 8, DType::kBFloat16));
  EXPECT_TRUE(matvec_supports(4, 14336, DType::kFloat16));
  EXPECT_FALSE(matvec_supports(5, 4096, DType::kBFloat16));
  EXPECT_FALSE(matvec_supports(1, 4100, DType::kBFloat16));
  EXPECT_FALSE(matvec_supports(1, 0, DType::kBFloat16));
  EXPECT_FALSE(matvec_supports(1, 4096, DType::kFloat32));
}

}  // namespace
}  // namespace allot::kernels
