#include "evaluation/tiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "evaluation/spacing.h"
#include "kernels/sampling.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using kernels::Estimator;

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pointwise;
using ::testing::ThrowsMessage;

const std::vector<Estimator> kTiled = {Estimator::kSys, Estimator::kProp, Estimator::kFlash};

// One head whose weights and values are given: the scores of a query of 1 are the logarithms of the weights.
class GivenHead {
 public:
  GivenHead(const std::vector<double>& weights, std::vector<float> values) : values_(std::move(values)) {
    for (const double weight : weights) keys_.push_back(static_cast<float>(std::log(weight)));
    states_.layers = {{.query = query_, .key = keys_, .value = values_}};
    states_.heads = states_.kv_heads = states_.head_dim = 1;
    states_.keys = std::ssize(keys_);
  }
  GivenHead(const GivenHead&) = delete;

  VarianceSetting setting(std::vector<int64_t> samples, int64_t replicates) const {
    return {.samples = std::move(samples), .replicates = replicates, .seed = 5, .states = &states_};
  }

 private:
  std::vector<float> query_ = {1}, keys_, values_;
  AttentionStates states_;
};

VarianceSetting random_setting(std::vector<int64_t> samples) {
  return {.keys = 300,
          .head_dim = 8,
          .score_deviation = 3,
          .samples = std::move(samples),
          .heads = 5,
          .replicates = 40,
          .seed = 3};
}

const TileRow& row_of(const TileResults& results, Estimator estimator, int64_t tile, int64_t samples) {
  for (const TileRow& row : results.rows)
    if (row.estimator == estimator && row.tile == tile && row.samples == samples) return row;
  throw std::logic_error("no such row");
}

TEST(Tiles, SupportIsTheFewestTilesThatHoldAShare) {
  const std::vector<double> masses = {.05, .5, .15, .3};
  EXPECT_EQ(tile_support(masses, .4), 1);
  EXPECT_EQ(tile_support(masses, .5), 1);
  EXPECT_EQ(tile_support(masses, .8), 2);
  EXPECT_EQ(tile_support(std::vector<double>(15, .02), .8), 12) << "a sum of twelve ends a bit below .24";
  EXPECT_EQ(tile_support(masses, .9), 3);
  EXPECT_EQ(tile_support(masses, 1), 4);
  EXPECT_EQ(tile_support(std::vector<double>{2, 3}, .6), 1) << "a share of what there is";
  std::vector<std::string_view> classes;
  for (const int64_t tiles : {1, 2, 3, 4, 5, 8, 9, 1000})
    classes.push_back(kSupportClasses[support_class(tiles)]);
  EXPECT_THAT(classes, ElementsAre("1", "2", "3-4", "3-4", "5-8", "5-8", "9+", "9+"));
}

// Tiles of two keys weigh .1, .6, .3; the last tile of four keys has two.
TEST(Tiles, MassesAreSharesOfTheHeaviestTiles) {
  const GivenHead head({.05, .05, .35, .25, .2, .1}, {0, 1, 2, 3, 4, 5});
  const std::vector<int64_t> tiles = {2, 4};
  const TileResults results = measure_tiles(head.setting({3}, 2), kTiled, tiles);
  ASSERT_EQ(results.masses.size(), 2u);
  EXPECT_EQ(results.masses[0].tiles, 3);
  EXPECT_EQ(results.masses[0].support, 2);
  EXPECT_THAT(results.masses[0].classes, ElementsAre(0, 1, 0, 0, 0));
  EXPECT_THAT(results.masses[0].share,
              Pointwise(::testing::DoubleNear(1e-6), std::vector<double>{.6, .9, 1}));
  EXPECT_EQ(results.masses[1].tiles, 2);
  EXPECT_THAT(results.masses[1].share, Pointwise(::testing::DoubleNear(1e-6), std::vector<double>{.7, 1}));
}

// One row of each tile, whatever it weighs: the tile with a tenth of the weights has a third of the rows.
// With 3 samples prop gives the tiles of .1, .6 and .3 floor(.3, 1.8, .9) = 0, 1, 0 and the largest
// remainders to .9 and .8: 0, 2, 1.
TEST(Tiles, FlashReadsEveryTileAndPropThoseThatWeigh) {
  const GivenHead head({.05, .05, .35, .25, .2, .1}, {0, 1, 2, 3, 4, 5});
  const std::vector<int64_t> tiles = {2};
  const TileResults results = measure_tiles(head.setting({3}, 20), kTiled, tiles);
  const TileRow& flash = row_of(results, Estimator::kFlash, 2, 3);
  EXPECT_THAT(flash.share, Pointwise(::testing::DoubleNear(1e-9), std::vector<double>{1 / 3., 2 / 3., 1}));
  EXPECT_NEAR(flash.all->rows, 3, 1e-9);
  EXPECT_NEAR(flash.all->bias.value(), 0, 1e-9);
  const TileRow& prop = row_of(results, Estimator::kProp, 2, 3);
  EXPECT_NEAR(prop.share[1], 1, 1e-9) << "nothing of the lightest tile";
  EXPECT_LT(prop.share[0], 1);
  // Means of the tiles: .5, (.7 + .75) / .6, (.8 + .5) / .3. Exact .05 + 1.45 + 1.3 = 2.8.
  const double expected = 2 / 3. * (1.45 / .6) + 1 / 3. * (1.3 / .3);
  EXPECT_NEAR(prop.all->bias.value(), std::abs(expected - 2.8) / 2.8, 1e-6);
  EXPECT_EQ(row_of(results, Estimator::kSys, 2, 3).all->bias, std::nullopt);
}

// Algorithms 5, 7 and 8 in double precision with the draws of base/philox.h, written anew: counts of a tile
// are floor(S_t P_n + a) - floor(S_t P_{n-1} + a) for an offset a of the tile.
std::vector<double> brute_force(std::span<const double> weights, int64_t tile, Estimator estimator,
                                int64_t samples, const DrawRow& draws) {
  const auto keys = std::ssize(weights);
  const int64_t tiles = estimator == Estimator::kSys ? 1 : (keys + tile - 1) / tile;
  const int64_t width = estimator == Estimator::kSys ? keys : tile;
  std::vector<double> masses, fractions, factors(weights.size());
  std::vector<int64_t> budgets;
  int64_t left = samples;
  for (int64_t t = 0; t < tiles; ++t) {
    masses.push_back(
        std::accumulate(weights.begin() + t * width, weights.begin() + std::min(keys, (t + 1) * width), 0.0));
    const double share = static_cast<double>(samples) * masses.back();
    const bool flash = estimator == Estimator::kFlash;
    budgets.push_back(flash                          ? samples / tiles + (t < samples % tiles ? 1 : 0)
                      : estimator == Estimator::kSys ? samples
                                                     : static_cast<int64_t>(share));
    fractions.push_back(share - std::floor(share));
    left -= budgets.back();
  }
  for (; left > 0; --left) {
    const auto largest = std::ranges::max_element(fractions) - fractions.begin();
    ++budgets[static_cast<size_t>(largest)];
    fractions[static_cast<size_t>(largest)] = -1;
  }
  for (int64_t t = 0; t < tiles; ++t) {
    const auto place = static_cast<size_t>(t);
    if (budgets[place] == 0) continue;
    const auto count = static_cast<double>(budgets[place]);
    // The reference's target of sample s is (s + 1 - u) / S_t; its offset here is therefore u.
    const double offset = static_cast<double>(
        draw_uniform(draws, estimator == Estimator::kSys ? kernels::kRowDraw : static_cast<uint32_t>(t)));
    const double weight =
        estimator == Estimator::kFlash ? masses[place] / count : 1 / static_cast<double>(samples);
    double up_to = 0;
    for (int64_t n = t * width; n < std::min(keys, (t + 1) * width); ++n) {
      const double before = std::floor(count * up_to / masses[place] + offset);
      up_to += weights[static_cast<size_t>(n)];
      factors[static_cast<size_t>(n)] =
          weight * (std::floor(count * up_to / masses[place] + offset) - before);
    }
  }
  return factors;
}

TEST(Tiles, ErrorsAndCosinesAreThoseOfTheAlgorithms) {
  std::vector<double> weights;
  std::vector<float> values, normal(120);
  fill_normal(stream_draws(9, 0, 0, 0), normal);
  for (int n = 0; n < 60; ++n) weights.push_back(std::exp(2 * static_cast<double>(normal[size_t(n)])));
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= sum;
  values.assign(normal.begin() + 60, normal.end());
  const GivenHead head(weights, values);
  double exact = 0;
  for (size_t n = 0; n < weights.size(); ++n) exact += weights[n] * static_cast<double>(values[n]);

  const int64_t replicates = 30;
  const std::vector<int64_t> tiles = {8, 25};
  const TileResults results = measure_tiles(head.setting({9, 40}, replicates), kTiled, tiles);
  for (const Estimator estimator : kTiled) {
    for (const int64_t tile : tiles) {
      for (const int64_t samples : {9, 40}) {
        double error = 0, cosine = 0, rows = 0;
        for (int64_t i = 0; i < replicates; ++i) {
          DrawRow draws = stream_draws(5, 0, 2, i);
          draws.head = static_cast<uint32_t>(samples);
          const std::vector<double> factors = brute_force(weights, tile, estimator, samples, draws);
          double estimate = 0;
          for (size_t n = 0; n < factors.size(); ++n) {
            estimate += factors[n] * static_cast<double>(values[n]);
            rows += factors[n] > 0 ? 1.0 / static_cast<double>(replicates) : 0;
          }
          error += std::abs(estimate - exact) / std::abs(exact) / static_cast<double>(replicates);
          cosine += (estimate * exact > 0 ? 1.0 : -1.0) / static_cast<double>(replicates);
        }
        const TileRow& row = row_of(results, estimator, tile, samples);
        EXPECT_NEAR(row.all->error, error, 1e-5 * error)
            << kernels::name(estimator) << tile << " " << samples;
        EXPECT_NEAR(row.all->cosine, cosine, 1e-9);
        EXPECT_NEAR(row.all->rows, rows, 1e-9);
      }
    }
  }
}

// With one sample a tile flash is the sum of W_t V_i, i drawn from the tile by its weights: its squared error
// is the sum of W_t^2 times the variance within the tile. With two values a tile, the distance of tile t from
// its mean is known: for equal weights the estimate is off by +-W_t (a - b) / 2, so that the mean of |error|
// over two tiles is that of the four sums.
TEST(Tiles, FlashOfOneSampleATileHasTheErrorOfItsTiles) {
  const GivenHead head({.2, .2, .3, .3}, {1, 3, 2, 8});
  const std::vector<int64_t> tiles = {2};
  const std::vector<Estimator> flash = {Estimator::kFlash};
  const TileResults results = measure_tiles(head.setting({2}, 20'000), flash, tiles);
  const double exact = .4 * 2 + .6 * 5;
  const double near = .6 * 3 - .4 * 1, far = .6 * 3 + .4 * 1;
  EXPECT_NEAR(results.rows[0].all->error * exact, (near + far) / 2, .01);
}

TEST(Tiles, HeadsAreCountedByTheirSupport) {
  const std::vector<int64_t> tiles = {20};
  const TileResults results = measure_tiles(random_setting({60}), kTiled, tiles);
  for (const TileRow& row : results.rows) {
    int64_t heads = 0;
    double error = 0, rows = 0;
    for (size_t c = 0; c < kSupportClasses.size(); ++c) {
      const std::optional<Closeness>& some = row.by_support[c];
      EXPECT_EQ(some ? some->heads : 0, results.masses[0].classes[c]);
      if (!some) continue;
      heads += some->heads;
      error += some->error * static_cast<double>(some->heads);
      rows += some->rows * static_cast<double>(some->heads);
    }
    EXPECT_EQ(heads, 5);
    EXPECT_NEAR(row.all->error, error / 5, 1e-9);
    EXPECT_NEAR(row.all->rows, rows / 5, 1e-9);
    EXPECT_GT(row.all->error_standard_error.value(), 0);
    EXPECT_NEAR(row.share.back(), 1, 1e-9);
  }
}

// The finding of table 30: smaller tiles cost flash, which samples them all alike; sys knows no tiles.
TEST(Tiles, SmallerTilesCostFlashAndNotSys) {
  VarianceSetting setting = random_setting({64});
  setting.keys = 1024;
  setting.heads = 12;
  const std::vector<int64_t> tiles = {16, 256};
  const TileResults results = measure_tiles(setting, kTiled, tiles);
  EXPECT_GT(row_of(results, Estimator::kFlash, 16, 64).all->error,
            1.2 * row_of(results, Estimator::kFlash, 256, 64).all->error);
  EXPECT_EQ(row_of(results, Estimator::kSys, 16, 64).all->error,
            row_of(results, Estimator::kSys, 256, 64).all->error);
  EXPECT_GT(row_of(results, Estimator::kProp, 16, 64).all->bias.value(),
            row_of(results, Estimator::kProp, 256, 64).all->bias.value());
}

TEST(Tiles, FlashWithFewerSamplesThanTilesIsLeftOut) {
  const std::vector<int64_t> tiles = {30, 100};
  const TileResults results = measure_tiles(random_setting({4}), kTiled, tiles);
  EXPECT_EQ(row_of(results, Estimator::kFlash, 30, 4).all, std::nullopt);
  EXPECT_THAT(row_of(results, Estimator::kFlash, 30, 4).share, IsEmpty());
  EXPECT_TRUE(row_of(results, Estimator::kFlash, 100, 4).all);
  EXPECT_TRUE(row_of(results, Estimator::kProp, 30, 4).all);
}

TEST(Tiles, DependOnTheSeedAndNotOnThreads) {
  VarianceSetting setting = random_setting({16});
  const std::vector<int64_t> tiles = {64};
  setting.threads = 1;
  const double one = measure_tiles(setting, kTiled, tiles).rows[1].all->error;
  setting.threads = 3;
  EXPECT_EQ(measure_tiles(setting, kTiled, tiles).rows[1].all->error, one);
  setting.seed = 4;
  EXPECT_NE(measure_tiles(setting, kTiled, tiles).rows[1].all->error, one);
}

TEST(Tiles, RefusesWhatMeansNothing) {
  const VarianceSetting setting = random_setting({16});
  const std::vector<int64_t> tiles = {64}, none = {0};
  const std::vector<Estimator> exact = {Estimator::kExact}, joint = {Estimator::kJoint};
  EXPECT_THAT([&] { measure_tiles(setting, exact, tiles); }, ThrowsMessage<InvalidArgument>(Names("exact")));
  EXPECT_THAT([&] { measure_tiles(setting, joint, tiles); }, ThrowsMessage<InvalidArgument>(Names("joint")));
  EXPECT_THAT([&] { measure_tiles(setting, kTiled, none); },
              ThrowsMessage<InvalidArgument>(Names("tile", 0)));
  const std::atomic<bool> stop = true;
  EXPECT_THAT(measure_tiles(setting, kTiled, tiles, {}, &stop).rows, IsEmpty());
}

}  // namespace
}  // namespace allot::evaluation
