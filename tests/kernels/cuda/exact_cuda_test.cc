// Exact attention on the GPU against the double-precision reference: every head dimension, head group, page
// size and dtype, odd lengths, ragged batches, and dense sequences among sampling ones.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "cuda_launch.h"
#include "oracle.h"

namespace allot::kernels {
namespace {

using testing::Comparison;
using testing::CudaTest;
using testing::Launch;
using testing::LaunchSpec;

constexpr int32_t kContiguous = 0;  // one page a sequence
constexpr int32_t kGroups[] = {1, 2, 3, 4, 5, 7, 8, 16};
constexpr int32_t kPageSizes[] = {16, 32, 64, 128, kContiguous};
constexpr int32_t kOddLengths[] = {1, 17, 63, 64, 65, 97, 255, 256, 257};

LaunchSpec shape(DType dtype, int32_t head_dim, int32_t group, int32_t page_size,
                 const std::vector<int32_t>& lengths) {
  LaunchSpec spec{.head_dim = head_dim, .page_size = page_size, .dtype = dtype};
  for (const int32_t length : lengths) spec.sequences.push_back({1, length, kDenseBudget});
  const int32_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (page_size == kContiguous) spec.page_size = (longest + 15) / 16 * 16;
  spec.num_kv_heads = group == 1 ? 3 : group >= 8 ? 1 : 2;
  spec.num_q_heads = group * spec.num_kv_heads;
  spec.seed = static_cast<uint32_t>(head_dim + group);
  return spec;
}

std::string describe(const LaunchSpec& spec) {
  std::string text =
      fmt::format("{} {} head_dim {} heads {}/{} page_size {} lengths", name(spec.estimator),
                  name(spec.dtype), spec.head_dim, spec.num_q_heads, spec.num_kv_heads, spec.page_size);
  for (const testing::Sequence& sequence : spec.sequences) text += fmt::format(" {}", sequence.length);
  return text;
}

class CudaExact : public CudaTest, public ::testing::WithParamInterface<std::tuple<DType, int32_t>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }
  int32_t head_dim() const { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaExact,
                         ::testing::Combine(::testing::Values(DType::kBFloat16, DType::kFloat16),
                                            ::testing::Values(32, 64, 96, 128, 256)),
                         [](const auto& shape) {
                           return fmt::format("{}_{}", name(std::get<0>(shape.param)),
                                              std::get<1>(shape.param));
                         });

// Launches run side by side on streams of their own, as replicas of a model in one process do.
TEST_P(CudaExact, StaysWithinTwiceThePlainErrorForEveryGroupAndPageSize) {
  constexpr size_t kShapes = std::size(kGroups) * std::size(kPageSizes);
  testing::parallel_for(kShapes, [&](int64_t i) {
    std::vector<int32_t> lengths;
    for (const size_t step : {0, 1, 3, 5})
      lengths.push_back(kOddLengths[(i + step) % std::size(kOddLengths)]);
    LaunchSpec spec = shape(dtype(), head_dim(), kGroups[i % std::size(kGroups)],
                            kPageSizes[i / std::size(kGroups)], lengths);
    Launch exact(spec);
    testing::expect_near_plain(testing::compare(exact.params, testing::run_cuda(exact)), 0, describe(spec));
    // Dense sequences beside a sampling and a silent one.
    spec.estimator = Estimator::kSys;
    spec.sequences[1].budget = 8;
    spec.sequences[2].budget = 0;
    Launch mixed(spec);
    testing::expect_near_plain(testing::compare(mixed.params, testing::run_cuda(mixed)), 0.34,
                               describe(spec));
  });
}

TEST_P(CudaExact, StaysWithinTwiceThePlainErrorOnLongRows) {
  testing::parallel_for(std::size(kGroups), [&](int64_t i) {
    LaunchSpec spec =
        shape(dtype(), head_dim(), kGroups[i], kPageSizes[i % std::size(kPageSizes)], {1023, 4097});
    spec.score_deviation = i % 2 == 0 ? 1.5 : 4;
    Launch launch(spec);
    testing::expect_near_plain(testing::compare(launch.params, testing::run_cuda(launch)), 0, describe(spec));
  });
}

class CudaExactBatch : public CudaTest {};

TEST_F(CudaExactBatch, OfEverySizeGivesEachSequenceItsOwnRow) {
  for (const int32_t batch : {1, 2, 3, 31, 132, 133, 1024}) {
    LaunchSpec spec{.num_q_heads = 7,
                    .num_kv_heads = 1,
                    .head_dim = 64,
                    .page_size = 16,
                    .dtype = DType::kBFloat16,
                    .repeat_first = true};
    for (int32_t b = 0; b < batch; ++b) {
      spec.sequences.push_back({1, b == 0 ? 2048 : 1 + (b * 977) % 2048, kDenseBudget});
    }
    Launch launch(spec);
    const std::vector<double> out = testing::run_cuda(launch);
    std::vector<reference::Row> rows = testing::rows_of(launch.params);
    std::erase_if(rows, [](const reference::Row& row) { return row.sequence > 8 && row.sequence % 9 != 0; });
    testing::expect_near_plain(testing::compare(launch.params, out, rows), 0, fmt::format("batch {}", batch));
  }
}

TEST_F(CudaExactBatch, WithoutSequencesOrQueriesDoesNothing) {
  Launch launch({.sequences = {{0, 20, 8}, {0, 1, 8}}, .head_dim = 64, .dtype = DType::kBFloat16});
  EXPECT_TRUE(testing::run_cuda(launch).empty());
  launch.params.batch = 0;
  EXPECT_TRUE(testing::run_cuda(launch).empty());
}

TEST_F(CudaExactBatch, SkipsASequenceWithoutQueries) {
  for (const Estimator estimator : {Estimator::kExact, Estimator::kSys}) {
    Launch launch({.sequences = {{1, 100, 8}, {0, 30, 8}, {1, 200, 8}, {0, 1, 8}},
                   .num_q_heads = 8,
                   .num_kv_heads = 2,
                   .head_dim = 64,
                   .dtype = DType::kBFloat16,
                   .estimator = estimator});
    testing::expect_near_plain(testing::compare(launch.params, testing::run_cuda(launch)), 0.2,
                               std::string(name(estimator)));
  }
}

// The longest sequence the kernels accept, beside a short one.
TEST_F(CudaExactBatch, ReachesTheLongestSequence) {
  for (const Estimator estimator : {Estimator::kExact, Estimator::kSys, Estimator::kThreshold}) {
    Launch launch({.sequences = {{1, kMaxCudaLength, 32}, {1, 33, 32}},
                   .num_q_heads = 2,
                   .num_kv_heads = 1,
                   .head_dim = 64,
                   .page_size = 128,
                   .dtype = DType::kBFloat16,
                   .estimator = estimator,
                   .score_deviation = 3});
    testing::expect_near_plain(testing::compare(launch.params, testing::run_cuda(launch)), 0.5,
                               std::string(name(estimator)));
  }
}

TEST_F(CudaExactBatch, PassesAVisibleNanOnAndKeepsItFromOtherHeads) {
  Launch launch({.sequences = {{1, 300}, {1, 70}},
                 .num_q_heads = 4,
                 .num_kv_heads = 2,
                 .head_dim = 64,
                 .dtype = DType::kBFloat16});
  launch.set_key(0, 0, 299, 0, std::numeric_limits<float>::quiet_NaN());
  launch.set_value(1, 1, 0, 5, std::numeric_limits<float>::quiet_NaN());
  const std::vector<double> out = testing::run_cuda(launch);
  for (int32_t row = 0; row < 8; ++row) {
    for (int32_t i = 0; i < 64; ++i) {
      const bool expected = row < 2 || (row >= 6 && i == 5);
      EXPECT_EQ(std::isnan(out[row * 64 + i]), expected) << "row " << row << " element " << i;
    }
  }
}

}  // namespace
}  // namespace allot::kernels
