// multiply() against its definition, operation by operation, for every instruction set of this machine.
#include "kernels/product.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/launch.h"
#include "launch.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::for_every_kind;
using testing::random_elements;

// Everything of a product; a guard element lies behind the results.
struct Case {
  Case(cpu::Isa by, DType of, int64_t row_count, int64_t row_width, int64_t column_count)
      : isa(by),
        dtype(of),
        rows(row_count),
        width(row_width),
        columns(column_count),
        input(random_elements(dtype, rows * width, 1)),
        matrix(random_elements(dtype, columns * width, 2)),
        bias(random_elements(dtype, columns, 3)),
        packed(static_cast<size_t>(cpu::packed_matrix_bytes(columns, width, dtype, isa)), 0xFF) {
    cpu::pack_matrix(matrix.data(), columns, width, dtype, packed.data(), 2, isa);
  }

  ProductParams params(Elements& out, bool with_bias = true) {
    return {.rows = rows,
            .width = width,
            .columns = columns,
            .dtype = dtype,
            .input = input.data(),
            .matrix = packed.data(),
            .bias = with_bias ? bias.data() : nullptr,
            .out = out.data()};
  }
  Elements multiplied(bool with_bias = true, int threads = 1) {
    Elements out(dtype, rows * columns + 1, 77);
    cpu::multiply(params(out, with_bias), threads, isa);
    EXPECT_EQ(out.get(rows * columns), 77);
    return out;
  }

  cpu::Isa isa;
  DType dtype;
  int64_t rows, width, columns;
  Elements input, matrix, bias;
  std::vector<unsigned char> packed;
};

std::vector<float> numbers(const Elements& elements) {
  std::vector<float> all(static_cast<size_t>(elements.count()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = elements.get(static_cast<int64_t>(i));
  return all;
}

// The sum of one result, without the bias.
float summed(const float* x, const float* y, int64_t width, cpu::Isa isa, DType dtype) {
  float sum = 0;
  if (!cpu::multiplies_in_tiles(isa, dtype)) {
    for (int64_t i = 0; i < width; ++i)
      sum = isa == cpu::Isa::kPortable ? sum + x[i] * y[i] : std::fma(x[i], y[i], sum);
    return sum;
  }
  for (int64_t begin = 0; begin < width; begin += cpu::kTileWidth) {
    float part[2] = {0, 0};  // of elements at even and odd places
    for (int64_t i = begin; i < std::min(begin + cpu::kTileWidth, width); ++i)
      part[i % 2] = std::fma(x[i], y[i], part[i % 2]);
    sum += part[0] + part[1];
  }
  return sum;
}

TEST(Product, IsSummedInItsOrderAndRoundedOnce) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    // Lone rows, tiles, blocks and parts of the width, whole and cut.
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 18, 19, 31, 96, 97, 256, 274}) {
      for (const int64_t width : {1, 15, 17, 256, 259}) {
        for (const int64_t columns : {1, 16, 31, 100}) {
          SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(width) + ", " +
                       std::to_string(columns) + " columns");
          Case given(isa, dtype, rows, width, columns);
          const bool with_bias = rows % 2 == 1;
          const Elements out = given.multiplied(with_bias);
          const std::vector<float> input = numbers(given.input), matrix = numbers(given.matrix);
          for (int64_t at = 0; at < rows * columns; ++at) {
            float sum = summed(input.data() + at / columns * width, matrix.data() + at % columns * width,
                               width, isa, dtype);
            if (with_bias) sum += given.bias.get(at % columns);
            if (dtype == DType::kBFloat16) sum = float_from_bfloat16(bfloat16_from_float(sum));
            ASSERT_EQ(out.get(at), sum) << "row " << at / columns << ", column " << at % columns;
          }
        }
      }
    }
  });
}

TEST(Product, OfARowIsTheSameAloneBesideNoNumbersAndOnAnyNumberOfThreads) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    Case together(isa, dtype, 40, 300, 1000);
    together.input.set(18 * together.width, std::numeric_limits<float>::quiet_NaN());
    const Elements out = together.multiplied();
    for (const int threads : {2, 3}) EXPECT_EQ(together.multiplied(true, threads).bytes(), out.bytes());
    for (const int64_t row : {0, 17, 39}) {
      Case alone(isa, dtype, 1, together.width, together.columns);
      for (int64_t i = 0; i < alone.width; ++i) alone.input.set(i, together.input.get(row * alone.width + i));
      const Elements of_row = alone.multiplied();
      for (int64_t column = 0; column < alone.columns; ++column)
        ASSERT_EQ(of_row.get(column), out.get(row * alone.columns + column)) << "row " << row;
    }
  });
}

TEST(Product, RefusesWhatItCannotMultiply) {
  Case given(cpu::best_isa(), DType::kFloat32, 2, 3, 4);
  Elements out(DType::kFloat32, 8, 77);
  const auto refusal = [&](auto change) {
    ProductParams params = given.params(out);
    change(params);
    return message_of<InvalidArgument>([&] { multiply(params, 1); });
  };
  EXPECT_THAT(refusal([](ProductParams& p) { p.rows = -1; }), Names("rows", -1, 0));
  EXPECT_THAT(refusal([](ProductParams& p) { p.width = 0; }), Names("width", 0, 1));
  EXPECT_THAT(refusal([](ProductParams& p) { p.columns = 0; }), Names("columns", 0, 1));
  EXPECT_THAT(refusal([](ProductParams& p) { p.dtype = DType::kFloat16; }), Names("float16", "bfloat16"));
  EXPECT_THAT(refusal([](ProductParams& p) { p.input = nullptr; }), Names("input", "null"));
  EXPECT_THAT(refusal([](ProductParams& p) { p.matrix = nullptr; }), Names("matrix", "null"));
  EXPECT_THAT(refusal([](ProductParams& p) { p.out = nullptr; }), Names("out", "null"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)packed_matrix_bytes(0, 3, DType::kFloat32); }),
              Names("packed_matrix_bytes", "columns", 0));
  EXPECT_EQ(out.get(0), 77) << "nothing is written";
  ProductParams nothing = given.params(out);
  nothing.rows = 0;
  multiply(nothing, 1);
  EXPECT_EQ(out.get(0), 77);
}

}  // namespace
}  // namespace allot::kernels
