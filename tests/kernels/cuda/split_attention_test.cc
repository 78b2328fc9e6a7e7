// Sampled attention over split keys: drawn by the high planes, corrected by the low ones. On a GPU, and on
// the host without one.
#include <spdlog/fmt/fmt.h>

#include "device.h"
#include "kernels/reference.h"
#include "oracle.h"

namespace allot::kernels {
namespace {

using testing::Launch;
using testing::LaunchSpec;
using testing::MeanEstimate;

class CudaSplitAttention : public testing::DeviceTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Split, CudaSplitAttention,
                         ::testing::Values(Estimator::kIid, Estimator::kStrat, Estimator::kSys,
                                           Estimator::kThreshold, Estimator::kJoint, Estimator::kPooled,
                                           Estimator::kLevel),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

// Rows of a warp and of blocks that share them, lengths around a block of 16 keys and a score tile, groups of
// one to all columns of a product.
TEST_P(CudaSplitAttention, FollowsTheReference) {
  struct Shape {
    DType dtype;
    int32_t head_dim, group, kv_heads;
  };
  for (const bool with_low_plane : {true, false}) {
    testing::Comparison total;
    for (const Shape& shape : {Shape{DType::kBFloat16, 64, 3, 3}, Shape{DType::kFloat16, 64, 4, 2},
                               Shape{DType::kBFloat16, 128, 4, 2}, Shape{DType::kFloat16, 128, 7, 1},
                               Shape{DType::kFloat16, 64, 13, 1}, Shape{DType::kBFloat16, 128, 1, 2}}) {
      if (!with_low_plane && shape.head_dim == 128 && testing::device_repeats(100) < 100) continue;
      for (const std::vector<testing::Sequence>& sequences :
           {std::vector<testing::Sequence>{
                {1, 1, 8}, {1, 15, 4}, {1, 16, 8}, {1, 17, 8}, {1, 200, 0}, {1, 333, 20}},
            std::vector<testing::Sequence>{{1, 64, 3}, {1, 1300, 16}},
            std::vector<testing::Sequence>{{1, 900, 600}, {1, 2500, 90}}}) {
        // One sample of 600 on another key would be taken for rounding.
        if (shape.dtype == DType::kBFloat16 && sequences[0].budget == 600) continue;
        Launch launch({.sequences = sequences,
                       .num_q_heads = shape.group * shape.kv_heads,
                       .num_kv_heads = shape.kv_heads,
                       .head_dim = shape.head_dim,
                       .page_size = shape.group == 4 ? 48 : 16,
                       .dtype = shape.dtype,
                       .estimator = GetParam()});
        launch.split_keys(with_low_plane);
        total.add(testing::compare(launch.params, testing::run_on_device(launch)));
      }
    }
    const std::string where =
        fmt::format("{}, {}", name(GetParam()), with_low_plane ? "corrected" : "high plane");
    testing::expect_near_plain(total, 0.25, where);
  }
}

// Keys with outlier channels, which all sequences share: what is drawn by 8 bits is corrected.
TEST_P(CudaSplitAttention, HasTheExactOutputAsItsMeanWhereEightBitsHaveNot) {
  const size_t repeats = testing::device_repeats(8000);
  LaunchSpec spec{.sequences = std::vector<testing::Sequence>(repeats, {1, 150, 24}),
                  .num_q_heads = 2,
                  .num_kv_heads = 1,
                  .head_dim = 64,
                  .dtype = DType::kFloat16,
                  .estimator = GetParam(),
                  .score_deviation = 2};
  spec.repeat_first = true;
  Launch launch(spec);
  for (int32_t token = 0; token < 150; ++token)
    launch.set_key(0, 0, token, 7, 200.0f + static_cast<float>(token % 5));
  AttentionParams exact = launch.params;
  exact.method.estimator = Estimator::kExact;
  exact.batch = 1;
  const std::vector<double> expected = reference::attend(exact);
  const auto largest_z = [&](bool with_low_plane) {
    launch.split_keys(with_low_plane);
    const std::vector<double> outputs = testing::run_on_device(launch);
    MeanEstimate mean(expected.size());
    for (size_t first = 0; first < outputs.size(); first += expected.size()) mean.add(&outputs[first]);
    EXPECT_GT(mean.standard_error(0), 1e-7) << "the rows must leave something to estimate";
    return mean.largest_z(expected, 2e-4);
  };
  const double corrected = largest_z(true), by_high = largest_z(false);
  std::printf("[ measured ] %s: %.1f standard errors from the exact output, %.1f without the low plane\n",
              std::string(name(GetParam())).c_str(), corrected, by_high);
  EXPECT_LT(corrected, 4.8);
  EXPECT_GT(by_high, 5);
}

TEST_P(CudaSplitAttention, AKeyThatIsNoNumberMakesTheRowsThatSeeItNoNumbers) {
  Launch launch({.sequences = {{1, 100, 8}, {1, 100, 8}},
                 .num_q_heads = 4,
                 .num_kv_heads = 2,
                 .head_dim = 64,
                 .dtype = DType::kFloat16,
                 .estimator = GetParam()});
  launch.set_key(1, 1, 77, 3, NAN);
  launch.split_keys();
  const std::vector<double> out = testing::run_on_device(launch);
  for (int64_t row = 0; row < 8; ++row) {
    // Sequence 1, heads 2 and 3, and those that choose with them.
    const bool sees_it = row >= (row_of(GetParam()).scope == Scope::kLayer ? 4 : 6);
    for (int64_t i = 0; i < 64; ++i)
      ASSERT_EQ(std::isnan(out[static_cast<size_t>(row * 64 + i)]), sees_it)
          << "row " << row << " element " << i;
  }
}

// Exact attention reads 16-bit keys beside split ones: its rows have the bits of a launch without split keys,
// the others those of a launch in which every sequence samples.
TEST_P(CudaSplitAttention, SequencesThatAttendExactlyShareALaunchWithThoseThatSample) {
  for (const bool with_low_plane : {true, false}) {
    const std::vector<testing::Sequence> mixed = {
        {1, 40, kDenseBudget}, {1, 300, 9}, {1, 1700, kDenseBudget}, {1, 65, 0}, {1, 17, 4}};
    const auto rows_of = [&](bool splits, int32_t dense_budget) {
      std::vector<testing::Sequence> sequences = mixed;
      for (testing::Sequence& one : sequences)
        if (one.budget == kDenseBudget) one.budget = dense_budget;
      Launch launch({.sequences = sequences,
                     .num_q_heads = 6,
                     .num_kv_heads = 2,
                     .head_dim = 64,
                     .dtype = DType::kFloat16,
                     .estimator = GetParam()});
      if (splits) launch.split_keys(with_low_plane);
      return testing::run_on_device(launch);
    };
    const std::vector<double> both = rows_of(true, kDenseBudget), exact = rows_of(false, kDenseBudget),
                              sampled = rows_of(true, 7);
    const size_t row = 6 * 64;
    ASSERT_EQ(both.size(), mixed.size() * row);
    for (size_t b = 0; b < mixed.size(); ++b) {
      const std::vector<double>& expected = mixed[b].budget == kDenseBudget ? exact : sampled;
      for (size_t i = b * row; i < (b + 1) * row; ++i)
        ASSERT_EQ(both[i], expected[i]) << "sequence " << b << (with_low_plane ? "" : ", high plane");
    }
  }
}

// Heads that choose together, by all kinds of workers: a warp with short rows and with rows of up to 1,024
// keys, four warps, a cluster, and blocks on devices without clusters; with norms where there are kernels.
class CudaSplitShared : public testing::DeviceTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Split, CudaSplitShared,
                         ::testing::Values(Estimator::kJoint, Estimator::kPooled, Estimator::kLevel),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(CudaSplitShared, FollowTheReferenceWhoeverWorksOnARow) {
  const std::vector<std::vector<testing::Sequence>> batches = {{{1, 17, 8}, {1, 200, 30}, {1, 1, 4}},
                                                               {{1, 333, 20}, {1, 900, 0}, {1, 1000, 9}},
                                                               {{1, 1300, 16}, {1, 64, 3}},
                                                               {{1, 9000, 16}, {1, 300, 5}},
                                                               {{1, 900, 600}, {1, 2500, 90}, {1, 65, 40}}};
  for (const testing::KernelsOf kernels : {testing::KernelsOf::kDevice, testing::KernelsOf::kOlderDevices}) {
    for (const double norms : {0.0, 1.0}) {
      if (norms > 0 && (GetParam() != Estimator::kJoint || kernels != testing::KernelsOf::kDevice ||
                        !testing::device_has_clusters()))
        continue;
      testing::Comparison total;
      for (const std::vector<testing::Sequence>& sequences : batches) {
        for (const int32_t group : {3, 13}) {
          Launch launch({.sequences = sequences,
                         .num_q_heads = group == 13 ? 13 : 6,
                         .num_kv_heads = group == 13 ? 1 : 2,
                         .head_dim = 64,
                         .dtype = DType::kFloat16,
                         .estimator = GetParam()});
          if (norms > 0) {
            set_parameter(&launch.params.method, "value-norms", norms);
            launch.stretch_values();
          }
          launch.split_keys();
          total.add(testing::compare(launch.params, testing::run_on_device(launch, kernels)));
        }
      }
      testing::expect_near_plain(total, 0.25,
                                 fmt::format("{}, norms {}, {}", name(GetParam()), norms,
                                             kernels == testing::KernelsOf::kDevice ? "device" : "older"));
    }
  }
}

// Norms do not enter the score kernel, so whoever works on a row has to hold the sizes of all.
class CudaSplitNorms : public testing::DeviceTest {};
TEST_F(CudaSplitNorms, FollowTheReferenceInTheHighPlane) {
  if (!testing::device_has_clusters()) GTEST_SKIP() << "norms of values need clusters over split keys";
  for (const std::vector<testing::Sequence>& sequences :
       {std::vector<testing::Sequence>{{1, 100, 8}, {1, 30, 20}},
        std::vector<testing::Sequence>{{1, 9000, 16}, {1, 700, 25}}}) {
    Launch launch({.sequences = sequences,
                   .num_q_heads = 4,
                   .num_kv_heads = 2,
                   .head_dim = 64,
                   .dtype = DType::kFloat16,
                   .estimator = Estimator::kJoint});
    set_parameter(&launch.params.method, "value-norms", 1);
    launch.stretch_values();
    launch.split_keys(false);
    testing::expect_near_plain(testing::compare(launch.params, testing::run_on_device(launch)), 0.4,
                               fmt::format("{} keys", sequences[0].length));
  }
}

// Zeros have no magnitude to divide by: all keys then weigh the same.
TEST_P(CudaSplitAttention, ZeroQueriesAndKeysWeighAllKeysAlike) {
  Launch launch({.sequences = {{1, 70, 16}, {1, 70, 40}},
                 .num_q_heads = 2,
                 .num_kv_heads = 1,
                 .head_dim = 64,
                 .dtype = DType::kFloat16,
                 .estimator = GetParam()});
  for (int32_t i = 0; i < 128; ++i) launch.set_query(0, 0, i, 0);
  for (int32_t token = 0; token < 70; ++token) {
    for (int32_t i = 0; i < 64; ++i) launch.set_key(1, 0, token, i, 0);
  }
  launch.split_keys();
  testing::expect_near_plain(testing::compare(launch.params, testing::run_on_device(launch)), 0.3, "zeros");
}

}  // namespace
}  // namespace allot::kernels
