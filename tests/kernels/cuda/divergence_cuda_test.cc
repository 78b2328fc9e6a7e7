// row_divergence_cuda on a GPU against its definition in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "../divergence_reference.h"
#include "kernels/rows_cuda.h"
#include "rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::DivergingRows;
using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::RowsCuda;

class RowDivergenceCuda : public RowsCuda {
 protected:
  std::vector<RowDivergence> divergences(DType dtype, const Elements& dense, const Elements& sampled,
                                         int64_t rows, int32_t width, int64_t stride) {
    std::vector<RowDivergence> out(static_cast<size_t>(rows));
    const size_t bytes = out.size() * sizeof(RowDivergence);
    GuardedArray& device_out = put_bytes(out.data(), bytes, alignof(RowDivergence));
    row_divergence_cuda({.rows = rows,
                         .vocab_size = width,
                         .dtype = dtype,
                         .stride = stride,
                         .dense = put(dense).data(),
                         .sampled = put(sampled).data(),
                         .out = static_cast<RowDivergence*>(device_out.data())},
                        gpu_limits(), stream_);
    std::memcpy(out.data(), device_out.download(stream_).data(), bytes);
    return out;
  }
};

// Widths below, at and above what the threads of a block take in one step; vectors end in the gap of a row.
TEST_F(RowDivergenceCuda, FollowsItsDefinitionFromTinyToHugeDivergences) {
  for_every_kind([&](DType dtype) {
    for (const int32_t width : {1, 7, 8, 100, 511, 4096, 4099, 50003}) {
      SCOPED_TRACE("width " + std::to_string(width));
      const DivergingRows rows(dtype, width, (width + 7) / 8 * 8 + 8);
      const auto out = divergences(dtype, rows.dense, rows.sampled, DivergingRows::kRows, width, rows.stride);
      for (int64_t row = 0; row < DivergingRows::kRows; ++row) {
        const auto expected = rows.expected(row);
        EXPECT_NEAR(out[row].divergence, expected.divergence, 5e-6 * expected.divergence + 1e-10)
            << "row " << row;
        EXPECT_GE(out[row].divergence, 0) << "row " << row;
        EXPECT_EQ(out[row].same_top, expected.same_top) << "row " << row;
      }
      EXPECT_EQ(out[0].divergence, 0) << "of equal rows";
    }
  });
}

TEST_F(RowDivergenceCuda, TakesTheFirstOfEqualLogitsForTheLargest) {
  for_every_kind([&](DType dtype) {
    constexpr int32_t kWidth = 6000;
    Elements dense(dtype, kWidth, -1), sampled(dtype, kWidth, -1);
    for (const int32_t i : {18, 5001}) dense.set(i, 2);
    for (const int32_t i : {18, 700}) sampled.set(i, 2);
    EXPECT_EQ(divergences(dtype, dense, sampled, 1, kWidth, kWidth)[0].same_top, 1);
    sampled.set(17, 2);
    EXPECT_EQ(divergences(dtype, dense, sampled, 1, kWidth, kWidth)[0].same_top, 0);
    for (const int32_t i : {17, 18, 700}) sampled.set(i, -1);
    for (const int32_t i : {18, 5001}) dense.set(i, -1);
    sampled.set(3, 0.0f), dense.set(3, -0.0f);
    sampled.set(4, -0.0f), dense.set(4, 0.0f);
    EXPECT_EQ(divergences(dtype, dense, sampled, 1, kWidth, kWidth)[0].same_top, 1) << "-0 is 0";
  });
}

TEST_F(RowDivergenceCuda, IsFiniteForAnyFiniteLogitsAndNotForOthers) {
  for_every_kind([&](DType dtype) {
    constexpr int32_t kWidth = 2000;
    Elements dense(dtype, kWidth, 0), sampled(dtype, kWidth, 0);
    dense.set(3, 400);
    sampled.set(1500, 400);
    EXPECT_NEAR(divergences(dtype, dense, sampled, 1, kWidth, kWidth)[0].divergence, 400, 1e-3);
    for (const float wrong : {std::nanf(""), -std::nanf(""), INFINITY}) {
      for (Elements* logits : {&dense, &sampled}) {
        logits->set(900, wrong);
        EXPECT_FALSE(std::isfinite(divergences(dtype, dense, sampled, 1, kWidth, kWidth)[0].divergence))
            << wrong;
        logits->set(900, 0);
      }
    }
  });
}

// One row of many has the bits that it has alone.
TEST_F(RowDivergenceCuda, OfARowDoesNotDependOnTheOthers) {
  const DivergingRows rows(DType::kBFloat16, 3000, 3000);
  const auto together =
      divergences(DType::kBFloat16, rows.dense, rows.sampled, DivergingRows::kRows, 3000, 3000);
  for (int64_t row = 0; row < DivergingRows::kRows; ++row) {
    Elements dense(DType::kBFloat16, 3000, 0), sampled = dense;
    for (int64_t i = 0; i < 3000; ++i) {
      dense.set(i, rows.dense.get(row * 3000 + i));
      sampled.set(i, rows.sampled.get(row * 3000 + i));
    }
    EXPECT_EQ(divergences(DType::kBFloat16, dense, sampled, 1, 3000, 3000)[0].divergence,
              together[row].divergence)
        << "row " << row;
  }
}

}  // namespace
}  // namespace allot::kernels
