// The token sampler's kernels, compiled for the host (emulation.h), against the CPU's sampler.
#include "emulation.h"
// Kernels of the same names, compiled by nvcc, are linked with this.
#define cuda emulated_cuda
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/rows/choose_tokens.cuh"
#include "token_batch.h"

namespace allot::kernels {
namespace {

using testing::Batch;
using testing::ChosenTokens;
using testing::edge_batches;
using testing::kOldToken;
using testing::NamedBatch;
using testing::random_batch;

ChooseTokensParams params_of(const Batch& batch, ChosenTokens& result) {
  result.chosen.assign(static_cast<size_t>(batch.rows), kOldToken);
  result.seen = batch.seen;
  return {.rows = batch.rows,
          .vocab_size = batch.vocab_size,
          .dtype = batch.dtype,
          .logits = batch.logits.bytes().data(),
          .logits_stride = batch.stride,
          .rules = batch.rules.data(),
          .draws = batch.draws.data(),
          .positions = batch.positions.data(),
          .seen = result.seen.data(),
          .seen_rows = batch.rows,
          .chosen = result.chosen.data(),
          .fault = &result.fault};
}

// Runs body() in one block for each row.
template <class Body>
void run_rows(int64_t rows, const Body& body) {
  emulation::Blocks::grid = {static_cast<unsigned>(rows), 1, 1};
  for (unsigned row = 0; row < static_cast<unsigned>(rows); ++row)
    emulation::Blocks::run(1, {row, 0, 0}, static_cast<int>(cuda::kThreads), 0, body);
}

// Whether the counters say everything of each row.
std::vector<bool> are_counted(const Batch& batch) {
  static cuda::CountShared shared;
  ChosenTokens result;
  const ChooseTokensParams p = params_of(batch, result);
  std::vector<bool> counted(static_cast<size_t>(batch.rows));
  run_rows(batch.rows, [&] {
    shared.clear();
    const unsigned number = blockIdx.x;
    const TokenRule& rule = p.rules[number];
    const cuda::Row<__nv_bfloat16> row(p, number, p.seen + number * seen_words(p.vocab_size),
                                       rule.repetition_penalty);
    const int32_t id = cuda::choose_by_counts(shared, row, rule, {p.draws + number, p.positions + number});
    if (threadIdx.x == 0) counted[number] = id != cuda::kUncounted;
  });
  return counted;
}

void expect_as_on_cpu(Batch& batch) {
  ChosenTokens result;
  const ChooseTokensParams p = params_of(batch, result);
  run_rows(batch.rows, [&] {
    if (batch.dtype == DType::kFloat32) {
      cuda::choose_tokens<float>(p);
    } else {
      cuda::choose_tokens_by_counts<__nv_bfloat16>(p);
    }
  });
  testing::expect_as_on_cpu(batch, result, "emulated");
}

TEST(TokenSamplerEmulated, ChoosesWhatTheCpuChooses) {
  uint32_t seed = 0;
  for (const int32_t vocab_size : {1, 5, 8, 33, 1000, 4097, 16384, 40001}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      Batch batch = random_batch(dtype, 24, vocab_size, ++seed);
      SCOPED_TRACE("seed " + std::to_string(seed));
      expect_as_on_cpu(batch);
    }
  }
}

TEST(TokenSamplerEmulated, ChoosesWhatTheCpuChoosesAtTheEdgesOfWhatIsCounted) {
  for (NamedBatch& edge : edge_batches()) {
    SCOPED_TRACE(edge.name);
    expect_as_on_cpu(edge.batch);
  }
}

// Otherwise the tests above would hold for kernels that count nothing.
TEST(TokenSamplerEmulated, CountsRowsOfUsualLogits) {
  constexpr int32_t kVocab = 20'000, kNoToken = 19'900;  // ids of no token have a logit of 0 in some models
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 1.3f);
  Batch batch(DType::kBFloat16, 14, kVocab);
  std::vector<bool> expected(static_cast<size_t>(batch.rows), true);
  for (int64_t row = 0; row < batch.rows; ++row) {
    batch.rules[row] = {.temperature = 0.6f, .top_p = 0.95f, .repetition_penalty = 1.1f, .active = 1};
    for (int32_t id = 0; id < kVocab; ++id) batch.set(row, id, id < kNoToken ? normal(random) : 0);
    for (int32_t i = 0; i < 700; ++i) batch.see(row, static_cast<int32_t>(random() % kNoToken));
  }
  batch.rules[1].top_p = 1;
  const auto see = [&](int64_t row, int32_t tokens) {
    std::fill_n(batch.seen.begin() + row * seen_words(kVocab), seen_words(kVocab), 0u);
    for (int32_t id = 0; id < tokens; ++id) batch.see(row, id);
  };
  const auto set_largest = [&](int64_t row, float largest) {
    for (int32_t id = 0; id < kNoToken; ++id) batch.set(row, id, largest - std::abs(normal(random)));
    batch.set(row, kNoToken - 1, largest);
    see(row, 0);
  };
  see(2, 8191);
  set_largest(3, 2.03125f);
  set_largest(4, -2);
  for (int32_t id = kNoToken; id < kVocab; ++id) batch.set(4, id, -2);
  batch.set(5, 8, 255);
  batch.set(5, 9, -255);
  batch.see(0, kNoToken);
  batch.set(0, 8, 7);
  EXPECT_EQ(are_counted(batch), expected);

  batch.set(6, 8, 256);
  batch.set(7, 8, -INFINITY);
  batch.set(8, 8, std::nanf(""));
  batch.set(9, 8, INFINITY);
  see(10, 8192);
  set_largest(11, 4.25f);  // nearer to a seen token's 0 than a penalty of 1.1 allows
  batch.see(11, kNoToken);
  set_largest(12, 2);  // above a 0
  batch.rules[13].repetition_penalty = 1e-38f;
  std::fill(expected.begin() + 6, expected.end(), false);
  EXPECT_EQ(are_counted(batch), expected);
}

}  // namespace
}  // namespace allot::kernels
