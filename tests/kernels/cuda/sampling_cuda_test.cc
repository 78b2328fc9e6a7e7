// The keys that the sampled estimators take on the GPU, against the reference with the same draws. The GPU
// keeps the weights of a tile in float16 relative to the tile's maximum, so a key's boundary in the CDF moves
// by up to about 2^-11 of the weight beside it: a few samples whose target lies that close to a boundary go
// to the neighbouring key.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "cuda_launch.h"
#include "kernels/sampling.h"
#include "oracle.h"

namespace allot::kernels {
namespace {

using testing::CudaLaunch;
using testing::CudaTest;
using testing::Launch;
using testing::LaunchSpec;
using testing::Movement;

constexpr Estimator kSampled[] = {Estimator::kIid,  Estimator::kStrat, Estimator::kSys,
                                  Estimator::kProp, Estimator::kFlash, Estimator::kThreshold};

bool counts_samples(Estimator estimator) {
  return estimator != Estimator::kFlash && estimator != Estimator::kThreshold;
}

std::string describe(const LaunchSpec& spec, const testing::Sequence& sequence) {
  return std::string(name(spec.estimator)) + " " + std::string(name(spec.dtype)) + " head_dim " +
         std::to_string(spec.head_dim) + " heads " + std::to_string(spec.num_q_heads) + "/" +
         std::to_string(spec.num_kv_heads) + " page_size " + std::to_string(spec.page_size) + " length " +
         std::to_string(sequence.length) + " S " + std::to_string(sequence.budget);
}

// flash needs a sample in every tile.
void raise_budgets(LaunchSpec& spec, int32_t tile) {
  if (spec.estimator != Estimator::kFlash) return;
  for (testing::Sequence& sequence : spec.sequences) {
    if (sequence.budget > 0) sequence.budget = std::max(sequence.budget, tile_count(sequence.length, tile));
  }
}

// Compares the weight of every key of every sampled row; a row that contradicts the reference beyond rounding
// fails the test by name.
Movement compare_keys(Launch& launch, const LaunchSpec& spec, const LaunchBounds& bounds) {
  CudaLaunch cuda(launch, bounds);
  const std::vector<std::vector<double>> weights = launch.key_weights([&] { return cuda.run(); });
  const AttentionParams& p = launch.params;
  const std::vector<reference::Row> rows = testing::rows_of(p);
  std::vector<Movement> movements(rows.size());
  testing::parallel_for(static_cast<int64_t>(rows.size()), [&](int64_t i) {
    const reference::Row& row = rows[i];
    const testing::Sequence sequence{1, p.lengths[row.sequence], p.budgets[row.sequence]};
    const std::string where = describe(spec, sequence) + " tile " + std::to_string(p.method.tile) +
                              " sequence " + std::to_string(row.sequence) + " query " +
                              std::to_string(row.query) + " head " + std::to_string(row.head);
    const std::vector<double> probabilities = reference::softmax(reference::scores(p, row));
    const reference::Selection selection{p.method.estimator, sequence.budget, p.method.tile};
    const auto selected = reference::select(probabilities, selection, reference::draw_row(p, row));
    const std::span<const double> row_weights(weights[i].data(), probabilities.size());
    movements[i] = testing::movement(selection, probabilities, selected, row_weights);

    // A count below 1 / (2 roundoff) is read back exactly from the output's dtype, a larger one nearly.
    const double roundoff = p.dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
    double total = 0, blur = 0;
    for (size_t n = 0; n < weights[i].size(); ++n) {
      const double weight = weights[i][n];
      const double count = std::round(weight * sequence.budget);
      total += counts_samples(p.method.estimator) ? count : weight;
      if (count * roundoff >= 0.5) blur += count * roundoff;
      EXPECT_TRUE(weight >= 0 && (n < probabilities.size() || weight == 0))
          << where << " key " << n << " " << weight;
      if (weight > 0 && n < probabilities.size()) {
        EXPECT_GT(probabilities[n], 0) << where << " key " << n;
      }
    }
    if (counts_samples(p.method.estimator)) {
      EXPECT_NEAR(total, sequence.budget, blur) << where;
    } else {
      EXPECT_NEAR(total, 1, 6e-3) << where;
    }
    const bool tie = p.method.estimator == Estimator::kProp &&
                     testing::remainder_gap(selection, probabilities) < 1e-3 * sequence.budget;
    if (!tie) {
      EXPECT_LE(movements[i].mass, 1e-3) << where << ": a sample moved farther than to a neighbouring key";
    }
  });
  Movement total;
  for (const Movement& row : movements) total.add(row);
  return total;
}

class CudaSampling : public CudaTest {};

class CudaKeys : public CudaTest, public ::testing::WithParamInterface<Estimator> {
 protected:
  void report(const char* what, const Movement& total) {
    char text[160];
    std::snprintf(text, sizeof text, "%.5f %% of %.0f samples", 100 * total.moved / total.samples,
                  total.samples);
    std::printf("[ measured ] %s, %s: %s took another key than the reference\n",
                std::string(name(GetParam())).c_str(), what, text);
    RecordProperty(std::string("other_keys_") + what, text);
    EXPECT_LE(total.moved, 0.01 * total.samples) << what;
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaKeys, ::testing::ValuesIn(kSampled),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

// Every head dimension and group, page sizes in turn, a budget of its own for each sequence; with the
// launch's own largest budget and with room for far more samples, which other kernels may serve.
TEST_P(CudaKeys, AreTheReferencesForEveryShape) {
  struct Shape {
    int32_t head_dim, group, num_kv_heads, page_size;
  };
  Movement total;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const Shape& shape :
         {Shape{64, 1, 3, 16}, Shape{64, 4, 2, 64}, Shape{64, 16, 1, 272}, Shape{96, 2, 2, 32},
          Shape{96, 8, 1, 128}, Shape{128, 7, 2, 16}, Shape{128, 4, 2, 128}, Shape{128, 5, 1, 272},
          Shape{256, 3, 1, 64}, Shape{256, 16, 1, 32}, Shape{32, 2, 4, 16}}) {
      const int32_t tile = shape.group % 2 == 0 ? 64 : 128;
      // Small budgets alone, mixed ones, and mixed ones under a bound that allows far more.
      for (const int32_t max_budget : {8, 128, 65536}) {
        LaunchSpec spec{.sequences = {{1, 1, 8},
                                      {1, 17, 16},
                                      {1, 63, 1},
                                      {1, 64, 32},
                                      {1, 65, 128},
                                      {1, 97, 5},
                                      {1, 255, 8},
                                      {1, 256, 64},
                                      {1, 257, 13}},
                        .num_q_heads = shape.group * shape.num_kv_heads,
                        .num_kv_heads = shape.num_kv_heads,
                        .head_dim = shape.head_dim,
                        .page_size = shape.page_size,
                        .dtype = dtype,
                        .estimator = GetParam(),
                        .seed = static_cast<uint32_t>(shape.head_dim + shape.group)};
        for (testing::Sequence& sequence : spec.sequences)
          sequence.budget = std::min(sequence.budget, max_budget);
        raise_budgets(spec, tile);
        Launch launch(spec);
        launch.params.method.tile = tile;
        LaunchBounds bounds = testing::tight_bounds(launch.params);
        bounds.max_budget = std::max(bounds.max_budget, max_budget);
        total.add(compare_keys(launch, spec, bounds));
      }
    }
  }
  report("every shape", total);
}

TEST_P(CudaKeys, AreTheReferencesOnLongRows) {
  for (const double deviation : {0.5, 1.5, 4.0}) {
    Movement total;
    // Budgets that one warp holds, that need one block a row, and that are worth several.
    for (const int32_t largest : {17, 128, 2048}) {
      LaunchSpec spec{.sequences = {{1, 4097, 4097}, {1, 1023, 64}, {1, 700, 8}, {1, 2048, 600}},
                      .num_q_heads = largest == 128 ? 4 : 2,
                      .num_kv_heads = 1,
                      .head_dim = largest == 128 ? 64 : 256,
                      .page_size = 64,
                      .dtype = DType::kBFloat16,
                      .estimator = GetParam(),
                      .score_deviation = deviation};
      for (testing::Sequence& sequence : spec.sequences) sequence.budget = std::min(sequence.budget, largest);
      raise_budgets(spec, 256);
      Launch launch(spec);
      total.add(compare_keys(launch, spec, testing::tight_bounds(launch.params)));
    }
    report(deviation == 0.5 ? "long flat rows" : deviation == 1.5 ? "long rows" : "long peaked rows", total);
  }
}

// All scores equal: every key has the same share of the CDF.
TEST_P(CudaKeys, AreTheReferencesWhenAllScoresAreEqual) {
  LaunchSpec spec{.sequences = {{1, 1, 8}, {1, 17, 8}, {1, 100, 33}, {1, 257, 128}, {1, 1023, 16}},
                  .num_q_heads = 16,
                  .num_kv_heads = 2,
                  .head_dim = 64,
                  .dtype = DType::kFloat16,
                  .estimator = GetParam(),
                  .score_deviation = 0};
  raise_budgets(spec, 64);
  Launch launch(spec);
  launch.params.method.tile = 64;
  report("equal scores", compare_keys(launch, spec, testing::tight_bounds(launch.params)));
}

// Makes the score of one key that of query element 0 alone, times `factor`.
void set_score(Launch& launch, int64_t sequence, int32_t token, float factor) {
  for (int32_t head = 0; head < launch.params.num_kv_heads; ++head) {
    for (int32_t i = 1; i < launch.params.head_dim; ++i) launch.set_key(sequence, head, token, i, 0);
    launch.set_key(sequence, head, token, 0, factor);
  }
}

TEST_P(CudaKeys, AreOneKeyWhenItHoldsAllTheMass) {
  for (const int32_t winner : {0, 63, 64, 150, 299}) {
    LaunchSpec spec{.sequences = {{1, 300, 8}, {1, 300, 100}},
                    .num_q_heads = 8,
                    .num_kv_heads = 2,
                    .head_dim = 64,
                    .dtype = DType::kBFloat16,
                    .estimator = GetParam()};
    Launch launch(spec);
    launch.params.method.tile = 64;
    for (int64_t b = 0; b < 2; ++b) {
      for (int32_t head = 0; head < 8; ++head) launch.set_query(b, head, 0, 64);
      for (int32_t token = 0; token < 300; ++token) {
        for (int32_t head = 0; head < 2; ++head) launch.set_key(b, head, token, 0, 0);
      }
      set_score(launch, b, winner, 64);  // 512 above the others, whose weights vanish in float32
    }
    CudaLaunch cuda(launch);
    for (const std::vector<double>& weights : launch.key_weights([&] { return cuda.run(); })) {
      for (int32_t n = 0; n < 300; ++n)
        ASSERT_EQ(weights[n], n == winner ? 1 : 0) << "key " << n << " of " << winner;
    }
  }
}

// Keys whose scores lie far below the others, whole tiles of them too, have no mass: never taken, never NaN.
TEST_P(CudaKeys, OfVeryLowScoresAreNeverTaken) {
  for (const float low : {-512.0f, -3e4f}) {
    LaunchSpec spec{.sequences = {{1, 400, 8}, {1, 400, 64}},
                    .num_q_heads = 4,
                    .num_kv_heads = 1,
                    .head_dim = 64,
                    .dtype = DType::kBFloat16,
                    .estimator = GetParam()};
    Launch launch(spec);
    launch.params.method.tile = 64;
    const auto is_low = [](int32_t token) {
      return token < 128 || (token >= 192 && token < 256) || token % 3 == 0;
    };
    for (int64_t b = 0; b < 2; ++b) {
      for (int32_t head = 0; head < 4; ++head) launch.set_query(b, head, 0, 8);
      for (int32_t token = 0; token < 400; ++token) {
        if (is_low(token)) set_score(launch, b, token, low);  // scores of -512 and -30,000
      }
    }
    CudaLaunch cuda(launch);
    for (const std::vector<double>& weights : launch.key_weights([&] { return cuda.run(); })) {
      for (int32_t n = 0; n < 400; ++n) {
        ASSERT_TRUE(is_low(n) ? weights[n] == 0 : weights[n] >= 0) << "key " << n << " weight " << weights[n];
      }
      EXPECT_NEAR(std::accumulate(weights.begin(), weights.end(), 0.0), 1, 6e-3);
    }
    testing::expect_near_plain(testing::compare(launch.params, cuda.run()), 0.3, "low scores");
  }
}

// All scores a thousand below zero: only their differences count.
TEST_P(CudaKeys, DependOnScoreDifferencesOnly) {
  LaunchSpec spec{.sequences = {{1, 300, 128}, {1, 129, 128}},
                  .num_q_heads = 16,
                  .num_kv_heads = 1,
                  .head_dim = 64,
                  .dtype = DType::kBFloat16,
                  .estimator = GetParam()};
  Launch launch(spec);
  launch.params.method.tile = 64;
  for (int64_t b = 0; b < 2; ++b) {
    for (int32_t head = 0; head < 16; ++head) launch.set_query(b, head, 0, 64);
    for (int32_t token = 0; token < (b == 0 ? 300 : 129); ++token) launch.set_key(b, 0, token, 0, -128);
  }
  report("scores near -1024", compare_keys(launch, spec, testing::tight_bounds(launch.params)));
}

// Far more samples than keys, one sample, as many samples as keys. Counts reach 65536, which no dtype holds
// exactly: the distance of the distributions is bounded instead.
TEST_P(CudaKeys, FollowBudgetsFromOneToFarBeyondTheRow) {
  double moved = 0, rows = 0;
  for (const int32_t budget : {1, 17, 97, 2048, 65536}) {
    LaunchSpec spec{.sequences = {{1, 1, budget}, {1, 17, budget}, {1, 97, budget}, {1, 129, budget}},
                    .num_q_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = 64,
                    .dtype = DType::kFloat16,
                    .estimator = GetParam()};
    raise_budgets(spec, 64);
    Launch launch(spec);
    launch.params.method.tile = 64;
    CudaLaunch cuda(launch);
    const auto weights = launch.key_weights([&] { return cuda.run(); });
    for (const reference::Row& row : testing::rows_of(launch.params)) {
      const auto& actual = weights[testing::row_number(launch.params, row)];
      std::vector<double> expected(actual.size(), 0.0);
      for (const auto& [key, weight] : reference::select(launch.params, row)) expected[key] = weight;
      double distance = 0, total = 0;
      for (size_t n = 0; n < actual.size(); ++n) {
        distance += std::abs(actual[n] - expected[n]) / 2;
        total += actual[n];
      }
      moved += distance;
      rows += 1;
      EXPECT_NEAR(total, 1, 2e-3) << describe(spec, spec.sequences[row.sequence]);
      // A sample or two may go to the neighbour, and each key's boundary has moved by some 2^-14 where
      // samples lie densely; the rest is the output's rounding.
      EXPECT_LE(distance, 2.01 / budget + 0x1p-14 * static_cast<double>(actual.size()) + 1.5e-3)
          << describe(spec, spec.sequences[row.sequence]) << " head " << row.head;
    }
  }
  EXPECT_LE(moved, 0.01 * rows);
}

// A row with at least as many samples as keys is exact under `threshold`.
TEST_F(CudaSampling, ThresholdWithASampleForEveryKeyIsExact) {
  LaunchSpec spec{.sequences = {{1, 1, 1}, {1, 64, 64}, {1, 97, 128}, {1, 1000, 2048}, {40, 130, 130}},
                  .num_q_heads = 8,
                  .num_kv_heads = 2,
                  .head_dim = 128,
                  .dtype = DType::kBFloat16,
                  .estimator = Estimator::kThreshold};
  Launch launch(spec);
  const std::vector<double> out = testing::run_cuda(launch);
  launch.params.method.estimator = Estimator::kExact;
  testing::expect_near_plain(testing::compare(launch.params, out), 0, "threshold");
}

// Budget 0 gives zeros even where every cached element and query of the sequence is NaN, and its mates stay
// clean.
TEST_P(CudaKeys, OfABudgetOfZeroAreNone) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int32_t queries : {1, 3}) {
    LaunchSpec spec{
        .sequences = {{queries, 100, 8}, {queries, 200, 0}, {queries, 150, 0}, {queries, 70, kDenseBudget}},
        .num_q_heads = 8,
        .num_kv_heads = 2,
        .head_dim = 64,
        .dtype = DType::kBFloat16,
        .estimator = GetParam()};
    Launch launch(spec);
    launch.params.method.tile = 64;
    for (int32_t head = 0; head < 2; ++head) {
      for (int32_t token = 0; token < 150; ++token) {
        for (int32_t i = 0; i < 64; ++i) {
          launch.set_key(2, head, token, i, nan);
          launch.set_value(2, head, token, i, nan);
        }
      }
    }
    for (int32_t query = 2 * queries; query < 3 * queries; ++query) {
      for (int32_t i = 0; i < 8 * 64; ++i) launch.set_query(query, 0, i, nan);
    }
    const std::vector<double> out = testing::run_cuda(launch);
    const int64_t per_sequence = int64_t{queries} * 8 * 64;
    for (int64_t i = per_sequence; i < 3 * per_sequence; ++i) {
      ASSERT_EQ(out[i], 0) << "sequence " << i / per_sequence << " element " << i % per_sequence;
    }
    std::vector<reference::Row> rows = testing::rows_of(launch.params);
    std::erase_if(rows, [](const reference::Row& row) { return row.sequence == 1 || row.sequence == 2; });
    testing::expect_near_plain(testing::compare(launch.params, out, rows), 0.1,
                               std::string(name(GetParam())));
  }
}

// Any tile the contract of attention.h allows is either served as the reference does or refused by name.
TEST_F(CudaSampling, TilesOfOtherSizesAreServedOrRefusedByName) {
  for (const Estimator estimator : {Estimator::kProp, Estimator::kFlash}) {
    for (const int32_t tile : {1, 40, 100, 192, 1000, 1 << 30}) {
      LaunchSpec spec{.sequences = {{1, 300, 300}, {1, 97, 97}},
                      .num_q_heads = 4,
                      .num_kv_heads = 2,
                      .head_dim = 64,
                      .dtype = DType::kFloat16,
                      .estimator = estimator};
      Launch launch(spec);
      launch.params.method.tile = tile;
      try {
        compare_keys(launch, spec, testing::tight_bounds(launch.params));
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find(std::to_string(tile)), std::string::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace allot::kernels
