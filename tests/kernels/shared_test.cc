// Estimators whose heads choose value rows together: which rows they read, how often, and what their mean is.
// Against the reference they are tested with all others (attention_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "kernels/methods/shared/method.h"
#include "kernels/reference.h"
#include "kernels/sampling.h"
#include "launch.h"
#include "tests/kernels/methods.h"
#include "tests/repeats.h"

namespace allot::kernels {
namespace {

using testing::Launch;
using testing::LaunchSpec;
using testing::MeanEstimate;
using testing::supported_isas;

constexpr int32_t kHeads = 6;
constexpr int32_t kGroups = 2;
constexpr int32_t kGroupSize = kHeads / kGroups;

constexpr Estimator kSharedEstimators[] = {Estimator::kJoint, Estimator::kPooled, Estimator::kLevel};

// A budget above 0 in its unit, and the value rows of a group that it asks for.
struct Budget {
  BudgetUnit unit;
  int32_t number;
  int32_t rows;
};
// Samples, as many rows, and rows between, no multiple of the group.
constexpr Budget kBudgets[] = {{BudgetUnit::kSamples, 1, 3},
                               {BudgetUnit::kSamples, 5, 15},
                               {BudgetUnit::kRows, 1, 1},
                               {BudgetUnit::kRows, 4, 4},
                               {BudgetUnit::kRows, 17, 17}};

class SharedEstimator : public ::testing::TestWithParam<Estimator> {
 protected:
  static int32_t groups_together() { return row_of(GetParam()).scope == Scope::kLayer ? kGroups : 1; }
};
INSTANTIATE_TEST_SUITE_P(Shared, SharedEstimator, ::testing::ValuesIn(kSharedEstimators),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

LaunchSpec launch_spec(Estimator estimator, std::vector<testing::Sequence> sequences) {
  return {.sequences = std::move(sequences),
          .num_q_heads = kHeads,
          .num_kv_heads = kGroups,
          .estimator = estimator,
          .score_deviation = 2};
}

// Rows that have a weight in some head of a group: weights [heads][keys] of one query.
std::set<int32_t> rows_of_group(const std::vector<std::vector<double>>& weights, size_t query,
                                int32_t group) {
  std::set<int32_t> rows;
  for (int32_t head = group * kGroupSize; head < (group + 1) * kGroupSize; ++head) {
    const auto& row = weights[query * kHeads + static_cast<size_t>(head)];
    for (size_t key = 0; key < row.size(); ++key) {
      if (row[key] != 0) rows.insert(static_cast<int32_t>(key));
    }
  }
  return rows;
}

TEST_P(SharedEstimator, ReadsAsManyRowsAsItsBudgetSaysAndGivesThemToAllHeads) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const auto& [unit, number, wanted] : kBudgets) {
      SCOPED_TRACE(std::to_string(number) + " " + std::string(name(unit)) + " " + cpu::name(isa));
      Launch launch(launch_spec(GetParam(), {{1, 300, number}, {37, 120, number}}));
      launch.params.method.unit = unit;
      const auto weights = launch.key_weights(isa);
      const auto of_group = static_cast<size_t>(wanted);
      for (size_t query = 0; query < 38; ++query) {
        size_t together = 0;
        for (int32_t group = 0; group < kGroups; ++group) {
          const std::set<int32_t> rows = rows_of_group(weights, query, group);
          together += rows.size();
          if (GetParam() == Estimator::kJoint) {
            EXPECT_EQ(rows.size(), of_group) << "query " << query;
          } else if (GetParam() == Estimator::kLevel) {
            EXPECT_LE(rows.size(), of_group + 1) << "query " << query;
            EXPECT_GE(rows.size(), 1u);
          }
          // A head gives weight to every row that was read, unless the key's probability vanishes.
          for (int32_t head = group * kGroupSize; head < (group + 1) * kGroupSize; ++head) {
            const auto& row = weights[query * kHeads + static_cast<size_t>(head)];
            const auto read = std::count_if(row.begin(), row.end(), [](double w) { return w != 0; });
            EXPECT_EQ(static_cast<size_t>(read), rows.size());
          }
        }
        if (GetParam() != Estimator::kLevel) {
          EXPECT_EQ(together, kGroups * of_group) << "query " << query;
        }
      }
    }
  }
}

TEST_P(SharedEstimator, GivesTheSameBytesForRowsAsForAsManySamplesOfItsHeads) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      LaunchSpec spec = launch_spec(GetParam(), {{1, 300, 2}, {37, 120, 7}, {1, 9, 1}, {3, 30, 100}});
      spec.dtype = dtype;
      Launch launch(spec);
      const std::vector<double> reference_of_samples = reference::attend(launch.params);
      launch.run(isa);
      const std::vector<unsigned char> of_samples = launch.output_bytes();
      launch.params.method.unit = BudgetUnit::kRows;
      launch.run(isa);
      EXPECT_NE(launch.output_bytes(), of_samples) << cpu::name(isa) << ": as many rows as it had samples";
      for (int32_t& budget : launch.budgets) budget *= kGroupSize;
      launch.run(isa, /*num_threads=*/2);
      EXPECT_EQ(launch.output_bytes(), of_samples) << cpu::name(isa) << " " << name(dtype);
      EXPECT_EQ(reference::attend(launch.params), reference_of_samples);
    }
  }
}

// Rows of no multiple of the group's heads, against the reference: a draw may fall to a neighbour.
TEST_P(SharedEstimator, TakesTheRowsOfTheReferenceForABudgetOfRows) {
  for (const cpu::Isa isa : supported_isas()) {
    int64_t rows = 0, other = 0;
    for (const int32_t number : {1, 2, 5, 50}) {
      Launch launch(launch_spec(GetParam(), {{1, 200, number}, {20, 90, number}}));
      launch.params.method.unit = BudgetUnit::kRows;
      const auto weights = launch.key_weights(isa);
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t query = 0; query < (b == 0 ? 1 : 20); ++query) {
          for (int32_t head = 0; head < kHeads; ++head, ++rows) {
            std::vector<double> expected(weights[rows % static_cast<int64_t>(weights.size())].size(), 0.0);
            for (const auto& [key, weight] : reference::select(launch.params, {b, query, head}))
              expected[key] = weight;
            const auto& actual = weights[static_cast<size_t>((b + query) * kHeads + head)];
            double distance = 0;
            for (size_t key = 0; key < actual.size(); ++key)
              distance += std::abs(actual[key] - expected[key]);
            if (!(distance < 1e-3)) ++other;
          }
        }
      }
    }
    EXPECT_LE(other, rows / 100) << cpu::name(isa) << ": of " << rows << " heads";
  }
}

TEST_P(SharedEstimator, IsExactWhenItsRowsCoverTheKeys) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const BudgetUnit unit : {BudgetUnit::kSamples, BudgetUnit::kRows}) {
      // `level` keeps every key whose probability is at least 1 / S.
      const int32_t budget = GetParam() == Estimator::kLevel ? kMaxBudget
                             : unit == BudgetUnit::kRows     ? 30
                                                             : 10;
      Launch shared(launch_spec(GetParam(), {{1, 15, budget}, {20, 30, budget}}));
      shared.params.method.unit = unit;
      Launch exact(launch_spec(Estimator::kExact, {{1, 15, budget}, {20, 30, budget}}));
      const std::vector<double> out = shared.run(isa);
      const std::vector<double> expected = exact.run(isa);
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5) << cpu::name(isa);
    }
  }
}

TEST(Joint, IsThresholdWhereAGroupIsOneHead) {
  for (const cpu::Isa isa : supported_isas()) {
    const LaunchSpec spec{.sequences = {{1, 200, 6}, {19, 90, 6}},
                          .num_q_heads = 2,
                          .num_kv_heads = 2,
                          .estimator = Estimator::kJoint,
                          .score_deviation = 3};
    Launch joint(spec);
    Launch threshold(spec);
    threshold.params.method.estimator = Estimator::kThreshold;
    const auto weights = joint.key_weights(isa);
    const auto expected = threshold.key_weights(isa);
    for (size_t row = 0; row < weights.size(); ++row) {
      for (size_t key = 0; key < weights[row].size(); ++key)
        ASSERT_NEAR(weights[row][key], expected[row][key], 1e-6) << cpu::name(isa) << " row " << row;
    }
  }
}

// One query under many seeds: the frequency of each row is its inclusion probability, and the mean of every
// head's output is exact attention.
TEST_P(SharedEstimator, ReadsARowAsOftenAsItsInclusionProbabilitySays) {
  constexpr int32_t kKeys = 60;
  constexpr size_t kRepeats = repeats(4000);
  const int32_t together = groups_together();
  for (const auto& [unit, number, wanted] :
       {Budget{BudgetUnit::kSamples, 3, 9}, Budget{BudgetUnit::kRows, 2, 2},
        Budget{BudgetUnit::kRows, 7, 7}}) {
    SCOPED_TRACE(std::to_string(number) + " " + std::string(name(unit)));
    LaunchSpec spec = launch_spec(GetParam(), std::vector<testing::Sequence>(kRepeats, {1, kKeys, number}));
    spec.repeat_first = true;
    Launch launch(spec);
    launch.params.method.unit = unit;
    const auto weights = launch.key_weights(cpu::best_isa());

    std::vector<double> sizes(kGroups * kKeys, 0.0);  // [groups, keys]
    for (int32_t head = 0; head < kHeads; ++head) {
      const auto p = reference::softmax(reference::scores(launch.params, {0, 0, head}));
      for (int32_t key = 0; key < kKeys; ++key) sizes[head / kGroupSize * kKeys + key] += p[key];
    }
    for (int32_t first = 0; first < kGroups; first += together) {
      const std::span<const double> q = std::span(sizes).subspan(first * kKeys, together * kKeys);
      double low = 0, high = kHeads;
      for (int i = 0; i < 100; ++i) {
        const double tau = (low + high) / 2;
        double rows = 0;
        for (const double size : q) rows += std::min(1.0, size / tau);
        (rows > wanted * together ? low : high) = tau;
      }
      if (GetParam() == Estimator::kLevel) low = static_cast<double>(kGroupSize) / wanted;
      std::vector<double> read(q.size(), 0.0);  // [together, keys]
      for (size_t b = 0; b < kRepeats; ++b) {
        for (int32_t group = 0; group < together; ++group) {
          for (const int32_t key : rows_of_group(weights, b, first + group)) read[group * kKeys + key] += 1;
        }
      }
      for (size_t i = 0; i < q.size(); ++i) {
        const double probability = std::min(1.0, q[i] / low);
        const double error = std::sqrt(probability * (1 - probability) / kRepeats) + 1e-9;
        EXPECT_LT(std::abs(read[i] / kRepeats - probability) / error, 4.5)
            << "group " << first << " row " << i;
      }
    }
  }
}

TEST_P(SharedEstimator, HasTheExactOutputOfEveryHeadAsItsMean) {
  for (const auto& [unit, number, wanted] :
       {Budget{BudgetUnit::kSamples, 2, 6}, Budget{BudgetUnit::kRows, 4, 4},
        Budget{BudgetUnit::kRows, 2, 2}}) {
    for (const int32_t queries : {1, 2}) {
      constexpr size_t kDraws = kUnderSanitizers ? 1000 : 4000;
      LaunchSpec spec =
          launch_spec(GetParam(), std::vector<testing::Sequence>(kDraws, {queries, 70, number}));
      spec.repeat_first = true;
      Launch launch(spec);
      launch.params.method.unit = unit;
      const std::vector<double> outputs = launch.run(cpu::best_isa());
      AttentionParams exact = launch.params;
      exact.method = {.estimator = Estimator::kExact};
      exact.batch = 1;
      const std::vector<double> expected = reference::attend(exact);
      MeanEstimate mean(expected.size());
      for (size_t first = 0; first < outputs.size(); first += expected.size()) mean.add(&outputs[first]);
      EXPECT_LT(mean.largest_z(expected), 4.8) << queries << " queries, " << number << " " << name(unit);
      EXPECT_GT(mean.standard_error(0), 1e-4) << "the rows must leave something to estimate";
    }
  }
}

// `joint` with value-norms, of values whose lengths differ by a factor of some hundred.
constexpr int32_t kNormKeys = 70;
class ValueNorms : public ::testing::Test {
 protected:
  static AttentionMethod method(double norms) {
    AttentionMethod method{.estimator = Estimator::kJoint, .unit = BudgetUnit::kRows};
    set_parameter(&method, "value-norms", norms);
    return method;
  }
};

TEST_F(ValueNorms, MakeARowsInclusionProportionalToItsNormTooAndKeepTheMean) {
  constexpr size_t kRepeats = repeats(4000);
  for (const int32_t queries : {1, 2}) {
    LaunchSpec spec =
        launch_spec(Estimator::kJoint, std::vector<testing::Sequence>(kRepeats, {queries, kNormKeys, 7}));
    spec.repeat_first = true;
    Launch launch(spec);
    launch.stretch_values();
    launch.params.method = method(1);
    AttentionParams exact = launch.params;
    exact.method = {.estimator = Estimator::kExact};
    exact.batch = 1;
    const std::vector<double> expected = reference::attend(exact);
    const auto errors = [&](double norms, MeanEstimate* mean) {
      launch.params.method = method(norms);
      const std::vector<double> outputs = launch.run(cpu::best_isa());
      double squares = 0;
      for (size_t first = 0; first < outputs.size(); first += expected.size()) {
        mean->add(&outputs[first]);
        for (size_t i = 0; i < expected.size(); ++i) squares += std::pow(outputs[first + i] - expected[i], 2);
      }
      return squares;
    };
    MeanEstimate mean(expected.size()), plain(expected.size());
    const double with = errors(1, &mean), without = errors(0, &plain);
    EXPECT_LT(mean.largest_z(expected), 4.8) << queries << " queries";
    EXPECT_LT(3 * with, without) << "the long rows are what the error is made of";
  }
}

TEST_F(ValueNorms, TakeTheRowsOfTheReferenceWhoseInclusionIsProportionalToThem) {
  for (const cpu::Isa isa : supported_isas()) {
    Launch launch(launch_spec(Estimator::kJoint, {{1, kNormKeys, 5}, {20, 60, 4}, {1, 9, 20}}));
    launch.stretch_values();
    launch.params.method = method(1);
    const auto weights = launch.key_weights(isa);
    int64_t row = 0, other = 0;
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t query = 0; query < (b == 1 ? 20 : 1); ++query) {
        for (int32_t head = 0; head < kHeads; ++head, ++row) {
          std::vector<double> expected(kNormKeys, 0.0);
          for (const auto& [key, weight] : reference::select(launch.params, {b, query, head}))
            expected[static_cast<size_t>(key)] = weight;
          double distance = 0;
          for (size_t key = 0; key < expected.size(); ++key)
            distance += std::abs(weights[static_cast<size_t>(row)][key] - expected[key]);
          if (!(distance < 1e-3)) ++other;
        }
      }
    }
    EXPECT_LE(other, row / 100) << cpu::name(isa) << ": of " << row << " heads";
  }
}

TEST(ValueNormsOfTheReference, AreFactorsOfTheInclusionProbability) {
  // Two heads of flat rows; key 1 is three times as long as the others: 3 / 6 of two rows, the others 1 / 6.
  const std::vector<double> p(8, 0.25), norms = {1, 3, 1, 1};
  const SharedRows rows{.p = p, .heads = 2, .keys = 4, .norms = norms};
  std::vector<int> read(4, 0);
  constexpr int kDraws = 20000;
  for (uint32_t question = 0; question < kDraws; ++question) {
    std::vector<double> weights(8, 0.0);
    methods::Joint::select_shared(rows, {.samples = 1, .parameters = {}, .unit = BudgetUnit::kRows},
                                  {.key = {3, 4}, .question = question}, weights);
    for (size_t key = 0; key < 4; ++key) {
      if (weights[key] == 0) continue;
      ++read[key];
      EXPECT_NEAR(weights[key], 0.25 / (norms[key] / 6), 1e-12);
      EXPECT_EQ(weights[key], weights[4 + key]);
    }
  }
  for (size_t key = 0; key < 4; ++key) EXPECT_NEAR(read[key] / double{kDraws}, norms[key] / 6, 0.02) << key;
}

TEST_F(ValueNorms, ThatAreAllOneChangeNoByteAndThoseThatAreOffAreNotRead) {
  for (const cpu::Isa isa : supported_isas()) {
    Launch launch(launch_spec(Estimator::kJoint, {{1, 300, 7}, {37, 120, 4}}));
    launch.params.method = method(0);
    launch.params.value_norms = nullptr;
    launch.run(isa);
    const std::vector<unsigned char> expected = launch.output_bytes();
    std::fill(launch.value_norms.begin(), launch.value_norms.end(), 1.0f);
    launch.params.value_norms = launch.value_norms.data();
    launch.params.method = method(1);
    launch.run(isa);
    EXPECT_EQ(launch.output_bytes(), expected) << cpu::name(isa);
  }
}

class RowsRead : public ::testing::TestWithParam<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Shared, RowsRead, ::testing::ValuesIn(testing::every_estimator()),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(RowsRead, AreTheDistinctRowsThatSampledSequencesReadInTheReferenceAndCountingThemChangesNothing) {
  for (const cpu::Isa isa : supported_isas()) {
    LaunchSpec spec = launch_spec(GetParam(), {{1, 300, 4}, {21, 90, 4}, {5, 40, kDenseBudget}, {1, 9, 0}});
    Launch launch(spec);
    launch.params.method.tile = 100;
    launch.run(isa);
    const std::vector<unsigned char> uncounted = launch.output_bytes();
    std::vector<int64_t> read(spec.sequences.size(), 1000), alone = read;
    launch.params.rows_read = alone.data();
    launch.run(isa);  // one thread, which takes the KV heads of a decoding sequence together
    launch.params.rows_read = read.data();
    launch.run(isa, /*num_threads=*/2);
    EXPECT_EQ(launch.output_bytes(), uncounted) << cpu::name(isa);
    EXPECT_EQ(alone, read) << cpu::name(isa);
    const AttentionParams& p = launch.params;
    for (int64_t b = 0; b < p.batch; ++b) {
      int64_t expected = 1000;
      const bool counted = p.budgets[b] != kDenseBudget;
      for (int64_t query = 0; counted && query < p.query_start[b + 1] - p.query_start[b]; ++query) {
        for (int32_t group = 0; group < kGroups; ++group) {
          std::set<int32_t> keys;
          for (int32_t head = group * kGroupSize; head < (group + 1) * kGroupSize; ++head) {
            for (const auto& [key, weight] : reference::select(p, {b, query, head})) keys.insert(key);
          }
          expected += std::ssize(keys);
        }
      }
      // A draw within rounding of a boundary may take a row twice or a neighbour.
      EXPECT_NEAR(static_cast<double>(read[b]), static_cast<double>(expected),
                  5e-3 * static_cast<double>(expected - 1000))
          << cpu::name(isa) << " sequence " << b;
    }
  }
}

}  // namespace
}  // namespace allot::kernels
