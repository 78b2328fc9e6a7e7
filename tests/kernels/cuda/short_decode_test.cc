// Many short rows with small budgets, which have a kernel of their own: on a GPU, where every run of
// CudaLaunch also compares its bytes with those of the two kernels, and on the host without one.
#include <algorithm>

#include "device.h"
#include "device_limits.h"
#include "kernels/cuda/plan.h"
#include "oracle.h"
#include "tight_bounds.h"

namespace allot::kernels {
namespace {

using testing::KernelsOf;
using testing::Launch;
using testing::LaunchSpec;

class ShortDecode : public testing::DeviceTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Kernels, ShortDecode,
                         ::testing::Values(Estimator::kIid, Estimator::kStrat, Estimator::kSys,
                                           Estimator::kThreshold),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

// A launch for that kernel on a device with one multiprocessor.
std::vector<double> run_short(Launch& launch) {
  DeviceLimits limits = kH200;
  limits.multiprocessors = 1;
  EXPECT_GT(cuda::make_plan(launch.params, testing::tight_bounds(launch.params), limits).short_decode.warps,
            0);
  return testing::run_on_device(launch, KernelsOf::kOneMultiprocessor);
}

// Lengths around a stage, a tile and a piece of tiles; rows with nothing to draw and rows of other kernels
// between them; more rows than warps, so that these take several.
TEST_P(ShortDecode, FollowsTheReference) {
  struct Shape {
    DType dtype;
    int32_t head_dim, group, num_kv_heads;
    double deviation;
  };
  testing::Comparison total;
  for (const Shape& shape : {Shape{DType::kFloat16, 64, 3, 2, 1.5}, Shape{DType::kBFloat16, 64, 1, 4, 4},
                             Shape{DType::kFloat16, 96, 7, 1, 0.5}, Shape{DType::kBFloat16, 64, 8, 1, 1.5}}) {
    Launch launch({.sequences = {{1, 1, 8},
                                 {1, 15, 1},
                                 {1, 17, 32},
                                 {1, 300, kDenseBudget},
                                 {1, 64, 3},
                                 {1, 65, 8},
                                 {1, 200, 0},
                                 {1, 256, 9},
                                 {1, 257, 20},
                                 {1, 720, 8},
                                 {1, 700, 31}},
                   .num_q_heads = shape.group * shape.num_kv_heads,
                   .num_kv_heads = shape.num_kv_heads,
                   .head_dim = shape.head_dim,
                   .page_size = shape.group == 3 ? 48 : 16,
                   .dtype = shape.dtype,
                   .estimator = GetParam(),
                   .score_deviation = shape.deviation});
    const std::vector<double> out = run_short(launch);
    total.add(testing::compare(launch.params, out));
    const int64_t per_sequence = int64_t{launch.params.num_q_heads} * shape.head_dim;
    EXPECT_TRUE(std::all_of(out.begin() + 6 * per_sequence, out.begin() + 7 * per_sequence, [](double x) {
      return x == 0;
    })) << "a budget of zero";
  }
  testing::expect_near_plain(total, 0.1, std::string(name(GetParam())));
}

TEST_P(ShortDecode, CountsTheRowsThatTheTwoKernelsCount) {
  LaunchSpec spec{
      .num_q_heads = 6, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kFloat16, .estimator = GetParam()};
  for (int32_t b = 0; b < 12; ++b) spec.sequences.push_back({1, 20 + 61 * b, 1 + 2 * b});
  Launch launch(spec);
  const std::vector<double> uncounted = run_short(launch);
  std::vector<int64_t> by_two(spec.sequences.size(), 1000), counted = by_two;
  launch.params.rows_read = by_two.data();
  testing::run_on_device(launch);
  launch.params.rows_read = counted.data();
  EXPECT_TRUE(run_short(launch) == uncounted);
  for (size_t b = 0; b < counted.size(); ++b)
    EXPECT_NEAR(static_cast<double>(counted[b]), static_cast<double>(by_two[b]), 1) << "sequence " << b;
}

// Each sequence has the row that it has alone, whichever warp serves it.
TEST_P(ShortDecode, OfASequenceIsTheSameWhateverSharesTheLaunch) {
  LaunchSpec spec{.num_q_heads = 7,
                  .num_kv_heads = 1,
                  .head_dim = 64,
                  .dtype = DType::kBFloat16,
                  .estimator = GetParam()};
  for (int32_t b = 0; b < 40; ++b) spec.sequences.push_back({1, 1 + (b * 97) % 760, 1 + b % 32});
  Launch launch(spec);
  const std::vector<double> first = run_short(launch);
  std::reverse(spec.sequences.begin(), spec.sequences.end());
  Launch reversed(spec);
  for (int64_t b = 0; b < 40; ++b) reversed.copy_sequence(launch, b, 39 - b);
  const std::vector<double> second = run_short(reversed);
  constexpr int64_t kRow = 7 * 64;
  for (int64_t b = 0; b < 40; ++b) {
    EXPECT_TRUE(std::equal(first.begin() + b * kRow, first.begin() + (b + 1) * kRow,
                           second.begin() + (39 - b) * kRow))
        << "sequence " << b;
  }
}

}  // namespace
}  // namespace allot::kernels
