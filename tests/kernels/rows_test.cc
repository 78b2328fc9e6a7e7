// The row operations against their formulas in double precision, for every instruction set of this machine.
#include "kernels/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "kernels/cpu/launch.h"
#include "launch.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using testing::Elements;
using testing::for_every_kind;
using testing::random_elements;

constexpr float kGuard = 77.0f;
constexpr int32_t kWidths[] = {1, 8, 15, 16, 31, 256, 683};

// A result rounded once to its dtype is within half a unit in the last place; float32 sums add a few more.
double tolerance(DType dtype, double expected) {
  return (dtype == DType::kFloat32 ? 2e-6 : 0.0040) * (std::abs(expected) + 1e-3);
}

TEST(RmsNorm, FollowsItsFormulaWithAndWithoutAResidualStream) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    for (const int32_t width : kWidths) {
      for (const bool with_residual : {false, true}) {
        constexpr int64_t kRows = 5;
        Elements input = random_elements(dtype, kRows * width, 1);
        const Elements before = random_elements(dtype, kRows * width, 2);
        Elements residual = before;
        Elements weight = random_elements(dtype, width, 3);
        Elements out(dtype, kRows * width + 16, kGuard);
        cpu::rms_norm({.rows = kRows,
                       .width = width,
                       .dtype = dtype,
                       .epsilon = 1e-5f,
                       .input = input.data(),
                       .residual = with_residual ? residual.data() : nullptr,
                       .weight = weight.data(),
                       .out = out.data()},
                      1, isa);
        Elements rounded(dtype, 1, 0);
        for (int64_t row = 0; row < kRows; ++row) {
          std::vector<double> x;
          double squares = 0;
          for (int64_t i = row * width; i < (row + 1) * width; ++i) {
            rounded.set(0, with_residual ? input.get(i) + before.get(i) : input.get(i));
            if (with_residual) {
              ASSERT_EQ(residual.get(i), rounded.get(0)) << "width " << width;
            }
            x.push_back(rounded.get(0));
            squares += x.back() * x.back();
          }
          for (int32_t i = 0; i < width; ++i) {
            const double expected = x[i] / std::sqrt(squares / width + 1e-5) * weight.get(i);
            ASSERT_NEAR(out.get(row * width + i), expected, tolerance(dtype, expected)) << "width " << width;
          }
        }
        for (int64_t i = kRows * width; i < kRows * width + 16; ++i) ASSERT_EQ(out.get(i), kGuard);
      }
    }
  });
}

// Numbers that lie on the grid, between two of its steps and beyond the smallest range, so that each step is
// known.
TEST(RmsNorm, RoundsARowToTheStepsOfEightBits) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    for (const int32_t width : kWidths) {
      constexpr int64_t kRows = 4;
      constexpr float kDeviations[] = {1, 300, 1e-3f, 1e-8f};
      Elements input = random_elements(dtype, kRows * width, 20);
      Elements weight = random_elements(dtype, width, 21);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = row * width; i < (row + 1) * width; ++i)
          input.set(i, kDeviations[row] * input.get(i));
      }
      Elements plain(dtype, kRows * width, 0), out(dtype, kRows * width + 16, kGuard);
      RmsNormParams params{.rows = kRows,
                           .width = width,
                           .dtype = dtype,
                           .epsilon = 1e-5f,
                           .input = input.data(),
                           .weight = weight.data(),
                           .out = plain.data()};
      cpu::rms_norm(params, 1, isa);
      params.int8_grid = true;
      params.out = out.data();
      cpu::rms_norm(params, 1, isa);
      Elements rounded(dtype, 1, 0);
      for (int64_t row = 0; row < kRows; ++row) {
        float largest = 1e-5f;
        for (int64_t i = row * width; i < (row + 1) * width; ++i)
          largest = std::max(largest, std::abs(plain.get(i)));
        const float scale = 127 / largest;
        for (int64_t i = row * width; i < (row + 1) * width; ++i) {
          rounded.set(0, std::nearbyint(plain.get(i) * scale) / scale);
          ASSERT_EQ(out.get(i), rounded.get(0)) << "row " << row << " of width " << width;
        }
      }
      for (int64_t i = kRows * width; i < kRows * width + 16; ++i) ASSERT_EQ(out.get(i), kGuard);
      // In place.
      params.out = input.data();
      cpu::rms_norm(params, 1, isa);
      for (int64_t i = 0; i < kRows * width; ++i) ASSERT_EQ(input.get(i), out.get(i)) << width;
    }
  });
}

TEST(ActivateAndMultiply, SquaresWhatIsAboveZeroAndKeepsNan) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    for (const int32_t width : kWidths) {
      constexpr int64_t kRows = 3;
      Elements gate_up = random_elements(dtype, kRows * 2 * width, 22, 6);
      gate_up.set(0, std::nanf(""));
      gate_up.set(2 * width, -200);
      gate_up.set(4 * width, 200);
      Elements out(dtype, kRows * width + 16, kGuard);
      cpu::activate_and_multiply({.rows = kRows,
                                  .width = width,
                                  .dtype = dtype,
                                  .activation = Activation::kReluSquared,
                                  .gate_up = gate_up.data(),
                                  .out = out.data()},
                                 1, isa);
      EXPECT_TRUE(std::isnan(out.get(0)));
      for (int64_t i = 1; i < kRows * width; ++i) {
        const int64_t row = i / width, at = row * 2 * width + i % width;
        const double gate = std::max(0.0F, gate_up.get(at));
        const double expected = gate * gate * gate_up.get(at + width);
        ASSERT_NEAR(out.get(i), expected, tolerance(dtype, expected)) << "gate " << gate;
      }
      for (int64_t i = kRows * width; i < kRows * width + 16; ++i) ASSERT_EQ(out.get(i), kGuard);
    }
  });
}

TEST(ActivateAndMultiply, FollowsItsFormulaFromMinusToPlusTwoHundred) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    for (const int32_t width : kWidths) {
      constexpr int64_t kRows = 3;
      Elements gate_up = random_elements(dtype, kRows * 2 * width, 4, 6);
      gate_up.set(0, -200);
      gate_up.set(2 * width, 200);
      Elements out(dtype, kRows * width + 16, kGuard);
      cpu::activate_and_multiply(
          {.rows = kRows, .width = width, .dtype = dtype, .gate_up = gate_up.data(), .out = out.data()}, 1,
          isa);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int32_t i = 0; i < width; ++i) {
          const double gate = gate_up.get(row * 2 * width + i);
          const double expected = gate / (1 + std::exp(-gate)) * gate_up.get(row * 2 * width + width + i);
          ASSERT_NEAR(out.get(row * width + i), expected, tolerance(dtype, expected)) << "gate " << gate;
        }
      }
      for (int64_t i = kRows * width; i < kRows * width + 16; ++i) ASSERT_EQ(out.get(i), kGuard);
    }
  });
}

TEST(ActivateAndMultiply, KeepsNan) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    Elements gate_up(dtype, 32, 1);
    gate_up.set(3, std::nanf(""));
    Elements out(dtype, 16, 0);
    cpu::activate_and_multiply(
        {.rows = 1, .width = 16, .dtype = dtype, .gate_up = gate_up.data(), .out = out.data()}, 1, isa);
    EXPECT_TRUE(std::isnan(out.get(3)));
    EXPECT_FALSE(std::isnan(out.get(2)));
  });
}

// What a model may have between the projection and the rotation.
struct BeforeRotation {
  bool bias = false;
  bool norms = false;
};

// Everything rotate_and_store needs, as a fused projection of 6 heads with a gap after each token.
struct RotaryCase {
  RotaryCase(DType dtype, int32_t head_dim, BeforeRotation before)
      : stride((4 + 2 * 2) * head_dim + 5),
        qkv(random_elements(dtype, 3 * stride, 5)),
        bias(random_elements(dtype, 8 * head_dim, 6)),
        q_norm(random_elements(dtype, head_dim, 7)),
        k_norm(random_elements(dtype, head_dim, 8)),
        key_pages(dtype, 4 * 2 * 8 * head_dim, kGuard),
        value_pages(dtype, 4 * 2 * 8 * head_dim, kGuard) {
    for (int32_t i = 0; i < 10 * head_dim / 2; ++i) {
      cos.push_back(std::cos(0.3f * static_cast<float>(i)));
      sin.push_back(std::sin(0.3f * static_cast<float>(i)));
    }
    params.tokens = 3;
    params.num_q_heads = 4;
    params.num_kv_heads = 2;
    params.head_dim = head_dim;
    params.dtype = dtype;
    params.qkv = qkv.data();
    params.qkv_stride = stride;
    params.bias = before.bias ? bias.data() : nullptr;
    params.q_norm = before.norms ? q_norm.data() : nullptr;
    params.k_norm = before.norms ? k_norm.data() : nullptr;
    params.norm_epsilon = 1e-2f;
    params.cos = cos.data();
    params.sin = sin.data();
    params.table_rows = 10;
    params.positions = positions.data();
    params.key_pages = key_pages.data();
    params.value_pages = value_pages.data();
    params.num_pages = 4;
    params.page_size = 8;
    params.slots = slots.data();
  }

  int64_t stride;
  Elements qkv, bias, q_norm, k_norm, key_pages, value_pages;
  std::vector<float> cos, sin;
  std::vector<int32_t> positions = {0, 9, 4};
  std::vector<int64_t> slots = {31, 0, 13};
  RotaryParams params;
};

TEST(RotateAndStore, NormsAndRotatesQueriesInPlaceAndWritesKeysAndValuesToTheirSlotsOnly) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    for (const int32_t head_dim : {8, 24, 32, 64, 128}) {
      for (const BeforeRotation before_rotation :
           {BeforeRotation{}, {.bias = true}, {.norms = true}, {.bias = true, .norms = true}}) {
        RotaryCase c(dtype, head_dim, before_rotation);
        const Elements before = c.qkv;
        cpu::rotate_and_store(c.params, 1, isa);
        const int32_t half = head_dim / 2;
        std::vector<bool> written(4 * 2 * 8 * head_dim, false);
        for (int64_t token = 0; token < 3; ++token) {
          const auto projected = [&](int32_t head, int32_t i) -> double {
            const double b = before_rotation.bias ? c.bias.get(head * head_dim + i) : 0;
            return b + before.get(token * c.stride + head * head_dim + i);
          };
          const auto normed = [&](int32_t head, int32_t i) {
            if (!before_rotation.norms) return projected(head, i);
            double squares = 0;
            for (int32_t k = 0; k < head_dim; ++k) squares += projected(head, k) * projected(head, k);
            const double weight = (head < 4 ? c.q_norm : c.k_norm).get(i);
            return projected(head, i) / std::sqrt(squares / head_dim + 1e-2) * weight;
          };
          const auto expect_rotated = [&](double actual, int32_t head, int32_t i, const char* what) {
            const double direct = normed(head, i) * c.cos[c.positions[token] * half + i % half];
            const double crossed = normed(head, i < half ? i + half : i - half) *
                                   c.sin[c.positions[token] * half + i % half] * (i < half ? -1 : 1);
            const double sum = direct + crossed, terms = std::abs(direct) + std::abs(crossed);
            double allowed = tolerance(dtype, dtype == DType::kFloat32 ? 2 + std::abs(sum) : sum);
            if (before_rotation.norms) allowed += 2 * tolerance(dtype, terms);  // its two roundings
            ASSERT_NEAR(actual, sum, allowed) << what << " of token " << token << " head_dim " << head_dim;
          };
          for (int32_t i = 0; i < head_dim; ++i) {
            for (int32_t head = 0; head < 4; ++head) {
              expect_rotated(c.qkv.get(token * c.stride + head * head_dim + i), head, i, "query");
            }
            for (int32_t head = 0; head < 2; ++head) {
              const int64_t at = ((c.slots[token] / 8 * 2 + head) * 8 + c.slots[token] % 8) * head_dim + i;
              written[at] = true;
              expect_rotated(c.key_pages.get(at), 4 + head, i, "key");
              const double value = projected(6 + head, i);
              ASSERT_NEAR(c.value_pages.get(at), value,
                          tolerance(dtype, dtype == DType::kFloat32 ? 2 + std::abs(value) : value));
              ASSERT_EQ(c.qkv.get(token * c.stride + (4 + head) * head_dim + i),
                        before.get(token * c.stride + (4 + head) * head_dim + i));
            }
          }
          for (int64_t i = 8 * head_dim; i < c.stride; ++i) {
            ASSERT_EQ(c.qkv.get(token * c.stride + i), before.get(token * c.stride + i))
                << "the gap of the stride";
          }
        }
        for (size_t i = 0; i < written.size(); ++i) {
          if (!written[i]) {
            ASSERT_EQ(c.key_pages.get(static_cast<int64_t>(i)), kGuard);
            ASSERT_EQ(c.value_pages.get(static_cast<int64_t>(i)), kGuard);
          }
        }
      }
    }
  });
}

TEST(RotateAndStore, WritesTheNormsOfTheStoredValuesToTheirSlotsOnly) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    for (const int32_t head_dim : {8, 24, 64}) {
      RotaryCase c(dtype, head_dim, {.bias = true});
      std::vector<float> norms(4 * 2 * 8, kGuard);
      c.params.value_norms = norms.data();
      cpu::rotate_and_store(c.params, 1, isa);
      std::vector<bool> written(norms.size(), false);
      for (const int64_t slot : c.slots) {
        for (int64_t head = 0; head < 2; ++head) {
          const int64_t vector = (slot / 8 * 2 + head) * 8 + slot % 8;
          written[static_cast<size_t>(vector)] = true;
          double squares = 0;
          for (int64_t i = 0; i < head_dim; ++i)
            squares += std::pow(c.value_pages.get(vector * head_dim + i), 2);
          ASSERT_NEAR(norms[static_cast<size_t>(vector)], std::sqrt(squares), 1e-5 * std::sqrt(squares));
        }
      }
      for (size_t i = 0; i < norms.size(); ++i) {
        if (!written[i]) {
          ASSERT_EQ(norms[i], kGuard);
        }
      }
    }
  });
}

TEST(StoreValueNorms, WritesTheNormsOfTheTokensThatHaveSlotsToThemOnly) {
  constexpr int32_t kHeads = 3, kPageSize = 8, kPages = 4;
  const std::vector<int64_t> slots = {31, 0, -1, 13};
  const auto tokens = std::ssize(slots);
  for_every_kind([&](cpu::Isa isa, DType dtype) {
    for (const int32_t head_dim : {1, 24, 64}) {
      const int64_t stride = kHeads * head_dim + 5;
      Elements values = random_elements(dtype, tokens * stride, 17);
      std::vector<float> norms(kPages * kHeads * kPageSize, kGuard);
      std::vector<double> expected(norms.begin(), norms.end());
      for (int64_t token = 0; token < tokens; ++token) {
        const int64_t slot = slots[static_cast<size_t>(token)];
        for (int64_t head = 0; head < kHeads && slot >= 0; ++head) {
          double squares = 0;
          for (int64_t i = 0; i < head_dim; ++i)
            squares += std::pow(values.get(token * stride + head * head_dim + i), 2);
          expected[static_cast<size_t>((slot / kPageSize * kHeads + head) * kPageSize + slot % kPageSize)] =
              std::sqrt(squares);
        }
      }
      cpu::store_value_norms({.tokens = tokens,
                              .num_kv_heads = kHeads,
                              .head_dim = head_dim,
                              .dtype = dtype,
                              .values = values.data(),
                              .value_stride = stride,
                              .value_norms = norms.data(),
                              .num_pages = kPages,
                              .page_size = kPageSize,
                              .slots = slots.data()},
                             1, isa);
      for (size_t i = 0; i < norms.size(); ++i) ASSERT_NEAR(norms[i], expected[i], 1e-5 * expected[i]) << i;
    }
  });
}

// Heads of ones and sevens have a mean square of 25, so the norm divides by 5 without an error of its own.
TEST(RotateAndStore, RoundsANormedHeadBeforeAndAfterItsWeightAsTransformersDoes) {
  for_every_kind([](cpu::Isa isa, DType dtype) {
    constexpr int32_t kHeadDim = 32;
    RotaryCase c(dtype, kHeadDim, {.norms = true});
    c.params.norm_epsilon = 0;
    std::fill(c.cos.begin(), c.cos.end(), 1.0f);
    std::fill(c.sin.begin(), c.sin.end(), 0.0f);
    for (int64_t i = 0; i < c.qkv.count(); ++i) c.qkv.set(i, i % c.stride % 2 == 0 ? 1 : 7);
    cpu::rotate_and_store(c.params, 1, isa);

    Elements rounded(dtype, 1, 0);
    const auto round = [&](float value) {
      rounded.set(0, value);
      return rounded.get(0);
    };
    int once_would_differ = 0;
    for (int32_t i = 0; i < kHeadDim; ++i) {
      const float y = (i % 2 == 0 ? 1.0f : 7.0f) * (1 / 5.0f);
      const float expected = round(round(y) * c.q_norm.get(i));
      once_would_differ += expected != round(y * c.q_norm.get(i));
      ASSERT_EQ(c.qkv.get(i), expected) << i;
      ASSERT_EQ(c.key_pages.get((31 / 8 * 2 * 8 + 31 % 8) * kHeadDim + i), round(round(y) * c.k_norm.get(i)));
    }
    EXPECT_EQ(once_would_differ > 0, dtype == DType::kBFloat16);
  });
}

TEST(GatherEmbeddings, CopiesTheRowsOfTheIds) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Elements table = random_elements(dtype, 7 * 33, 8);
    const std::vector<int32_t> ids = {6, 0, 3, 3};
    Elements out(dtype, 4 * 33, kGuard);
    gather_embeddings({.tokens = 4,
                       .width = 33,
                       .vocab_size = 7,
                       .dtype = dtype,
                       .table = table.data(),
                       .ids = ids.data(),
                       .out = out.data()},
                      2);
    for (int64_t token = 0; token < 4; ++token) {
      for (int64_t i = 0; i < 33; ++i) ASSERT_EQ(out.get(token * 33 + i), table.get(ids[token] * 33 + i));
    }
  }
}

TEST(RowOperations, GiveTheSameBytesForEveryThreadCount) {
  constexpr int64_t kRows = 3000;
  constexpr int32_t kWidth = 256;
  Elements input = random_elements(DType::kBFloat16, kRows * 2 * kWidth, 9);
  Elements weight = random_elements(DType::kBFloat16, kWidth, 10);
  std::vector<unsigned char> norm, silu;
  for (const int threads : {1, 2, 5}) {
    Elements out(DType::kBFloat16, kRows * kWidth, 0);
    rms_norm({.rows = kRows,
              .width = kWidth,
              .dtype = DType::kBFloat16,
              .epsilon = 1e-6f,
              .input = input.data(),
              .weight = weight.data(),
              .out = out.data()},
             threads);
    if (threads == 1) norm = out.bytes();
    EXPECT_TRUE(out.bytes() == norm) << threads << " threads";
    activate_and_multiply({.rows = kRows,
                           .width = kWidth,
                           .dtype = DType::kBFloat16,
                           .gate_up = input.data(),
                           .out = out.data()},
                          threads);
    if (threads == 1) silu = out.bytes();
    EXPECT_TRUE(out.bytes() == silu) << threads << " threads";
  }
}

TEST(RowOperations, RefuseWhatTheyCannotDoWithTheValues) {
  RotaryCase c(DType::kFloat32, 8, {});
  c.positions[1] = 10;
  EXPECT_THAT(message_of<InvalidArgument>([&] { rotate_and_store(c.params, 1); }),
              Names("rotate_and_store", 1, 10, 0, 9));
  c.positions[1] = 9;
  c.slots[2] = 32;
  EXPECT_THAT(message_of<InvalidArgument>([&] { rotate_and_store(c.params, 1); }),
              Names("rotate_and_store", 2, 32, 4, 8, 0, 31));
  c.slots[2] = 13;
  c.params.head_dim = 7;
  EXPECT_THAT(message_of<InvalidArgument>([&] { rotate_and_store(c.params, 1); }),
              Names("head_dim", 7, "even"));
  c.params.head_dim = 8;
  c.params.norm_epsilon = -1;
  EXPECT_THAT(message_of<InvalidArgument>([&] { rotate_and_store(c.params, 1); }),
              Names("rotate_and_store", "norm_epsilon", -1, 0));
  c.params.norm_epsilon = 0;
  c.params.planes.high = c.params.key_pages;
  EXPECT_THAT(message_of<InvalidArgument>([&] { rotate_and_store(c.params, 1); }),
              Names("rotate_and_store", "planes", "CUDA", "store_split_keys"));

  const std::vector<int64_t> slots = {-1, 32};
  std::vector<float> norms(32);
  ValueNormsParams stored{.tokens = 2,
                          .num_kv_heads = 1,
                          .head_dim = 8,
                          .values = norms.data(),
                          .value_stride = 8,
                          .value_norms = norms.data(),
                          .num_pages = 4,
                          .page_size = 8,
                          .slots = slots.data()};
  EXPECT_THAT(message_of<InvalidArgument>([&] { store_value_norms(stored, 1); }),
              Names("store_value_norms", 1, 32, 4, 8, 0, 31));
  stored.value_stride = 7;
  EXPECT_THAT(message_of<InvalidArgument>([&] { store_value_norms(stored, 1); }),
              Names("store_value_norms", "value_stride", 7, 8));
  stored = {.tokens = 2, .num_kv_heads = 1, .head_dim = 8, .value_stride = 8, .page_size = 8};
  EXPECT_THAT(message_of<InvalidArgument>([&] { store_value_norms(stored, 1); }),
              Names("store_value_norms", "values", "null"));

  const std::vector<int32_t> ids = {1, -1};
  float x[4] = {};
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                gather_embeddings(
                    {.tokens = 2, .width = 1, .vocab_size = 2, .table = x, .ids = ids.data(), .out = x + 2},
                    1);
              }),
              Names("gather_embeddings", 1, -1, 0, 1));
  EXPECT_THAT(message_of<InvalidArgument>([&] { rms_norm({.rows = 1, .width = 0}, 1); }), Names("width", 0));
  EXPECT_THAT(message_of<InvalidArgument>([&] { rms_norm({.rows = 1, .width = 4, .input = x}, 1); }),
              Names("weight", "null"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { activate_and_multiply({.rows = -1, .width = 4}, 1); }),
              Names("rows", -1));
}

}  // namespace
}  // namespace allot::kernels
