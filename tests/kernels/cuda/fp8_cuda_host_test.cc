// What the products with weights of 8 bits refuse before anything is queued; needs no GPU.
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "kernels/fp8_cuda.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

template <class Change>
std::string refused_fp8_matvec(const Change& change) {
  Fp8MatvecParams p{.rows = 16,
                    .out_features = 3,
                    .in_features = 32,
                    .input = reinterpret_cast<const void*>(0x1000),
                    .weight = reinterpret_cast<const uint8_t*>(0x2000),
                    .weight_scales = reinterpret_cast<const float*>(0x3000),
                    .out = reinterpret_cast<void*>(0x4000),
                    .out_stride = 3};
  change(p);
  return message_of<InvalidArgument>([&] { fp8_matvec_cuda(p, kH200, nullptr); });
}

TEST(Fp8CudaHost, ProductsOfFewRowsRefuseWhatTheyCannotDoWithTheValues) {
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.rows = 17; }), Names("rows", 17, 0, 16));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.rows = -1; }), Names("rows", -1, 0, 16));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.out_features = 0; }),
              Names("out_features", 0, 1));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.in_features = 24; }),
              Names("in_features", 24, 16));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.in_features = 0; }), Names("in_features", 0, 16));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.out_stride = 2; }), Names("out_stride", 2, 3));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.input = nullptr; }), Names("input", "null"));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.weight = nullptr; }), Names("weight", "null"));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.weight_scales = nullptr; }),
              Names("weight_scales", "null"));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.out = nullptr; }), Names("out", "null"));
  EXPECT_THAT(refused_fp8_matvec([](Fp8MatvecParams& p) { p.input = reinterpret_cast<const void*>(0x1008); }),
              Names("input", "0x1008", 16));
  EXPECT_THAT(
      refused_fp8_matvec([](Fp8MatvecParams& p) { p.weight = reinterpret_cast<const uint8_t*>(0x2002); }),
      Names("weight", "0x2002", 16));
}

TEST(Fp8CudaHost, ProductsOfFewRowsSupportUpToSixteenOfWholeVectors) {
  EXPECT_TRUE(fp8_matvec_supports(1, 16));
  EXPECT_TRUE(fp8_matvec_supports(16, 14336));
  EXPECT_FALSE(fp8_matvec_supports(17, 4096));
  EXPECT_FALSE(fp8_matvec_supports(1, 4104));
  EXPECT_FALSE(fp8_matvec_supports(1, 0));
}

TEST(Fp8CudaHost, QuantizingAndScalingRefuseWhatTheyCannotDoWithTheValues) {
  const auto refused_rows = [](auto change) {
    QuantizeRowsParams p{.rows = 1,
                         .width = 4,
                         .input = reinterpret_cast<const void*>(0x1000),
                         .out = reinterpret_cast<uint8_t*>(0x2000),
                         .scales = reinterpret_cast<float*>(0x3000)};
    change(p);
    return message_of<InvalidArgument>([&] { quantize_rows_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(refused_rows([](QuantizeRowsParams& p) { p.width = 0; }), Names("width", 0, 1));
  EXPECT_THAT(refused_rows([](QuantizeRowsParams& p) { p.rows = int64_t{1} << 31; }),
              Names("rows", 2147483648));
  EXPECT_THAT(refused_rows([](QuantizeRowsParams& p) { p.scales = nullptr; }), Names("scales", "null"));
  const auto refused_scaling = [](auto change) {
    ScaleProductParams p{.rows = 1,
                         .out_features = 4,
                         .input_scales = reinterpret_cast<const float*>(0x1000),
                         .weight_scales = reinterpret_cast<const float*>(0x2000),
                         .out = reinterpret_cast<void*>(0x3000),
                         .out_stride = 4};
    change(p);
    return message_of<InvalidArgument>([&] { scale_product_cuda(p, kH200, nullptr); });
  };
  EXPECT_THAT(refused_scaling([](ScaleProductParams& p) { p.out_features = 0; }),
              Names("out_features", 0, 1));
  EXPECT_THAT(refused_scaling([](ScaleProductParams& p) { p.out_stride = 3; }), Names("out_stride", 3, 4));
  EXPECT_THAT(refused_scaling([](ScaleProductParams& p) { p.input_scales = nullptr; }),
              Names("input_scales", "null"));
  EXPECT_THAT(refused_scaling([](ScaleProductParams& p) { p.out = nullptr; }), Names("out", "null"));
}

TEST(Fp8CudaHost, OperationsThatQuantiseRefuseWhatTheyCannotDoWithTheValues) {
  const auto refused_norm = [](auto change) {
    RmsNormParams p{.rows = 1,
                    .width = 32,
                    .dtype = DType::kBFloat16,
                    .input = reinterpret_cast<const void*>(0x1000),
                    .weight = reinterpret_cast<const void*>(0x2000)};
    QuantizedRows out{.elements = reinterpret_cast<uint8_t*>(0x3000),
                      .scales = reinterpret_cast<float*>(0x4000)};
    change(p, out);
    return message_of<InvalidArgument>([&] { rms_norm_quantized_cuda(p, out, kH200, nullptr); });
  };
  using Norm = RmsNormParams;
  using Rows = QuantizedRows;
  EXPECT_THAT(refused_norm([](Norm& p, Rows&) { p.width = 40; }), Names("width", 40, 16));
  EXPECT_THAT(refused_norm([](Norm& p, Rows&) { p.dtype = DType::kFloat32; }), Names("float32", "bfloat16"));
  EXPECT_THAT(refused_norm([](Norm& p, Rows&) { p.int8_grid = true; }), Names("int8_grid"));
  EXPECT_THAT(refused_norm([](Norm& p, Rows&) { p.residual = reinterpret_cast<void*>(0x5008); }),
              Names("residual", "0x5008", 16));
  EXPECT_THAT(refused_norm([](Norm&, Rows& out) { out.scales = nullptr; }), Names("scales", "null"));
  EXPECT_THAT(refused_norm([](Norm&, Rows& out) { out.elements += 4; }), Names("elements", "0x3004", 16));
  const auto refused_activation = [](auto change) {
    ActivateAndMultiplyParams p{
        .rows = 1, .width = 32, .dtype = DType::kBFloat16, .gate_up = reinterpret_cast<const void*>(0x1000)};
    change(p);
    return message_of<InvalidArgument>([&] {
      activate_and_multiply_quantized_cuda(
          p, {.elements = reinterpret_cast<uint8_t*>(0x3000), .scales = reinterpret_cast<float*>(0x4000)},
          kH200, nullptr);
    });
  };
  using Gate = ActivateAndMultiplyParams;
  EXPECT_THAT(refused_activation([](Gate& p) { p.width = 8; }), Names("width", 8, 16));
  EXPECT_THAT(refused_activation([](Gate& p) { p.gate_up = reinterpret_cast<const void*>(0x1004); }),
              Names("gate_up", "0x1004", 16));
}

}  // namespace
}  // namespace allot::kernels
