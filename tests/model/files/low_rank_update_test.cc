#include "model/low_rank_update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <string>

#include "kernels/bfloat16.h"
#include "kernels/float16.h"

namespace allot::model {
namespace {

// Factors of random elements as a file may hold them: in any dtype, at any address.
class Factors {
 public:
  Factors(TensorDType dtype, int64_t rank, int64_t in_features, int64_t out_features, uint32_t seed)
      : a_(dtype, rank, in_features, seed), b_(dtype, out_features, rank, seed + 1) {}

  LowRankUpdate update(float scaling) const { return {.a = a_.view(), .b = b_.view(), .scaling = scaling}; }

  // Element of scaling * B A in double precision, and the sum of its products' sizes.
  struct Reference {
    double value = 0;
    double magnitude = 0;
  };
  Reference reference(float scaling, int64_t row, int64_t column) const {
    Reference sum;
    for (int64_t k = 0; k < a_.rows; ++k) {
      const double product = double{scaling} * b_.at(row, k) * a_.at(k, column);
      sum.value += product;
      sum.magnitude += std::abs(product);
    }
    return sum;
  }

 private:
  struct Matrix {
    Matrix(TensorDType type, int64_t row_count, int64_t column_count, uint32_t seed)
        : dtype(type), rows(row_count), columns(column_count) {
      std::mt19937 random(seed);
      std::normal_distribution<float> normal;
      for (int64_t i = 0; i < rows * columns; ++i) {
        const float drawn = normal(random);
        if (dtype == TensorDType::kF32) {
          append(drawn);
          values.push_back(drawn);
        } else if (dtype == TensorDType::kBF16) {
          append(kernels::bfloat16_from_float(drawn));
          values.push_back(kernels::float_from_bfloat16(kernels::bfloat16_from_float(drawn)));
        } else {
          append(kernels::float16_from_float(drawn));
          values.push_back(kernels::float_from_float16(kernels::float16_from_float(drawn)));
        }
      }
    }
    template <class Element>
    void append(Element element) {
      bytes.append(reinterpret_cast<const char*>(&element), sizeof element);
    }
    float at(int64_t row, int64_t column) const { return values[row * columns + column]; }
    TensorView view() const {
      return {.name = "factor",
              .dtype = dtype,
              .shape = {rows, columns},
              .bytes = std::as_bytes(std::span(bytes)).subspan(1)};
    }

    TensorDType dtype;
    int64_t rows;
    int64_t columns;
    std::vector<float> values;
    std::string bytes = "x";  // one byte before, so that no element is aligned
  };
  Matrix a_;
  Matrix b_;
};

// Per product an addition and a rounding of it, then the scaling and the last addition.
double bound(const Factors::Reference& reference, int64_t rank, double before) {
  constexpr double kRounding = 0x1p-24;
  return static_cast<double>(rank + 3) * kRounding * (reference.magnitude + std::abs(before)) + 1e-30;
}

TEST(LowRankUpdate, AddsTheProductInEveryDTypeAndShape) {
  constexpr float kScaling = 0.37f;
  for (const TensorDType dtype : {TensorDType::kF32, TensorDType::kBF16, TensorDType::kF16}) {
    for (const int64_t rank : {1, 3, 4, 5, 16, 33}) {
      for (const int64_t columns : {1, 7, 511, 512, 513, 1031}) {
        constexpr int64_t kRows = 5;
        const Factors factors(dtype, rank, columns, kRows, 11);
        std::vector<float> values(kRows * columns, 0.5f);
        add_elements(factors.update(kScaling), 0, values);
        for (int64_t row = 0; row < kRows; ++row) {
          for (int64_t column = 0; column < columns; ++column) {
            const auto reference = factors.reference(kScaling, row, column);
            ASSERT_NEAR(values[row * columns + column], 0.5 + reference.value, bound(reference, rank, 0.5))
                << dtype_name(dtype) << " rank " << rank << " row " << row << " column " << column;
          }
        }
      }
    }
  }
}

TEST(LowRankUpdate, AnElementHasTheSameBitsInWhateverRangeItIsComputed) {
  constexpr int64_t kRows = 9, kColumns = 700, kRank = 13;
  const Factors factors(TensorDType::kF32, kRank, kColumns, kRows, 5);
  const LowRankUpdate update = factors.update(1.7f);
  std::vector<float> whole(kRows * kColumns, 0.25f);
  add_elements(update, 0, whole);
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto first = static_cast<int64_t>(random() % whole.size());
    const auto count = static_cast<int64_t>(random() % (whole.size() - first + 1));
    std::vector<float> part(count + 2, 0.25f);
    add_elements(update, first, std::span(part).subspan(1, count));
    EXPECT_TRUE(std::equal(part.begin() + 1, part.end() - 1, whole.begin() + first)) << first << " " << count;
    EXPECT_EQ(part.front(), 0.25f);
    EXPECT_EQ(part.back(), 0.25f);
  }
}

// The elements of a product whose factors are the same in every column and row.
std::vector<float> product_of(const std::vector<float>& a, const std::vector<float>& b) {
  constexpr int64_t kColumns = 37;  // some vectors and a rest
  const auto rank = static_cast<int64_t>(a.size());
  std::vector<float> rows;
  for (const float value : a) rows.insert(rows.end(), kColumns, value);
  const auto view = [](const std::vector<float>& values, std::vector<int64_t> shape) {
    return TensorView{.name = "",
                      .dtype = TensorDType::kF32,
                      .shape = std::move(shape),
                      .bytes = std::as_bytes(std::span(values))};
  };
  std::vector<float> values(kColumns);
  add_elements({.a = view(rows, {rank, kColumns}), .b = view(b, {1, rank}), .scaling = 1}, 0, values);
  return values;
}

TEST(LowRankUpdate, ProductsAreAddedInTheOrderOfTheRank) {
  // 2^24 + 1 is 2^24 in float32, so any other order of the additions gives another sum.
  EXPECT_THAT(product_of({0x1p24f, 1, 1, -0x1p24f, 1}, {1, 1, 1, 1, 1}), testing::Each(1));
}

TEST(LowRankUpdate, AProductIsRoundedBeforeItIsAdded) {
  // The square of 1 + 2^-12 is 1 + 2^-11 + 2^-24, whose last bit is lost unless it is fused with the
  // addition.
  for (const size_t rank : {2, 4}) {
    std::vector<float> a = {-1, 1 + 0x1p-12f}, b = {1 + 0x1p-11f, 1 + 0x1p-12f};
    a.resize(rank);
    b.resize(rank);
    EXPECT_THAT(product_of(a, b), testing::Each(0)) << rank;
  }
}

}  // namespace
}  // namespace allot::model
