// Exact attention of sequences with a single query, which has a kernel of its own: on a GPU, and on the host
// without one.
#include <spdlog/fmt/fmt.h>

#include <cmath>

#include "device.h"
#include "kernels/reference.h"
#include "oracle.h"

namespace allot::kernels {
namespace {

using testing::Launch;
using testing::LaunchSpec;

class CudaExactDecode : public testing::DeviceTest {};

LaunchSpec launch_spec(std::vector<testing::Sequence> sequences) {
  return {.sequences = std::move(sequences),
          .num_q_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 64,
          .dtype = DType::kFloat16};
}

// Rows of one part and of several, lengths around a step of 16 keys, and groups whose columns fill one
// product or two.
TEST_F(CudaExactDecode, FollowsTheReference) {
  struct Shape {
    DType dtype;
    int32_t head_dim, heads, kv_heads;
    double deviation;
  };
  for (const Shape& shape : {Shape{DType::kFloat16, 64, 6, 2, 1.5}, Shape{DType::kBFloat16, 64, 7, 1, 4},
                             Shape{DType::kFloat16, 96, 16, 2, 1.5}, Shape{DType::kBFloat16, 64, 12, 1, 1.5},
                             Shape{DType::kFloat16, 64, 2, 2, 0.2}}) {
    LaunchSpec spec =
        launch_spec({{1, 1}, {1, 15}, {1, 16}, {1, 17}, {1, 130}, {1, 768}, {1, 769}, {1, 4300}});
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    spec.num_q_heads = shape.heads;
    spec.num_kv_heads = shape.kv_heads;
    spec.score_deviation = shape.deviation;
    Launch launch(spec);
    testing::expect_near_plain(testing::compare(launch.params, testing::run_on_device(launch)), 0,
                               fmt::format("{} head_dim {} heads {}/{}", name(spec.dtype), spec.head_dim,
                                           spec.num_q_heads, spec.num_kv_heads));
  }
}

// The output of sequence `b` of a launch.
std::vector<double> rows_of(const Launch& launch, const std::vector<double>& out, int64_t b) {
  const int64_t query = int64_t{launch.params.num_q_heads} * launch.params.head_dim;
  return {out.begin() + launch.params.query_start[b] * query,
          out.begin() + launch.params.query_start[b + 1] * query};
}

// In decoding and beside prompts, with batch mates that sample and such that do not: the same bits as alone.
TEST_F(CudaExactDecode, OfASequenceIsTheSameWhateverSharesTheLaunch) {
  const std::vector<std::vector<testing::Sequence>> batches = {
      {{1, 1500}, {1, 70}, {1, 900}},
      {{1, 1500}, {1, 70, 8}, {1, 900}, {1, 300, 0}},
      {{1, 1500}, {3, 70}, {1, 900}, {2, 900}},
      {{1, 1500}, {3, 70, 8}, {1, 900}, {2, 900}, {1, 40, 8}},
  };
  for (const Estimator estimator :
       {Estimator::kExact, Estimator::kSys, Estimator::kJoint, Estimator::kPooled}) {
    for (const auto& sequences : batches) {
      LaunchSpec spec = launch_spec(sequences);
      spec.estimator = estimator;
      Launch batch(spec);
      const std::vector<double> together = testing::run_on_device(batch);
      for (const int64_t b : {0, 2}) {
        LaunchSpec alone_spec = launch_spec({sequences[static_cast<size_t>(b)]});
        Launch alone(alone_spec);
        alone.copy_sequence(batch, b, 0);
        EXPECT_EQ(rows_of(batch, together, b), testing::run_on_device(alone))
            << "sequence " << b << " of " << sequences.size() << " under " << name(estimator);
      }
      if (estimator == Estimator::kExact)
        testing::expect_near_plain(testing::compare(batch.params, together), 0,
                                   fmt::format("{} sequences", sequences.size()));
    }
  }
}

// Blocks take spans where there are many, as in this batch, and parts where there are few, as in its
// sequences alone: rows of one span and of several, whole and not.
TEST_F(CudaExactDecode, OfASpanIsTheSameWholeAndInParts) {
  LaunchSpec spec = launch_spec({});
  spec.num_q_heads = spec.num_kv_heads = 2;
  spec.score_deviation = 0.05;  // values that cancel, so that the order of a sum is seen in its 16 bits
  const std::vector<int32_t> compared = {2100, 1900, 600, 1100, 4100, 6200};
  for (const int32_t keys : compared) spec.sequences.push_back({1, keys});
  const size_t more = testing::device_repeats(100);
  for (size_t b = 0; b < more; ++b) spec.sequences.push_back({1, 5000});
  Launch batch(spec);
  const std::vector<double> together = testing::run_on_device(batch);
  for (size_t b = 0; b < compared.size(); ++b) {
    LaunchSpec alone_spec = spec;
    alone_spec.sequences = {spec.sequences[b]};
    Launch alone(alone_spec);
    alone.copy_sequence(batch, static_cast<int64_t>(b), 0);
    const std::vector<double> by_parts = testing::run_on_device(alone);
    EXPECT_EQ(rows_of(batch, together, static_cast<int64_t>(b)), by_parts) << compared[b] << " keys";
    testing::expect_near_plain(testing::compare(alone.params, by_parts), 0,
                               fmt::format("{} keys", compared[b]));
  }
}

// Over both planes of split keys: errors are those of a plain program that has the 16-bit keys, so that what
// splitting leaves of a key, and the whole numbers that scores are made of, cost nothing that is seen.
TEST_F(CudaExactDecode, OverSplitKeysFollowsTheReferenceOfSixteenBitKeys) {
  struct Shape {
    DType dtype;
    int32_t head_dim, heads, kv_heads;
    double deviation;
  };
  for (const Shape& shape : {Shape{DType::kFloat16, 64, 6, 2, 1.5}, Shape{DType::kBFloat16, 64, 7, 1, 4},
                             Shape{DType::kFloat16, 128, 4, 1, 1.5}, Shape{DType::kFloat16, 128, 11, 1, 1.5},
                             Shape{DType::kBFloat16, 64, 13, 1, 1.5}}) {
    LaunchSpec spec =
        launch_spec({{1, 1}, {1, 15}, {1, 16}, {1, 17}, {1, 130}, {1, 768}, {1, 769}, {1, 2600}});
    spec.dtype = shape.dtype;
    spec.head_dim = shape.head_dim;
    spec.num_q_heads = shape.heads;
    spec.num_kv_heads = shape.kv_heads;
    spec.score_deviation = shape.deviation;
    spec.page_size = shape.heads == 6 ? 48 : 16;
    Launch launch(spec);
    const AttentionParams sixteen_bits = launch.params;
    launch.split_keys();
    launch.params.key_pages = nullptr;
    const std::vector<double> out = testing::run_on_device(launch);
    const std::string where = fmt::format("{} head_dim {} heads {}/{}", name(spec.dtype), spec.head_dim,
                                          spec.num_q_heads, spec.num_kv_heads);
    testing::expect_near_plain(testing::compare(sixteen_bits, out), 0, where);
  }
}

// Without a low plane scores are those of 8 bits: near the reference of the same plane, and not near exact
// ones.
TEST_F(CudaExactDecode, OverTheHighPlaneFollowsTheReferenceOfThatPlane) {
  Launch launch(launch_spec({{1, 17}, {1, 300}, {1, 1600}}));
  const AttentionParams sixteen_bits = launch.params;
  launch.split_keys(false);
  launch.params.key_pages = nullptr;
  const std::vector<double> out = testing::run_on_device(launch), by_plane = reference::attend(launch.params);
  double squared_error = 0;
  for (size_t i = 0; i < out.size(); ++i) squared_error += std::pow(out[i] - by_plane[i], 2);
  const testing::Comparison exact = testing::compare(sixteen_bits, out);
  EXPECT_LT(squared_error, 4 * exact.plain_squared_error);
  EXPECT_GT(exact.squared_error, 9 * exact.plain_squared_error);
}

// Among sequences that sample and in spans or parts: the same bits as alone.
TEST_F(CudaExactDecode, OverSplitKeysIsTheSameWhateverSharesTheLaunch) {
  const std::vector<testing::Sequence> sequences = {{1, 2100}, {1, 70, 8}, {1, 900}, {1, 300, 0}, {1, 4100}};
  const size_t more = testing::device_repeats(100);
  for (const bool with_low_plane : {true, false}) {
    for (const Estimator estimator : {Estimator::kExact, Estimator::kSys, Estimator::kThreshold}) {
      LaunchSpec spec = launch_spec(sequences);
      spec.estimator = estimator;
      spec.score_deviation = 0.05;
      for (size_t b = 0; b < more && estimator == Estimator::kExact; ++b) spec.sequences.push_back({1, 5000});
      Launch batch(spec);
      batch.split_keys(with_low_plane);
      batch.params.key_pages = nullptr;
      const std::vector<double> together = testing::run_on_device(batch);
      for (const int64_t b : {0, 2, 4}) {
        LaunchSpec alone_spec = launch_spec({sequences[static_cast<size_t>(b)]});
        Launch alone(alone_spec);
        alone.copy_sequence(batch, b, 0);
        alone.split_keys(with_low_plane);
        alone.params.key_pages = nullptr;
        EXPECT_EQ(rows_of(batch, together, b), testing::run_on_device(alone))
            << "sequence " << b << " under " << name(estimator) << (with_low_plane ? "" : ", high plane");
      }
    }
  }
}

TEST_F(CudaExactDecode, OverSplitKeysIsNoNumberWhereAKeyIsNone) {
  Launch launch(launch_spec({{1, 100}, {1, 100}}));
  launch.set_key(1, 1, 77, 3, NAN);
  launch.split_keys();
  launch.params.key_pages = nullptr;
  const std::vector<double> out = testing::run_on_device(launch);
  for (int64_t row = 0; row < 12; ++row) {
    for (int64_t i = 0; i < 64; ++i)
      ASSERT_EQ(std::isnan(out[static_cast<size_t>(row * 64 + i)]), row >= 9) << "row " << row;
  }
}

// As many pieces as every block of the emulated device works through several times.
TEST_F(CudaExactDecode, OfManySequencesGivesEachItsOwnRow) {
  LaunchSpec spec = launch_spec({});
  for (int32_t b = 0; b < 45; ++b) spec.sequences.push_back({1, 1 + (b * 97) % 900});
  Launch launch(spec);
  testing::expect_near_plain(testing::compare(launch.params, testing::run_on_device(launch)), 0,
                             "45 sequences");
}

}  // namespace
}  // namespace allot::kernels
