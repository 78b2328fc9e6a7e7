// Estimators whose heads choose value rows together on the GPU, the value rows that all estimators read, and
// top-k, which has no draws: on a GPU, and on the host without one.
#include <cmath>
#include <set>

#include "device.h"
#include "kernels/reference.h"
#include "oracle.h"

#include "tests/kernels/methods.h"

namespace allot::kernels {
namespace {

using testing::DeviceTest;
using testing::Launch;
using testing::LaunchSpec;
using testing::MeanEstimate;

constexpr int32_t kHeads = 6;
constexpr int32_t kGroups = 2;
constexpr int32_t kGroupSize = kHeads / kGroups;

LaunchSpec launch_spec(Estimator estimator, std::vector<testing::Sequence> sequences) {
  return {.sequences = std::move(sequences),
          .num_q_heads = kHeads,
          .num_kv_heads = kGroups,
          .head_dim = 64,
          .dtype = DType::kFloat16,
          .estimator = estimator,
          .score_deviation = 2};
}

class CudaShared : public DeviceTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Shared, CudaShared,
                         ::testing::Values(Estimator::kJoint, Estimator::kPooled, Estimator::kLevel),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(CudaShared, HasTheExactOutputOfEveryHeadAsItsMean) {
  struct Row {
    int32_t queries, keys, samples;
  };
  // One warp, four and eight work on a group; the last row is shared by several blocks.
  for (const Row& row : {Row{1, 70, 2}, Row{2, 70, 2}, Row{1, 1500, 3}, Row{1, 300, 40}, Row{1, 4000, 60}}) {
    const size_t repeats = testing::device_repeats(row.keys > 1000 ? 1500 : 4000);
    LaunchSpec spec = launch_spec(
        GetParam(), std::vector<testing::Sequence>(repeats, {row.queries, row.keys, row.samples}));
    spec.repeat_first = true;
    Launch launch(spec);
    const std::vector<double> outputs = testing::run_on_device(launch);
    AttentionParams exact = launch.params;
    exact.method.estimator = Estimator::kExact;
    exact.batch = 1;
    const std::vector<double> expected = reference::attend(exact);
    MeanEstimate mean(expected.size());
    for (size_t first = 0; first < outputs.size(); first += expected.size()) mean.add(&outputs[first]);
    EXPECT_LT(mean.largest_z(expected, 1e-4), 4.8) << row.queries << " queries of " << row.keys << " keys";
    EXPECT_GT(mean.standard_error(0), 1e-6) << "the rows must leave something to estimate";
  }
}

TEST_P(CudaShared, ReadsTheRowsThatItsHeadsHaveSamplesFor) {
  for (const int32_t samples : {1, 2, 5, 40}) {
    Launch launch(launch_spec(GetParam(), {{1, 1300, samples}, {20, 290, samples}, {1, 7, samples}}));
    std::vector<int64_t> read(3, 0);
    launch.params.rows_read = read.data();
    testing::run_on_device(launch);
    const int64_t of_query = int64_t{samples} * kHeads;
    if (GetParam() == Estimator::kLevel) {
      EXPECT_LE(read[0], of_query + kGroups);
      EXPECT_LE(read[1], 20 * (of_query + kGroups));
      EXPECT_GE(read[1], 20 * kGroups);
    } else {
      // A draw within rounding of a boundary may be lost.
      EXPECT_LE(read[0], of_query);
      EXPECT_GE(read[0], of_query - 1);
      EXPECT_LE(read[1], 20 * of_query);
      EXPECT_GE(static_cast<double>(read[1]), 0.998 * static_cast<double>(20 * of_query));
      EXPECT_LE(read[2], 7 * kGroups);
    }
  }
}

// At most a share of the sampled rows took other keys than the reference: draws within rounding of a
// boundary.
void expect_few_other_keys(const testing::Comparison& total, double share, const std::string& where) {
  std::printf("[ measured ] %s: %lld of %lld sampled rows took other keys than the reference\n",
              where.c_str(), static_cast<long long>(total.other_keys),
              static_cast<long long>(total.sampled_rows));
  EXPECT_LE(static_cast<double>(total.other_keys), share * static_cast<double>(total.sampled_rows)) << where;
}

class CudaRowsRead : public DeviceTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Shared, CudaRowsRead, ::testing::ValuesIn(testing::every_estimator()),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(CudaRowsRead, AreTheDistinctRowsThatTheReferenceReadsAndCountingThemChangesNothing) {
  for (const int32_t samples : {4, 50}) {
    const LaunchSpec spec = launch_spec(
        GetParam(),
        {{1, 300, samples}, {6, 90, samples}, {2, 40, kDenseBudget}, {1, 9, 0}, {1, 1100, samples}});
    Launch launch(spec);
    launch.params.method.tile = 128;
    if (GetParam() == Estimator::kFlash && samples == 4) launch.params.method.tile = 512;
    const std::vector<double> uncounted = testing::run_on_device(launch);
    std::vector<int64_t> read(spec.sequences.size(), 1000);
    launch.params.rows_read = read.data();
    EXPECT_TRUE(testing::run_on_device(launch) == uncounted);
    const AttentionParams& p = launch.params;
    for (int64_t b = 0; b < p.batch; ++b) {
      int64_t expected = 1000;
      const bool sampled = row_of(p.method.estimator).samples && p.budgets[b] != kDenseBudget;
      for (int64_t query = 0; sampled && query < p.query_start[b + 1] - p.query_start[b]; ++query) {
        for (int32_t group = 0; group < kGroups; ++group) {
          std::set<int32_t> keys;
          for (int32_t head = group * kGroupSize; head < (group + 1) * kGroupSize; ++head) {
            for (const auto& [key, weight] : reference::select(p, {b, query, head})) keys.insert(key);
          }
          expected += std::ssize(keys);
        }
      }
      // Draws within rounding of a boundary may take a row twice or a neighbour.
      EXPECT_NEAR(static_cast<double>(read[static_cast<size_t>(b)]), static_cast<double>(expected),
                  0.02 * static_cast<double>(expected - 1000) + 1)
          << "sequence " << b << ", " << samples << " samples";
    }
  }
}

// Every kernel of the value stage against the reference, on rows of every kind.
class ValueStage : public DeviceTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Shared, ValueStage, ::testing::ValuesIn(testing::every_estimator()),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(ValueStage, FollowsTheReference) {
  struct Shape {
    int32_t head_dim, group, num_kv_heads;
    DType dtype;
  };
  testing::Comparison total;
  for (const Shape& shape : {Shape{64, 3, 2, DType::kFloat16}, Shape{64, 1, 4, DType::kBFloat16},
                             Shape{96, 9, 1, DType::kFloat16}}) {
    // One warp, four and eight to a row or group; rows that blocks share.
    for (const std::vector<testing::Sequence>& sequences :
         {std::vector<testing::Sequence>{
              {1, 1, 8}, {1, 97, 8}, {1, 40, kDenseBudget}, {1, 200, 0}, {1, 300, 20}},
          std::vector<testing::Sequence>{{3, 33, 8}, {9, 200, 12}, {2, 2, 8}},
          std::vector<testing::Sequence>{{1, 1300, 16}, {1, 64, 3}},
          std::vector<testing::Sequence>{{1, 900, 600}, {1, 2500, 90}, {1, 100, kDenseBudget}}}) {
      Launch launch({.sequences = sequences,
                     .num_q_heads = shape.group * shape.num_kv_heads,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim = shape.head_dim,
                     .dtype = shape.dtype,
                     .estimator = GetParam()});
      launch.params.method.tile = GetParam() == Estimator::kFlash ? 256 : 64;
      total.add(testing::compare(launch.params, testing::run_on_device(launch)));
      if (row_of(GetParam()).scope == Scope::kHead) continue;
      launch.params.method.unit = BudgetUnit::kRows;
      total.add(testing::compare(launch.params, testing::run_on_device(launch)));
    }
  }
  testing::expect_near_plain(total, 0.25, std::string(name(GetParam())));
  expect_few_other_keys(total, 0.08, std::string(name(GetParam())));
}

// Where blocks do not see each other's shared memory, or there are too many sizes.
TEST_P(CudaShared, FollowTheReferenceWhereSizesAreNotHeld) {
  testing::Comparison total;
  const auto compare = [&](const std::vector<testing::Sequence>& sequences, uint32_t seed) {
    LaunchSpec spec = launch_spec(GetParam(), sequences);
    spec.seed = seed;
    Launch launch(spec);
    for (const double norms : {0.0, 1.0}) {
      if (norms > 0) {
        if (GetParam() != Estimator::kJoint) continue;
        set_parameter(&launch.params.method, "value-norms", norms);
        launch.stretch_values();
      }
      total.add(
          testing::compare(launch.params, testing::run_on_device(launch, testing::KernelsOf::kOlderDevices)));
    }
  };
  // Of level, one row in seven takes another key: so many rows that chance does not make it one in four.
  for (const uint32_t seed : {1u, 2u, 3u}) {
    compare({{1, 900, 40}, {1, 2500, 34}, {3, 700, 33}, {1, 100, kDenseBudget}}, seed);
    compare({{1, 9000, 16}, {1, 64, 3}}, seed);
  }
  testing::expect_near_plain(total, 0.25, std::string(name(GetParam())));
  // More draws a row than elsewhere.
  expect_few_other_keys(total, 0.25, std::string(name(GetParam())));
}

TEST_P(CudaShared, OutputsDoNotDependOnHowManyGroupsAreServed) {
  // Rows of eight parts, five and one: as many blocks of a cluster serve them, or half as many.
  const std::vector<testing::Sequence> alone = {{1, 9000, 60}, {1, 4500, 200}, {1, 700, 40}};
  std::vector<testing::Sequence> among_others = alone;
  for (int i = 0; i < 12; ++i) among_others.push_back({1, 50, 40});
  Launch few(launch_spec(GetParam(), alone));
  Launch many(launch_spec(GetParam(), among_others));
  for (size_t i = 0; i < alone.size(); ++i)
    many.copy_sequence(few, static_cast<int64_t>(i), static_cast<int64_t>(i));
  const std::vector<double> expected = testing::run_on_device(few);
  std::vector<double> outputs = testing::run_on_device(many);
  outputs.resize(expected.size());
  EXPECT_TRUE(outputs == expected);
}

// All but e^-20 or so of a row lies on fewer keys than there are samples: what the others weigh drowns in the
// rounding of the sums of tiles, and must not make all of them kept.
class DeviceThreshold : public DeviceTest {};

TEST_F(DeviceThreshold, KeepsTheFewKeysThatHaveTheWholeRow) {
  constexpr int32_t kKeys = 4096, kHeavy = 12, kHeadDim = 64;
  for (const double above : {20.0, 26.0, 40.0}) {
    Launch launch({.sequences = {{1, kKeys, 32}, {1, kKeys, 128}, {1, kKeys, 512}},
                   .num_q_heads = 4,
                   .num_kv_heads = 4,
                   .head_dim = kHeadDim,
                   .dtype = DType::kFloat16,
                   .estimator = Estimator::kThreshold});
    for (int64_t b = 0; b < 3; ++b) {
      for (int32_t head = 0; head < 4; ++head) {
        for (int32_t i = 0; i < kHeadDim; ++i) launch.set_query(b, head, i, i == 0 ? 8.0f : 0.0f);
        for (int32_t key = 0; key < kKeys; ++key) {  // the score is element 0
          const bool heavy =
              key >= 1000 && (key - 1000) % 11 == 0 && (key - 1000) / 11 < kHeavy;  // in three tiles
          const auto noise = static_cast<float>(std::sin(7.0 * key + 3.0 * head + static_cast<double>(b)));
          launch.set_key(b, head, key, 0, 0.3f * noise + (heavy ? static_cast<float>(above) : 0.0f));
        }
      }
    }
    AttentionParams exact = launch.params;
    exact.method.estimator = Estimator::kExact;
    const std::vector<double> expected = reference::attend(exact);
    const std::vector<double> out = testing::run_on_device(launch);
    double largest = 0;
    for (size_t i = 0; i < out.size(); ++i) largest = std::max(largest, std::abs(out[i] - expected[i]));
    EXPECT_LT(largest, 4e-3) << above << " nats";
  }
}

// `joint` with value-norms, of values whose lengths differ.
class CudaValueNorms : public DeviceTest {
 protected:
  static void use_norms(Launch& launch, double norms) {
    launch.params.method.unit = BudgetUnit::kRows;
    set_parameter(&launch.params.method, "value-norms", norms);
    launch.stretch_values();
  }
};

TEST_F(CudaValueNorms, FollowTheReference) {
  // A warp holds short rows in registers; of others it needs sums by tile, for one warp a group, four and
  // eight.
  const std::vector<std::vector<testing::Sequence>> short_rows = {
      {{1, 1, 8}, {1, 97, 8}, {1, 40, kDenseBudget}, {1, 200, 0}}, {{3, 33, 8}, {9, 200, 12}, {2, 2, 8}}};
  const std::vector<std::vector<testing::Sequence>> long_rows = {
      {{5, 700, 9}, {2, 300, 20}},
      {{1, 1300, 16}, {1, 1700, 3}},
      {{1, 900, 600}, {1, 2500, 90}, {1, 300, 40}}};
  for (const auto& [launches, where] : {std::pair{short_rows, "short rows with value-norms"},
                                        std::pair{long_rows, "long rows with value-norms"}}) {
    testing::Comparison total;
    for (const int32_t group : {1, 3, 9}) {
      for (const std::vector<testing::Sequence>& sequences : launches) {
        LaunchSpec spec = launch_spec(Estimator::kJoint, sequences);
        spec.num_kv_heads = group == 9 ? 1 : 2;
        spec.num_q_heads = group * spec.num_kv_heads;
        Launch launch(spec);
        use_norms(launch, 1);
        total.add(testing::compare(launch.params, testing::run_on_device(launch)));
      }
    }
    testing::expect_near_plain(total, 0.25, where);
    expect_few_other_keys(total, 0.08, where);
  }
}

TEST_F(CudaValueNorms, KeepTheMeanAndTakeOffMostOfAnErrorThatLongRowsMake) {
  struct Row {
    int32_t queries, keys, rows;
  };
  for (const Row& row : {Row{1, 70, 6}, Row{2, 70, 6}, Row{1, 1500, 9}, Row{1, 4000, 180}}) {
    LaunchSpec spec =
        launch_spec(Estimator::kJoint,
                    std::vector<testing::Sequence>(testing::device_repeats(row.keys > 1000 ? 1500 : 4000),
                                                   {row.queries, row.keys, row.rows}));
    spec.repeat_first = true;
    Launch launch(spec);
    use_norms(launch, 1);
    AttentionParams exact = launch.params;
    exact.method = {.estimator = Estimator::kExact};
    exact.batch = 1;
    const std::vector<double> expected = reference::attend(exact);
    const auto error_of = [&](double norms) {
      use_norms(launch, norms);
      std::vector<int64_t> read(spec.sequences.size(), 0);
      launch.params.rows_read = read.data();
      const std::vector<double> outputs = testing::run_on_device(launch);
      for (const int64_t rows : read) EXPECT_LE(rows, int64_t{row.queries} * row.rows * kGroups);
      MeanEstimate mean(expected.size());
      double squares = 0;
      for (size_t first = 0; first < outputs.size(); first += expected.size()) {
        mean.add(&outputs[first]);
        for (size_t i = 0; i < expected.size(); ++i) squares += std::pow(outputs[first + i] - expected[i], 2);
      }
      EXPECT_LT(mean.largest_z(expected, 1e-3), 4.8) << row.queries << " queries of " << row.keys << " keys";
      return squares;
    };
    EXPECT_LT(2 * error_of(1), error_of(0)) << row.queries << " queries of " << row.keys << " keys";
  }
}

class CudaTopk : public DeviceTest {};

// Weights of a key, by value vectors that are unit vectors in turn, come back in the output.
TEST_F(CudaTopk, TakesTheFirstOfEqualKeysAndWeighsThemEqually) {
  for (const int32_t samples : {1, 5, 64, 100, 400}) {
    Launch launch({.sequences = {{1, 300, samples}},
                   .num_q_heads = 2,
                   .num_kv_heads = 1,
                   .head_dim = 64,
                   .dtype = DType::kBFloat16,
                   .estimator = Estimator::kTopk,
                   .score_deviation = 0});
    const int32_t kept = std::min(samples, 300);
    for (const std::vector<double>& weights :
         launch.key_weights([&] { return testing::run_on_device(launch); })) {
      for (int32_t n = 0; n < 300; ++n)
        ASSERT_NEAR(weights[static_cast<size_t>(n)], n < kept ? 1.0 / kept : 0, 5e-3 / kept) << "key " << n;
    }
  }
}

TEST_F(CudaTopk, KeepsTheHeaviestKeysAndGivesThemAllTheWeight) {
  for (const int32_t samples : {1, 8, 100, 600}) {
    Launch launch(launch_spec(Estimator::kTopk, {{1, 2000, samples}}));
    const auto weights = launch.key_weights([&] { return testing::run_on_device(launch); });
    for (int32_t head = 0; head < kHeads; ++head) {
      const auto p = reference::softmax(reference::scores(launch.params, {0, 0, head}));
      const auto& of_head = weights[static_cast<size_t>(head)];
      double total = 0, lightest = 1, heaviest_left = 0;
      int32_t kept = 0;
      for (size_t n = 0; n < p.size(); ++n) {
        total += of_head[n];
        if (of_head[n] > 0) {
          ++kept;
          lightest = std::min(lightest, p[n]);
        } else {
          heaviest_left = std::max(heaviest_left, p[n]);
        }
      }
      EXPECT_EQ(kept, samples);
      EXPECT_NEAR(total, 1, 2e-3);
      EXPECT_GE(lightest, heaviest_left * (1 - 2e-3)) << "but for rounding to half precision";
    }
  }
}

}  // namespace
}  // namespace allot::kernels
