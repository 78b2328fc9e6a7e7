// What gated_product_cuda refuses before anything is queued; needs no GPU.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "kernels/gated_product_cuda.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

// The build may have no code for this GPU, which is a refusal of its own: after the sizes.
template <class Change>
std::string refused_gated(const Change& change, const DeviceLimits& limits = kH200) {
  GatedProductParams p{.rows = 0,
                       .width = 16,
                       .in_features = 24,
                       .input = reinterpret_cast<const void*>(0x1000),
                       .weight = reinterpret_cast<const void*>(0x2000),
                       .out = reinterpret_cast<void*>(0x3000)};
  change(p);
  try {
    gated_product_cuda(p, limits, nullptr);
  } catch (const InvalidArgument& error) {
    return error.what();
  } catch (const Unsupported& error) {
    return std::string("unsupported: ") + error.what();
  }
  return "accepted";
}

bool has_gated_code() {
  return gated_product_supports(16, 24, DType::kBFloat16, kH200);
}

TEST(GatedProductCudaHost, RefusesSizesWithTheValues) {
  EXPECT_THAT(refused_gated([](GatedProductParams& p) { p.rows = -1; }), Names("rows", -1, 0));
  EXPECT_THAT(refused_gated([](GatedProductParams& p) { p.width = 12; }), Names("width", 12, 8));
  EXPECT_THAT(refused_gated([](GatedProductParams& p) { p.width = 0; }), Names("width", 0, 8));
  EXPECT_THAT(refused_gated([](GatedProductParams& p) { p.in_features = 20; }), Names("in_features", 20, 8));
  EXPECT_THAT(refused_gated([](GatedProductParams& p) { p.dtype = DType::kFloat32; }),
              Names("dtype", "float32", "bfloat16", "float16"));
}

TEST(GatedProductCudaHost, RefusesArraysThatAreMissingOrNotAligned) {
  if (!has_gated_code()) GTEST_SKIP() << "this build has no code for compute capability 9.0";
  const auto refused_of_rows = [](auto change) {
    return refused_gated([&](GatedProductParams& p) {
      p.rows = 3;
      change(p);
    });
  };
  EXPECT_THAT(refused_of_rows([](GatedProductParams& p) { p.input = nullptr; }), Names("input", "null"));
  EXPECT_THAT(refused_of_rows([](GatedProductParams& p) { p.weight = nullptr; }), Names("weight", "null"));
  EXPECT_THAT(refused_of_rows([](GatedProductParams& p) { p.out = nullptr; }), Names("out", "null"));
  EXPECT_THAT(refused_of_rows([](GatedProductParams& p) { p.input = reinterpret_cast<const void*>(0x1008); }),
              Names("input", "0x1008", 16));
  EXPECT_THAT(refused_of_rows([](GatedProductParams& p) { p.out = reinterpret_cast<void*>(0x3002); }),
              Names("out", "0x3002", 16));
  EXPECT_EQ(refused_gated([](GatedProductParams& p) { p.input = p.weight = nullptr; }), "accepted")
      << "no rows";
}

TEST(GatedProductCudaHost, RefusesMoreThanItCanCount) {
  if (!has_gated_code()) GTEST_SKIP() << "this build has no code for compute capability 9.0";
  const auto refused_sizes = [](int64_t rows, int32_t width, int32_t in_features) {
    return refused_gated([&](GatedProductParams& p) {
      p.rows = rows;
      p.width = width;
      p.in_features = in_features;
    });
  };
  EXPECT_THAT(refused_sizes(2147483647, 8, 8), Names("rows", 2147483647));
  EXPECT_THAT(refused_sizes(1 << 30, 1 << 20, 64), Names("rows", 1 << 30, 1 << 20, 64));
  EXPECT_THAT(refused_sizes(1, 1 << 25, 64), Names("width", 1 << 25, 65535 * 256));
}

TEST(GatedProductCudaHost, OtherGpusHaveNoKernelAndTheMessageSaysWhatToDo) {
  for (const int32_t capability : {80, 89, 100}) {
    DeviceLimits limits = kH200;
    limits.compute_capability = capability;
    EXPECT_FALSE(gated_product_supports(16, 24, DType::kBFloat16, limits));
    const std::string version = std::to_string(capability / 10) + "." + std::to_string(capability % 10);
    EXPECT_THAT(refused_gated([](GatedProductParams&) {}, limits),
                Names("unsupported", version.c_str(), "9.0", "activate_and_multiply_cuda"));
  }
  DeviceLimits small = kH200;
  small.shared_bytes_per_block = 100'000;
  EXPECT_FALSE(gated_product_supports(16, 24, DType::kBFloat16, small));
}

TEST(GatedProductCudaHost, SupportsWholeVectorsOfSixteenBits) {
  EXPECT_EQ(gated_product_supports(18944, 3584, DType::kFloat16, kH200), has_gated_code());
  EXPECT_FALSE(gated_product_supports(18940, 3584, DType::kBFloat16, kH200));
  EXPECT_FALSE(gated_product_supports(18944, 3590, DType::kBFloat16, kH200));
  EXPECT_FALSE(gated_product_supports(0, 3584, DType::kBFloat16, kH200));
  EXPECT_FALSE(gated_product_supports(18944, 3584, DType::kFloat32, kH200));
}

}  // namespace
}  // namespace allot::kernels
