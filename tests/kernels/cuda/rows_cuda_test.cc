// The row operations on a GPU against their formulas in double precision and against the CPU kernels.
#include "kernels/rows_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "captured_graph.h"
#include "rows_cuda.h"

namespace allot::kernels {
namespace {

using testing::CapturedGraph;
using testing::Elements;
using testing::gpu_limits;
using testing::GuardedArray;
using testing::kOld;
using testing::random_elements;
using testing::require;
using testing::RowsCuda;
using testing::tolerance;

TEST_F(RowsCuda, RmsNormFollowsItsFormulaWithAndWithoutAResidualStream) {
  for_every_kind([&](DType dtype) {
    for (const int32_t width : {1, 8, 15, 31, 256, 683, 896, 3584, 4096, 8192, 12344, 16384, 20001}) {
      for (const bool with_residual : {false, true}) {
        SCOPED_TRACE("width " + std::to_string(width) + (with_residual ? " with a residual" : ""));
        constexpr int64_t kRows = 3;
        const Elements input = random_elements(dtype, kRows * width, 1);
        const Elements before = random_elements(dtype, kRows * width, 2);
        const Elements weight = random_elements(dtype, width, 3);
        GuardedArray& residual = put(before);
        GuardedArray& out = put(Elements(dtype, kRows * width, kOld));
        rms_norm_cuda({.rows = kRows,
                       .width = width,
                       .dtype = dtype,
                       .epsilon = 1e-5f,
                       .input = put(input).data(),
                       .residual = with_residual ? residual.data() : nullptr,
                       .weight = put(weight).data(),
                       .out = out.data()},
                      gpu_limits(), stream_);
        const Elements result = get(dtype, out);
        const Elements stream = get(dtype, residual);
        Elements rounded(dtype, 1, 0);
        for (int64_t row = 0; row < kRows; ++row) {
          std::vector<double> x;
          double squares = 0;
          for (int64_t i = row * width; i < (row + 1) * width; ++i) {
            rounded.set(0, with_residual ? input.get(i) + before.get(i) : input.get(i));
            ASSERT_EQ(stream.get(i), with_residual ? rounded.get(0) : before.get(i));
            x.push_back(rounded.get(0));
            squares += x.back() * x.back();
          }
          for (int32_t i = 0; i < width; ++i) {
            const double expected = x[i] / std::sqrt(squares / width + 1e-5) * weight.get(i);
            ASSERT_NEAR(result.get(row * width + i), expected, tolerance(dtype, expected))
                << "row " << row << " element " << i;
          }
        }
      }
    }
  });
}

TEST_F(RowsCuda, RmsNormMayWriteOverItsInput) {
  constexpr int32_t kWidth = 9000;  // more than the threads of a block keep
  const Elements input = random_elements(DType::kBFloat16, 2 * kWidth, 4);
  GuardedArray& weight = put(random_elements(DType::kBFloat16, kWidth, 5));
  GuardedArray& in_place = put(input);
  GuardedArray& apart = put(input);
  RmsNormParams p{.rows = 2,
                  .width = kWidth,
                  .dtype = DType::kBFloat16,
                  .epsilon = 1e-6f,
                  .input = put(input).data(),
                  .weight = weight.data(),
                  .out = apart.data()};
  rms_norm_cuda(p, gpu_limits(), stream_);
  p.input = p.out = in_place.data();
  rms_norm_cuda(p, gpu_limits(), stream_);
  EXPECT_EQ(in_place.download(stream_), apart.download(stream_));
}

// The grid of what the same kernel gives without it: each step is known.
TEST_F(RowsCuda, RmsNormRoundsARowToTheStepsOfEightBits) {
  for_every_kind([&](DType dtype) {
    for (const int32_t width : {1, 8, 15, 256, 683, 2560, 6912, 8192, 12344, 20001}) {
      SCOPED_TRACE("width " + std::to_string(width));
      constexpr int64_t kRows = 4;
      constexpr float kDeviations[] = {1, 300, 1e-3f, 1e-8f};
      Elements input = random_elements(dtype, kRows * width, 20);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t i = row * width; i < (row + 1) * width; ++i)
          input.set(i, kDeviations[row] * input.get(i));
      }
      GuardedArray& plain = put(Elements(dtype, kRows * width, kOld));
      GuardedArray& out = put(Elements(dtype, kRows * width, kOld));
      GuardedArray& in_place = put(input);
      RmsNormParams params{.rows = kRows,
                           .width = width,
                           .dtype = dtype,
                           .epsilon = 1e-5f,
                           .input = put(input).data(),
                           .weight = put(random_elements(dtype, width, 21)).data(),
                           .out = plain.data()};
      rms_norm_cuda(params, gpu_limits(), stream_);
      params.int8_grid = true;
      params.out = out.data();
      rms_norm_cuda(params, gpu_limits(), stream_);
      params.input = params.out = in_place.data();
      rms_norm_cuda(params, gpu_limits(), stream_);
      const Elements before = get(dtype, plain), result = get(dtype, out);
      Elements rounded(dtype, 1, 0);
      for (int64_t row = 0; row < kRows; ++row) {
        float largest = 1e-5f;
        for (int64_t i = row * width; i < (row + 1) * width; ++i)
          largest = std::max(largest, std::abs(before.get(i)));
        const float scale = 127 / largest;
        for (int64_t i = row * width; i < (row + 1) * width; ++i) {
          rounded.set(0, std::nearbyint(before.get(i) * scale) / scale);
          ASSERT_EQ(result.get(i), rounded.get(0)) << "row " << row << " element " << i % width;
        }
      }
      EXPECT_EQ(in_place.download(stream_), out.download(stream_));
    }
  });
}

TEST_F(RowsCuda, ActivateAndMultiplySquaresWhatIsAboveZeroAndKeepsNan) {
  for_every_kind([&](DType dtype) {
    for (const int32_t width : {1, 8, 15, 683, 6912}) {
      constexpr int64_t kRows = 3;
      Elements gate_up = random_elements(dtype, kRows * 2 * width, 22, 6);
      gate_up.set(0, std::nanf(""));
      gate_up.set(2 * width, -200);
      gate_up.set(4 * width, 200);
      gate_up.set(5 * width, 1);  // a finite product in float16
      GuardedArray& out = put(Elements(dtype, kRows * width, kOld));
      activate_and_multiply_cuda({.rows = kRows,
                                  .width = width,
                                  .dtype = dtype,
                                  .activation = Activation::kReluSquared,
                                  .gate_up = put(gate_up).data(),
                                  .out = out.data()},
                                 gpu_limits(), stream_);
      const Elements result = get(dtype, out);
      ASSERT_TRUE(std::isnan(result.get(0)));
      for (int64_t i = 1; i < kRows * width; ++i) {
        const int64_t at = i / width * 2 * width + i % width;
        const double gate = std::max(0.0F, gate_up.get(at));
        const double expected = gate * gate * gate_up.get(at + width);
        ASSERT_NEAR(result.get(i), expected, tolerance(dtype, expected))
            << "width " << width << " gate " << gate;
      }
    }
  });
}

// Differences in units of the last place of bfloat16, for results of one sign.
int64_t largest_distance(const Elements& a, const std::vector<unsigned char>& b) {
  int64_t largest = 0;
  for (size_t i = 0; i < b.size(); i += 2) {
    const int32_t x = a.bytes()[i] | a.bytes()[i + 1] << 8, y = b[i] | b[i + 1] << 8;
    largest = std::max<int64_t>(largest, std::abs(x - y));
  }
  return largest;
}

TEST_F(RowsCuda, BFloat16ResultsDifferFromTheCpuByTheLastBitAtMost) {
  constexpr int64_t kRows = 64;
  constexpr int32_t kWidth = 3584;
  const Elements input = random_elements(DType::kBFloat16, kRows * 2 * kWidth, 6);
  Elements weight = random_elements(DType::kBFloat16, kWidth, 7);
  Elements expected(DType::kBFloat16, kRows * kWidth, 0);
  GuardedArray& out = put(expected);
  RmsNormParams norm{.rows = kRows,
                     .width = kWidth,
                     .dtype = DType::kBFloat16,
                     .epsilon = 1e-6f,
                     .input = const_cast<Elements&>(input).data(),
                     .weight = weight.data(),
                     .out = expected.data()};
  rms_norm(norm, 2);
  GuardedArray& device_input = put(input);
  norm.input = device_input.data();
  norm.weight = put(weight).data();
  norm.out = out.data();
  rms_norm_cuda(norm, gpu_limits(), stream_);
  EXPECT_LE(largest_distance(expected, out.download(stream_)), 1);

  ActivateAndMultiplyParams silu{.rows = kRows,
                                 .width = kWidth,
                                 .dtype = DType::kBFloat16,
                                 .gate_up = const_cast<Elements&>(input).data(),
                                 .out = expected.data()};
  activate_and_multiply(silu, 2);
  silu.gate_up = device_input.data();
  silu.out = out.data();
  activate_and_multiply_cuda(silu, gpu_limits(), stream_);
  EXPECT_LE(largest_distance(expected, out.download(stream_)), 1);
}

TEST_F(RowsCuda, ActivateAndMultiplyFollowsItsFormulaFromMinusToPlusTwoHundredAndKeepsNan) {
  for_every_kind([&](DType dtype) {
    for (const int32_t width : {1, 8, 15, 33, 683, 2048, 18944}) {
      constexpr int64_t kRows = 3;
      Elements gate_up = random_elements(dtype, kRows * 2 * width, 8, 6);
      gate_up.set(0, -200);
      gate_up.set(2 * width, 200);
      gate_up.set(4 * width, std::nanf(""));
      GuardedArray& out = put(Elements(dtype, kRows * width, kOld));
      activate_and_multiply_cuda(
          {.rows = kRows, .width = width, .dtype = dtype, .gate_up = put(gate_up).data(), .out = out.data()},
          gpu_limits(), stream_);
      const Elements result = get(dtype, out);
      ASSERT_TRUE(std::isnan(result.get(2 * width)));
      result.get(0);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int32_t i = 0; i < width; ++i) {
          const double gate = gate_up.get(row * 2 * width + i);
          if (std::isnan(gate)) continue;
          const double expected = gate / (1 + std::exp(-gate)) * gate_up.get(row * 2 * width + width + i);
          ASSERT_NEAR(result.get(row * width + i), expected, tolerance(dtype, expected))
              << "width " << width << " gate " << gate;
        }
      }
    }
  });
}

TEST_F(RowsCuda, StoreValueNormsWritesThoseOfTokensThatHaveSlotsToThemOnly) {
  constexpr int64_t kSlotsOfTokens[] = {31, 0, -1, 13, 32};  // the last is not in the pool
  constexpr int32_t kSize = 8, kPool = 4;
  for_every_kind([&](DType dtype) {
    for (const auto& [heads, head_dim] : {std::pair{3, 64}, {1, 128}, {40, 32}, {2, 20}, {5, 1}, {2, 512}}) {
      SCOPED_TRACE(std::to_string(heads) + " heads of " + std::to_string(head_dim));
      const int64_t tokens = std::size(kSlotsOfTokens);
      const int64_t stride = int64_t{heads} * head_dim + (alignment_ == 16 ? 16 : 5);
      const Elements values = random_elements(dtype, tokens * stride, 18);
      const std::vector<float> old(static_cast<size_t>(kPool * heads * kSize), kOld);
      GuardedArray& norms = put_bytes(old.data(), old.size() * sizeof(float), sizeof(float));
      store_value_norms_cuda(
          {.tokens = tokens,
           .num_kv_heads = heads,
           .head_dim = head_dim,
           .dtype = dtype,
           .values = put(values).data(),
           .value_stride = stride,
           .value_norms = static_cast<float*>(norms.data()),
           .num_pages = kPool,
           .page_size = kSize,
           .slots = put(std::vector(std::begin(kSlotsOfTokens), std::end(kSlotsOfTokens)))},
          gpu_limits(), stream_);
      std::vector<double> expected(old.begin(), old.end());
      for (int64_t token = 0; token < tokens; ++token) {
        const int64_t slot = kSlotsOfTokens[token];
        for (int64_t head = 0; head < heads && slot >= 0 && slot < kPool * kSize; ++head) {
          double squares = 0;
          for (int64_t i = 0; i < head_dim; ++i)
            squares += std::pow(values.get(token * stride + head * head_dim + i), 2);
          expected[static_cast<size_t>((slot / kSize * heads + head) * kSize + slot % kSize)] =
              std::sqrt(squares);
        }
      }
      const Elements found = get(DType::kFloat32, norms);
      for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(found.get(static_cast<int64_t>(i)), expected[i], 1e-5 * expected[i]) << i;
    }
  });
}

struct RotaryShape {
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
  bool with_bias;
  bool with_norm;
};

// A token is padding, names a position or slot that does not exist, or is an ordinary one.
constexpr int64_t kTokens = 7;
constexpr int32_t kTableRows = 10, kPageSize = 8, kPages = 4;
const std::vector<int32_t> kPositions = {0, 9, 4, 10, -1, 3, 1 << 30};
const std::vector<int64_t> kSlots = {31, 0, 13, 7, 6, 32, -1};
bool is_padding(int64_t token) {
  return kSlots[token] < 0;
}
bool is_faulty(int64_t token) {
  return kPositions[token] < 0 || kPositions[token] >= kTableRows || kSlots[token] >= kPages * kPageSize;
}

TEST_F(RowsCuda, RotateAndStoreWritesQueriesInPlaceAndKeysAndValuesToTheirSlotsOnly) {
  const RotaryShape shapes[] = {
      {4, 2, 8, true, false}, {7, 1, 64, false, false}, {28, 4, 128, true, false}, {32, 8, 128, false, true},
      {6, 6, 96, true, true}, {4, 1, 256, false, true}, {3, 3, 24, false, true},   {2, 1, 1024, true, true}};
  for_every_kind([&](DType dtype) {
    for (const auto& [num_q_heads, num_kv_heads, head_dim, with_bias, with_norm] : shapes) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + (with_norm ? " with norms" : ""));
      const int32_t half = head_dim / 2;
      const int64_t heads = num_q_heads + 2 * num_kv_heads;
      const int64_t stride = heads * head_dim + (alignment_ == 16 ? 16 : 5);
      const Elements qkv = random_elements(dtype, kTokens * stride, 9);
      const Elements bias = random_elements(dtype, heads * head_dim, 10);
      const Elements q_norm = random_elements(dtype, head_dim, 11),
                     k_norm = random_elements(dtype, head_dim, 12);
      std::vector<float> cos, sin;
      for (int32_t i = 0; i < kTableRows * half; ++i) {
        cos.push_back(std::cos(0.3f * static_cast<float>(i)));
        sin.push_back(std::sin(0.3f * static_cast<float>(i)));
      }
      const int64_t cache = int64_t{kPages} * num_kv_heads * kPageSize * head_dim;
      GuardedArray& device_qkv = put(qkv);
      GuardedArray& key_pages = put(Elements(dtype, cache, kOld));
      GuardedArray& value_pages = put(Elements(dtype, cache, kOld));
      const std::vector<float> old_norms(static_cast<size_t>(cache / head_dim), kOld);
      GuardedArray& value_norms =
          put_bytes(old_norms.data(), old_norms.size() * sizeof(float), sizeof(float));
      RotaryParams p;
      p.tokens = kTokens;
      p.num_q_heads = num_q_heads;
      p.num_kv_heads = num_kv_heads;
      p.head_dim = head_dim;
      p.dtype = dtype;
      p.qkv = device_qkv.data();
      p.qkv_stride = stride;
      if (with_bias) p.bias = put(bias).data();
      if (with_norm) {
        p.q_norm = put(q_norm).data();
        p.k_norm = put(k_norm).data();
        p.norm_epsilon = 1e-3f;
      }
      p.cos = put(cos);
      p.sin = put(sin);
      p.table_rows = kTableRows;
      p.positions = put(kPositions);
      p.key_pages = key_pages.data();
      p.value_pages = value_pages.data();
      p.value_norms = static_cast<float*>(value_norms.data());
      p.num_pages = kPages;
      p.page_size = kPageSize;
      p.slots = put(kSlots);
      rotate_and_store_cuda(p, gpu_limits(), stream_);

      const Elements result = get(dtype, device_qkv);
      const Elements keys = get(dtype, key_pages), values = get(dtype, value_pages),
                     norms = get(DType::kFloat32, value_norms);
      std::vector<bool> written(cache, false);
      for (int64_t token = 0; token < kTokens; ++token) {
        // The head after bias and norm.
        const auto head_of = [&](int64_t head) {
          std::vector<double> x(head_dim);
          double squares = 0;
          for (int32_t i = 0; i < head_dim; ++i) {
            x[i] = qkv.get(token * stride + head * head_dim + i);
            if (with_bias) x[i] += bias.get(head * head_dim + i);
            squares += x[i] * x[i];
          }
          if (!with_norm || head >= num_q_heads + num_kv_heads) return x;
          for (int32_t i = 0; i < head_dim; ++i) {
            x[i] *= (head < num_q_heads ? q_norm : k_norm).get(i) / std::sqrt(squares / head_dim + 1e-3f);
          }
          return x;
        };
        const auto expect_rotated = [&](const Elements& actual, int64_t at, int64_t head) {
          const std::vector<double> x = head_of(head);
          for (int32_t i = 0; i < head_dim; ++i) {
            const double c = cos[kPositions[token] * half + i % half];
            const double s = sin[kPositions[token] * half + i % half];
            const double other = i < half ? -x[i + half] * s : x[i - half] * s;
            const double expected = x[i] * c + other;
            const double terms = std::abs(x[i]) + std::abs(other);
            // The norm is rounded twice before.
            const double allowed =
                tolerance(dtype, expected, terms) + (with_norm ? 2 * tolerance(dtype, terms) : 0);
            ASSERT_NEAR(actual.get(at + i), expected, allowed)
                << "token " << token << " head " << head << " element " << i;
          }
        };
        for (int64_t head = 0; head < heads; ++head) {
          const int64_t at = token * stride + head * head_dim;
          if (head < num_q_heads && is_faulty(token) && !is_padding(token)) {
            for (int32_t i = 0; i < head_dim; ++i)
              ASSERT_TRUE(std::isnan(result.get(at + i))) << "token " << token;
          } else if (head < num_q_heads && !is_padding(token)) {
            expect_rotated(result, at, head);
          } else {
            for (int32_t i = 0; i < head_dim; ++i) ASSERT_EQ(result.get(at + i), qkv.get(at + i)) << token;
          }
          if (head < num_q_heads || is_padding(token) || is_faulty(token)) continue;
          const int64_t kv_head = (head - num_q_heads) % num_kv_heads;
          const int64_t in_cache =
              ((kSlots[token] / kPageSize * num_kv_heads + kv_head) * kPageSize + kSlots[token] % kPageSize) *
              head_dim;
          if (head < num_q_heads + num_kv_heads) {
            expect_rotated(keys, in_cache, head);
          } else {
            const std::vector<double> x = head_of(head);
            double squares = 0;
            for (int32_t i = 0; i < head_dim; ++i) {
              written[in_cache + i] = true;
              ASSERT_NEAR(values.get(in_cache + i), x[i], tolerance(dtype, x[i]));
              squares += std::pow(values.get(in_cache + i), 2);
            }
            ASSERT_NEAR(norms.get(in_cache / head_dim), std::sqrt(squares), 1e-5 * std::sqrt(squares));
          }
        }
        for (int64_t i = heads * head_dim; i < stride; ++i) {
          ASSERT_EQ(result.get(token * stride + i), qkv.get(token * stride + i)) << "the gap of the stride";
        }
      }
      for (int64_t i = 0; i < cache; ++i) {
        if (written[i]) continue;
        ASSERT_EQ(keys.get(i), kOld) << i;
        ASSERT_EQ(values.get(i), kOld) << i;
        ASSERT_EQ(norms.get(i / head_dim), kOld) << i;
      }
    }
  });
}

// Kernels that start before their predecessor has ended must still see all it wrote.
TEST_F(RowsCuda, AChainInAGraphGivesWhatSeparateCallsGive) {
  constexpr int64_t kRows = 512;
  constexpr int32_t kWidth = 2048;
  const Elements table = random_elements(DType::kBFloat16, 100 * kWidth, 14);
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < kRows; ++i) ids.push_back(i * 7 % 100);
  const int32_t* const device_ids = put(ids);
  GuardedArray& device_table = put(table);
  GuardedArray& weight = put(random_elements(DType::kBFloat16, kWidth, 15));
  GuardedArray& a = put(Elements(DType::kBFloat16, kRows * kWidth, 0));
  GuardedArray& b = put(Elements(DType::kBFloat16, kRows * kWidth, 0));
  const auto run = [&](const auto& between) {
    gather_embeddings_cuda({.tokens = kRows,
                            .width = kWidth,
                            .vocab_size = 100,
                            .dtype = DType::kBFloat16,
                            .table = device_table.data(),
                            .ids = device_ids,
                            .out = a.data()},
                           gpu_limits(), stream_);
    for (int layer = 0; layer < 20; ++layer) {
      between();
      rms_norm_cuda({.rows = kRows,
                     .width = kWidth,
                     .dtype = DType::kBFloat16,
                     .epsilon = 1e-6f,
                     .input = b.data(),
                     .residual = a.data(),
                     .weight = weight.data(),
                     .out = b.data()},
                    gpu_limits(), stream_);
      between();
      // Two rows as gate and up of one: b's first half becomes a function of all of b.
      activate_and_multiply_cuda({.rows = kRows / 2,
                                  .width = kWidth,
                                  .dtype = DType::kBFloat16,
                                  .gate_up = b.data(),
                                  .out = a.data()},
                                 gpu_limits(), stream_);
      between();
      gather_rows_cuda({.rows = kRows,
                        .width = kWidth,
                        .source_rows = kRows,
                        .dtype = DType::kBFloat16,
                        .source = a.data(),
                        .indices = device_ids,
                        .out = b.data()},
                       gpu_limits(), stream_);
    }
  };
  b.fill(0, stream_);
  run([&] { require(cudaStreamSynchronize(stream_), "a kernel"); });
  const std::vector<unsigned char> expected = b.download(stream_);

  CapturedGraph graph(stream_, [&] { run([] {}); });
  for (int launch = 0; launch < 5; ++launch) {
    b.fill(0, stream_);
    graph.launch();
    ASSERT_EQ(b.download(stream_), expected) << "launch " << launch;
  }
}

}  // namespace
}  // namespace allot::kernels
