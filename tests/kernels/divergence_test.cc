// row_divergence against its definition in double precision, for every instruction set of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "divergence_reference.h"
#include "kernels/cpu/launch.h"
#include "kernels/rows.h"
#include "launch.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using testing::DivergingRows;
using testing::Elements;
using testing::for_every_kind;

TEST(RowDivergence, FollowsItsDefinitionFromTinyToHugeDivergences) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    for (const int32_t width : {1, 2, 15, 16, 17, 100, 1025, 5003}) {
      SCOPED_TRACE("width " + std::to_string(width));
      DivergingRows rows(dtype, width, width + 5);
      std::vector<RowDivergence> out(DivergingRows::kRows + 1, {.divergence = 77, .same_top = 5});
      cpu::row_divergence({.rows = DivergingRows::kRows,
                           .vocab_size = width,
                           .dtype = dtype,
                           .stride = rows.stride,
                           .dense = rows.dense.data(),
                           .sampled = rows.sampled.data(),
                           .out = out.data()},
                          1, isa);
      for (int64_t row = 0; row < DivergingRows::kRows; ++row) {
        const auto expected = rows.expected(row);
        EXPECT_NEAR(out[row].divergence, expected.divergence, 4e-6 * expected.divergence + 1e-10)
            << "row " << row;
        EXPECT_GE(out[row].divergence, 0) << "row " << row;
        EXPECT_EQ(out[row].same_top, expected.same_top) << "row " << row;
      }
      EXPECT_EQ(out[0].divergence, 0) << "of equal rows";
      EXPECT_EQ(out[DivergingRows::kRows].divergence, 77);
      EXPECT_EQ(out[DivergingRows::kRows].same_top, 5);
    }
  });
}

TEST(RowDivergence, TakesTheFirstOfEqualLogitsForTheLargest) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    Elements dense(dtype, 40, -1), sampled(dtype, 40, -1);
    for (const int32_t i : {18, 37}) dense.set(i, 2);
    for (const int32_t i : {18, 30}) sampled.set(i, 2);
    RowDivergence out;
    DivergenceParams p{.rows = 1,
                       .vocab_size = 40,
                       .dtype = dtype,
                       .stride = 40,
                       .dense = dense.data(),
                       .sampled = sampled.data(),
                       .out = &out};
    cpu::row_divergence(p, 1, isa);
    EXPECT_EQ(out.same_top, 1);
    sampled.set(17, 2);
    cpu::row_divergence(p, 1, isa);
    EXPECT_EQ(out.same_top, 0);
  });
}

// Logits so far apart that exp(dense - sampled) has no float.
TEST(RowDivergence, IsFiniteForAnyFiniteLogitsAndNotForOthers) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    Elements dense(dtype, 20, 0), sampled(dtype, 20, 0);
    dense.set(3, 400);
    sampled.set(5, 400);
    RowDivergence out;
    DivergenceParams p{.rows = 1,
                       .vocab_size = 20,
                       .dtype = dtype,
                       .stride = 20,
                       .dense = dense.data(),
                       .sampled = sampled.data(),
                       .out = &out};
    cpu::row_divergence(p, 1, isa);
    EXPECT_NEAR(out.divergence, 400, 1e-3);
    for (const float wrong : {std::nanf(""), INFINITY}) {
      for (Elements* logits : {&dense, &sampled}) {
        const float before = logits->get(9);
        logits->set(9, wrong);
        cpu::row_divergence(p, 1, isa);
        EXPECT_FALSE(std::isfinite(out.divergence)) << wrong;
        logits->set(9, before);
      }
    }
  });
}

TEST(RowDivergence, OfARowDependsNeitherOnTheOthersNorOnThreads) {
  constexpr int64_t kRows = 300;
  constexpr int32_t kWidth = 333;
  Elements dense(DType::kFloat32, kRows * kWidth, 0), sampled = dense;
  for (int64_t i = 0; i < kRows * kWidth; ++i) {
    dense.set(i, static_cast<float>(i * 7919 % 1000) / 100);
    sampled.set(i, static_cast<float>(i * 104729 % 1000) / 100);
  }
  DivergenceParams p{.rows = kRows,
                     .vocab_size = kWidth,
                     .dtype = DType::kFloat32,
                     .stride = kWidth,
                     .dense = dense.data(),
                     .sampled = sampled.data(),
                     .out = nullptr};
  std::vector<RowDivergence> one(kRows), four(kRows);
  p.out = one.data();
  row_divergence(p, 1);
  p.out = four.data();
  row_divergence(p, 4);
  for (int64_t row = 0; row < kRows; ++row) EXPECT_EQ(one[row].divergence, four[row].divergence) << row;
}

TEST(RowDivergence, RefusesWhatItCannotDoWithTheValues) {
  const auto refused = [](const DivergenceParams& p) {
    return message_of<InvalidArgument>([&] { row_divergence(p, 1); });
  };
  float x[4] = {};
  EXPECT_THAT(refused({.rows = -1, .vocab_size = 4, .stride = 4}), Names("row_divergence", "rows", -1));
  EXPECT_THAT(refused({.rows = 1, .vocab_size = 0, .stride = 4}), Names("vocab_size", 0, 1));
  EXPECT_THAT(refused({.rows = 1, .vocab_size = 4, .stride = 3}), Names("stride", 3, 4));
  EXPECT_THAT(refused({.rows = 1, .vocab_size = 4, .stride = 4, .dense = x}), Names("sampled", "null"));
}

}  // namespace
}  // namespace allot::kernels
