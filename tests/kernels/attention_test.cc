// The fast CPU path against the double-precision reference, for every instruction set of this machine: which
// keys a row takes, how far its output is off, and what must not change it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/bfloat16.h"
#include "kernels/reference.h"
#include "kernels/sampling.h"
#include "launch.h"
#include "tests/kernels/methods.h"
#include "tests/repeats.h"

namespace allot::kernels {
namespace {

using testing::Launch;
using testing::LaunchSpec;
using testing::supported_isas;

// Odd lengths, decode and prefill in one batch, every kind of budget.
LaunchSpec mixed_launch(Estimator estimator, DType dtype, int32_t group, int32_t page_size) {
  LaunchSpec spec{.sequences = {{1, 1, 8},
                                {1, 17, 5},
                                {1, 97, 8},
                                {1, 127, 16},
                                {1, 128, 0},
                                {1, 257, 8},
                                {1, 129, kDenseBudget},
                                {2, 2, 8},
                                {17, 17, 8},
                                {9, 97, 13},
                                {3, 33, 0},
                                {5, 65, kDenseBudget},
                                {1, 513, 100}},
                  .page_size = page_size,
                  .dtype = dtype,
                  .estimator = estimator,
                  .seed = static_cast<uint32_t>(17 + group)};
  spec.num_kv_heads = group == 1 ? 2 : 1;
  spec.num_q_heads = group * spec.num_kv_heads;
  return spec;
}

std::string describe(const LaunchSpec& spec, cpu::Isa isa) {
  return std::string(name(spec.estimator)) + " " + std::string(name(spec.dtype)) + " page_size " +
         std::to_string(spec.page_size) + " heads " + std::to_string(spec.num_q_heads) + "/" +
         std::to_string(spec.num_kv_heads) + " head_dim " + std::to_string(spec.head_dim) + " " +
         cpu::name(isa);
}

double stored(double x, DType dtype) {
  const auto rounded = static_cast<float>(x);
  return dtype == DType::kFloat32 ? rounded : float_from_bfloat16(bfloat16_from_float(rounded));
}

// What a plain program in float32 gives for a row that takes these keys: loops over elements, one rounding at
// the end.
std::vector<double> plain_row(const AttentionParams& p, const reference::Row& row,
                              const std::vector<reference::Selected>& selected) {
  const std::vector<double> query = reference::score_query(p, row);
  const std::vector<double> keys = reference::keys(p, row);
  const std::vector<double> values = reference::values(p, row);
  std::vector<float> weights;
  for (int32_t key = 0; key < reference::visible_keys(p, row); ++key) {
    float dot = 0;
    for (int32_t i = 0; i < p.head_dim; ++i) {
      dot +=
          static_cast<float>(query[i]) * static_cast<float>(keys[static_cast<size_t>(key) * p.head_dim + i]);
    }
    weights.push_back(dot * p.scale);
  }
  const float largest = *std::max_element(weights.begin(), weights.end());
  float total = 0;
  for (float& weight : weights) total += weight = std::exp(weight - largest);
  // Counts over S carry no rounding of the scores; weights made of probabilities carry that of their key.
  const bool counted = p.method.estimator == Estimator::kIid || p.method.estimator == Estimator::kStrat ||
                       p.method.estimator == Estimator::kSys || p.method.estimator == Estimator::kProp;
  const bool dense = p.budgets[row.sequence] == kDenseBudget;
  const std::vector<double> probabilities = reference::softmax(reference::scores(p, row));
  const auto plain_weight = [&](const reference::Selected& pick) {
    if (counted && !dense) return static_cast<float>(pick.weight);
    return static_cast<float>(pick.weight / probabilities[pick.key]) * (weights[pick.key] / total);
  };
  std::vector<double> result;
  for (int32_t i = 0; i < p.head_dim; ++i) {
    float sum = 0;
    for (const reference::Selected& pick : selected) {
      sum += plain_weight(pick) * static_cast<float>(values[static_cast<size_t>(pick.key) * p.head_dim + i]);
    }
    result.push_back(stored(sum, p.dtype));
  }
  return result;
}

// Root mean square errors of a launch's rows, without those that took other keys than the reference.
struct Comparison {
  double fast_error = 0;
  double plain_error = 0;
  int64_t rows = 0;
  int64_t other_keys = 0;
};

void compare(Launch& launch, cpu::Isa isa, Comparison& total) {
  const AttentionParams& p = launch.params;
  const std::vector<double> fast = launch.run(isa);
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t query = 0; query < p.query_start[b + 1] - p.query_start[b]; ++query) {
      for (int32_t head = 0; head < p.num_q_heads; ++head) {
        const reference::Row row{b, query, head};
        const auto selected = reference::select(p, row);
        const std::vector<double> values = reference::values(p, row);
        const std::vector<double> plain = plain_row(p, row, selected);
        const int64_t first = ((p.query_start[b] + query) * p.num_q_heads + head) * p.head_dim;
        double fast_error = 0, plain_error = 0;
        for (int32_t i = 0; i < p.head_dim; ++i) {
          double exact = 0;
          for (const auto& [key, weight] : selected)
            exact += weight * values[static_cast<size_t>(key) * p.head_dim + i];
          fast_error += std::pow(fast[first + i] - exact, 2);
          plain_error += std::pow(plain[i] - exact, 2);
        }
        ++total.rows;
        // Another key moves the output by a weight of at least 1/100 times a value vector; rounding by far
        // less.
        if (!(fast_error < 1e-3 * p.head_dim)) {
          ++total.other_keys;
          continue;
        }
        total.fast_error += fast_error;
        total.plain_error += plain_error;
      }
    }
  }
}

class EveryEstimator : public ::testing::TestWithParam<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Attention, EveryEstimator, ::testing::ValuesIn(testing::every_estimator()),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

// The error allowed is twice that of a plain program in the same dtype; the keys may differ where a target
// lies within rounding of a boundary, measured at 0 to 2 of these 924 rows (the wide ones,
// with 100 samples among 513 keys).
TEST_P(EveryEstimator, TakesTheReferencesKeysAndStaysWithinTwiceThePlainError) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Comparison total;
      for (const int32_t group : {1, 4, 7, 8}) {
        if (kUnderSanitizers && group != (dtype == DType::kFloat32 ? 1 : 7)) continue;
        const int32_t page_size = group == 1 ? 1 : group == 4 ? 8 : 16;
        LaunchSpec spec = mixed_launch(GetParam(), dtype, group, page_size);
        Launch launch(spec);
        launch.params.method.tile = 64;
        if (GetParam() == Estimator::kFlash) {
          for (int32_t& budget : launch.budgets) budget = budget > 0 ? std::max(budget, 11) : budget;
        }
        compare(launch, isa, total);
      }
      const std::string where = std::string(name(dtype)) + " " + cpu::name(isa);
      RecordProperty("rows_with_other_keys_" + where,
                     std::to_string(total.other_keys) + "/" + std::to_string(total.rows));
      EXPECT_LE(static_cast<double>(total.other_keys), 4e-3 * static_cast<double>(total.rows)) << where;
      EXPECT_GT(total.plain_error, 0) << where;
      EXPECT_LE(std::sqrt(total.fast_error), 2 * std::sqrt(total.plain_error))
          << where << " rows " << total.rows;
    }
  }
}

TEST_P(EveryEstimator, GivesTheSameBytesForEveryPageSizeAndPageOrder) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<unsigned char> expected;
      for (const int32_t page_size : {1, 8, 16, 5}) {
        for (const uint32_t page_seed : {1u, 2u}) {
          LaunchSpec spec = mixed_launch(GetParam(), dtype, 4, page_size);
          spec.page_seed = page_seed;
          Launch launch(spec);
          launch.params.method.tile = 100;
          launch.run(isa);
          if (expected.empty()) expected = launch.output_bytes();
          EXPECT_TRUE(launch.output_bytes() == expected) << describe(spec, isa) << " page seed " << page_seed;
        }
      }
    }
  }
}

TEST_P(EveryEstimator, GivesTheSameBytesForEveryThreadCount) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    LaunchSpec spec = mixed_launch(GetParam(), dtype, 4, 16);
    spec.sequences.push_back({150, 150, 8});  // several items
    Launch launch(spec);
    launch.run(cpu::best_isa(), 1);
    const std::vector<unsigned char> expected = launch.output_bytes();
    for (const int threads : {2, 3, 5}) {
      launch.run(cpu::best_isa(), threads);
      EXPECT_TRUE(launch.output_bytes() == expected)
          << describe(spec, cpu::best_isa()) << " threads " << threads;
    }
  }
}

// The rows of one prompt, in one launch or cut in two, beside other sequences or alone.
TEST_P(EveryEstimator, GivesARowTheSameBytesHoweverThePromptIsCutAndWhoeverSharesTheBatch) {
  for (const cpu::Isa isa : supported_isas()) {
    const LaunchSpec whole_spec{
        .sequences = {{60, 60, 6}}, .num_q_heads = 7, .num_kv_heads = 1, .estimator = GetParam()};
    LaunchSpec cut_spec = whole_spec;
    cut_spec.sequences = {{23, 60, 6}, {40, 77, 9}};
    Launch whole(whole_spec);
    Launch cut(cut_spec);
    for (int32_t token = 0; token < 60; ++token) {
      for (int32_t i = 0; i < 32; ++i) {
        const float key = std::sin(static_cast<float>(token * 37 + i * 11));
        const float value = std::cos(static_cast<float>(token * 13 + i * 7));
        whole.set_key(0, 0, token, i, key);
        whole.set_value(0, 0, token, i, value);
        cut.set_key(0, 0, token, i, key);
        cut.set_value(0, 0, token, i, value);
      }
    }
    for (int32_t query = 0; query < 23; ++query) {
      for (int32_t i = 0; i < 7 * 32; ++i) {
        const float x = 2 * std::sin(static_cast<float>(query * 5 + i));
        whole.set_query(37 + query, 0, i, x);
        cut.set_query(query, 0, i, x);
      }
    }
    const std::vector<double> all = whole.run(isa);
    const std::vector<double> part = cut.run(isa);
    for (size_t i = 0; i < 23 * 7 * 32; ++i) {
      ASSERT_EQ(part[i], all[37 * 7 * 32 + i]) << describe(whole_spec, isa) << " element " << i;
    }
  }
}

// What a prompt's first rows are does not depend on how many follow: neither on the keys that lie behind
// theirs, nor on the rows beside them, on which it may depend how they are summed (of sys from 4 or 8
// keys a sample on).
TEST_P(EveryEstimator, GivesThePromptsFirstRowsTheSameBytesHoweverManyFollow) {
  constexpr int32_t kFirst = 24, kAll = 45, kHeads = 3, kHeadDim = 40;
  for (const cpu::Isa isa : supported_isas()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      const LaunchSpec spec{.sequences = {{kAll, kAll, 6}},
                            .num_q_heads = kHeads,
                            .num_kv_heads = 1,
                            .head_dim = kHeadDim,
                            .dtype = dtype,
                            .estimator = GetParam()};
      Launch launch(spec);
      launch.run(isa);
      AttentionParams first = launch.params;
      const std::vector<int64_t> starts{0, kFirst};
      const std::vector<int32_t> lengths{kFirst};
      std::vector<unsigned char> out(static_cast<size_t>(kFirst * kHeads * kHeadDim * size_of(dtype)));
      first.query_start = starts.data();
      first.lengths = lengths.data();
      first.out = out.data();
      cpu::attend(first, 1, isa);
      EXPECT_EQ(std::memcmp(out.data(), launch.params.out, out.size()), 0) << describe(spec, isa);
    }
  }
}

TEST_P(EveryEstimator, HandlesEveryHeadDim) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      Comparison total;
      for (const int32_t head_dim : {8, 16, 24, 40, 64, 104, 128, 256}) {
        const LaunchSpec spec{
            .sequences = {{1, 37, 20}, {6, 35, 20}, {2, 150, 3}},  // values read often and seldom
            .num_q_heads = 2,
            .num_kv_heads = 1,
            .head_dim = head_dim,
            .dtype = dtype,
            .estimator = GetParam()};
        Launch launch(spec);
        compare(launch, isa, total);
      }
      EXPECT_LE(total.other_keys, 1) << name(dtype) << " " << cpu::name(isa);
      EXPECT_LE(std::sqrt(total.fast_error), 2 * std::sqrt(total.plain_error))
          << name(dtype) << " " << cpu::name(isa);
    }
  }
}

// One-hot values show the weight of each key.
TEST(AttentionCounts, AddUpToTheBudgetForEverySamplerWithEqualWeights) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const Estimator estimator :
         {Estimator::kIid, Estimator::kStrat, Estimator::kSys, Estimator::kProp}) {
      for (const int32_t budget : {1, 2, 7, 8, 64, 1000}) {
        if (kUnderSanitizers && budget != 1 && budget != 7 && budget != 1000) continue;
        Launch launch({.sequences = {{1, 97, budget}, {1, 300, budget}, {12, 43, budget}},
                       .num_q_heads = 4,
                       .num_kv_heads = 2,
                       .estimator = estimator,
                       .score_deviation = 4});
        launch.params.method.tile = 64;
        for (const std::vector<double>& weights : launch.key_weights(isa)) {
          double counts = 0;
          for (const double weight : weights) {
            const double count = weight * budget;
            EXPECT_NEAR(count, std::round(count), 1e-4 * budget);
            counts += std::round(count);
          }
          EXPECT_EQ(counts, budget) << name(estimator) << " " << cpu::name(isa);
        }
      }
    }
  }
}

// Weights so small that they vanish in float32 are never sampled, and the last sample of a row is never lost.
TEST(AttentionCounts, SurviveExtremeRows) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const Estimator estimator :
         {Estimator::kIid, Estimator::kStrat, Estimator::kSys, Estimator::kProp, Estimator::kThreshold}) {
      Launch launch({.sequences = {{1, 300, 8}, {20, 200, 8}},
                     .num_q_heads = 2,
                     .num_kv_heads = 1,
                     .estimator = estimator,
                     .score_deviation = 60});
      for (const std::vector<double>& weights : launch.key_weights(isa)) {
        EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 1e-5)
            << name(estimator) << " " << cpu::name(isa);
      }
    }
  }
}

TEST(AttentionCounts, OfSysEqualTheReferencesExceptAtBoundaries) {
  for (const cpu::Isa isa : supported_isas()) {
    double moved = 0, samples = 0;
    for (int seed = 1; seed <= repeats(3); ++seed) {
      Launch launch({.sequences = {{1, 1000, 8}, {1, 255, 64}, {64, 190, 8}},
                     .num_q_heads = 4,
                     .num_kv_heads = 2,
                     .estimator = Estimator::kSys,
                     .seed = static_cast<uint32_t>(seed)});
      const auto weights = launch.key_weights(isa);
      const AttentionParams& p = launch.params;
      for (int64_t b = 0; b < p.batch; ++b) {
        for (int64_t query = 0; query < p.query_start[b + 1] - p.query_start[b]; ++query) {
          for (int32_t head = 0; head < p.num_q_heads; ++head) {
            std::vector<double> expected(weights[0].size(), 0.0);
            for (const auto& [key, weight] : reference::select(p, {b, query, head})) expected[key] = weight;
            const auto& row = weights[(p.query_start[b] + query) * p.num_q_heads + head];
            double difference = 0;
            for (size_t key = 0; key < row.size(); ++key) difference += std::abs(row[key] - expected[key]);
            moved += difference / 2 * launch.budgets[b];
            samples += launch.budgets[b];
          }
        }
      }
    }
    RecordProperty(std::string("moved_samples_") + cpu::name(isa), std::to_string(moved / samples));
    EXPECT_LE(moved / samples, 5e-4) << cpu::name(isa);
  }
}

TEST(AttentionBudget, OfZeroGivesZerosAndDenseGivesExactAttentionBesideSampledMates) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const Estimator estimator : testing::every_estimator()) {
      if (estimator == Estimator::kExact) continue;
      LaunchSpec spec{
          .sequences = {{1, 50, 0}, {1, 50, kDenseBudget}, {4, 20, 0}, {4, 20, kDenseBudget}, {1, 50, 8}},
          .estimator = estimator};
      Launch sampled(spec);
      spec.estimator = Estimator::kExact;
      Launch exact(spec);
      const std::vector<double> sampled_out = sampled.run(isa);
      const std::vector<double> exact_out = exact.run(isa);
      const size_t query = 2 * 32;  // two heads
      for (size_t i = 0; i < query; ++i) {
        EXPECT_EQ(sampled_out[i], 0);
        EXPECT_EQ(sampled_out[query + i], exact_out[query + i]) << name(estimator) << " " << cpu::name(isa);
      }
      for (size_t i = 0; i < 4 * query; ++i) {
        EXPECT_EQ(sampled_out[2 * query + i], 0);
        EXPECT_EQ(sampled_out[6 * query + i], exact_out[6 * query + i])
            << name(estimator) << " " << cpu::name(isa);
      }
    }
  }
}

TEST(AttentionScoreStage, BernoulliQueriesEqualTheReferences) {
  for (const cpu::Isa isa : supported_isas()) {
    for (const ScoreStage stage : {ScoreStage::kBernoulli, ScoreStage::kBernoulliStrat}) {
      for (const bool mean_group_query : {false, true}) {
        for (const Estimator estimator : {Estimator::kExact, Estimator::kSys}) {
          Launch launch({.sequences = {{1, 97, 8}, {11, 40, 8}},
                         .num_q_heads = 8,
                         .num_kv_heads = 2,
                         .estimator = estimator});
          launch.params.method.score_stage = stage;
          launch.params.method.score_budget = 4;
          launch.params.method.mean_group_query = mean_group_query;
          const std::vector<double> expected = reference::attend(launch.params);
          const std::vector<double> out = launch.run(isa);
          int64_t other = 0;
          for (size_t row = 0; row < out.size() / 32; ++row) {
            double error = 0;
            for (size_t i = 0; i < 32; ++i)
              error = std::max(error, std::abs(out[row * 32 + i] - expected[row * 32 + i]));
            other += error > 1e-4 ? 1 : 0;
          }
          EXPECT_LE(other, 1) << name(stage) << " " << name(estimator) << " " << cpu::name(isa);
        }
      }
    }
  }
}

TEST(AttentionNan, InAVisibleValueReachesTheOutput) {
  for (const cpu::Isa isa : supported_isas()) {
    Launch launch({.sequences = {{1, 40, 8}, {3, 30, 8}}});
    launch.set_key(0, 0, 39, 0, std::numeric_limits<float>::quiet_NaN());
    launch.set_key(1, 0, 0, 0, std::numeric_limits<float>::quiet_NaN());
    const std::vector<double> out = launch.run(isa);
    EXPECT_TRUE(std::isnan(out[0])) << cpu::name(isa);
    EXPECT_TRUE(std::isnan(out[2 * 32])) << cpu::name(isa);
    EXPECT_FALSE(std::isnan(out[32])) << "the other head reads other keys, " << cpu::name(isa);
  }
}

}  // namespace
}  // namespace allot::kernels
