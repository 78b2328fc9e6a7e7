// What the learners promise about learning, on landscapes calibrated to the published case and to the
// embedded model. Seeds are fixed, so the numbers are; the bounds leave room for another compiler's rounding,
// docs/policy.md has the values.
#include "policy/simulation.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "policy/rehearsal.h"

namespace allot::policy {
namespace {

constexpr int kSeeds = 20;

struct GapClosed {
  double mean = 0;   // of the way from uniform to the best schedule
  double worst = 0;  // over the seeds
};

// The share of the uniform-to-best gap that the exported schedule closes after each checkpoint. [checkpoints]
std::vector<GapClosed> gap_closed(const Landscape& landscape, PolicyConfig config, RehearsalOptions options,
                                  int seeds = kSeeds) {
  config.layers = static_cast<int>(landscape.sensitivities.size());
  config.total = 8 * config.layers;
  options.episodes = options.checkpoints.back();
  const double uniform = landscape.accuracy(uniform_schedule(config.layers, 8));
  const double best = landscape.accuracy(landscape.best(config.total, config.floor));
  std::vector<GapClosed> closed(options.checkpoints.size(), {0, 1});
  for (int seed = 0; seed < seeds; ++seed) {
    config.seed = options.seed = static_cast<uint64_t>(seed);
    const std::vector<double> curve = rehearse(*make_policy(config), landscape, options);
    for (size_t point = 0; point < curve.size(); ++point) {
      const double gap = (curve[point] - uniform) / (best - uniform);
      closed[point].mean += gap / seeds;
      closed[point].worst = std::min(closed[point].worst, gap);
    }
  }
  return closed;
}

TEST(Landscape, ReproducesWhatItWasCalibratedTo) {
  const Landscape paper = paper_landscape();
  EXPECT_NEAR(paper.accuracy(uniform_schedule(28, 8)), 0.5246, 1e-6);
  EXPECT_NEAR(paper.accuracy(paper.best(224, 1)), 0.775, 1e-6);
  EXPECT_NEAR(paper.accuracy(uniform_schedule(28, 1024)), 0.8875, 0.002);
  const Landscape tiny = tiny_landscape();
  EXPECT_NEAR(tiny.accuracy(uniform_schedule(8, 8)), 0.14, 1e-6);
  EXPECT_NEAR(tiny.accuracy(tiny.best(64, 1)), 0.95, 1e-6);
  // Measured on the real model, not used in the calibration.
  EXPECT_NEAR(tiny.accuracy(parse_schedule("33,8,7,3,4,2,3,4")), 0.915, 0.04);
  EXPECT_LT(tiny.accuracy(parse_schedule("1,16,16,16,16,16,16,16")), 0.01);
}

TEST(Landscape, BestBeatsEveryExchangeOfOneSample) {
  for (const Landscape& landscape : {paper_landscape(), steep_landscape(), tiny_landscape()}) {
    const auto layers = landscape.sensitivities.size();
    const Schedule best = landscape.best(static_cast<int64_t>(8 * layers), 1);
    EXPECT_EQ(best.total(), static_cast<int64_t>(8 * layers));
    for (size_t from = 0; from < layers; ++from) {
      for (size_t to = 0; to < layers; ++to) {
        if (from == to || best.samples[from] == 1) continue;
        Schedule other = best;
        --other.samples[from];
        ++other.samples[to];
        ASSERT_GE(landscape.noise(other), landscape.noise(best) - 1e-12);
      }
    }
  }
}

TEST(Landscape, ChanceAveragedOverTheQuestionsIsTheAccuracy) {
  const Landscape landscape = paper_landscape();
  const Schedule schedule = uniform_schedule(28, 8);
  double sum = 0;
  for (uint32_t question = 0; question < 7473; ++question) sum += landscape.chance(schedule, question);
  EXPECT_NEAR(sum / 7473, landscape.accuracy(schedule), 0.01);
}

TEST(Landscape, CalibrationRefusesAccuraciesOutOfOrder) {
  EXPECT_THROW(calibrate({.sensitivities = {1, 2},
                          .total = 16,
                          .dense = 0.9,
                          .uniform_accuracy = 0.5,
                          .best_accuracy = 0.4}),
               InvalidArgument);
}

TEST(PairsLearning, ClosesTheGapOfThePublishedCaseIn500Episodes) {
  const auto closed = gap_closed(paper_landscape(), {.name = "pairs"}, {.checkpoints = {100, 250, 500}});
  EXPECT_GT(closed[0].mean, 0.70);
  EXPECT_GT(closed[1].mean, 0.88);
  EXPECT_GT(closed[2].mean, 0.93);
  EXPECT_GT(closed[2].worst, 0.85);
}

TEST(PairsLearning, ClosesTheGapWhereUniformNearlyFails) {
  const auto closed = gap_closed(steep_landscape(), {.name = "pairs"}, {.checkpoints = {100, 250}});
  EXPECT_GT(closed[0].mean, 0.85);
  EXPECT_GT(closed[1].mean, 0.93);
  EXPECT_GT(closed[1].worst, 0.88);
}

TEST(PairsLearning, ClosesTheGapOfTheEmbeddedModelIn50Episodes) {
  const auto closed = gap_closed(tiny_landscape(), {.name = "pairs"}, {.checkpoints = {50, 100, 250}});
  EXPECT_GT(closed[0].mean, 0.95);
  EXPECT_GT(closed[1].worst, 0.93);
  EXPECT_GT(closed[2].mean, 0.98);
}

TEST(PairsLearning, SurvivesLateUnorderedAndLostOutcomes) {
  const RehearsalOptions options{.in_flight = 32, .loss = 0.1, .checkpoints = {100, 300, 600}};
  EXPECT_GT(gap_closed(paper_landscape(), {.name = "pairs"}, options)[2].mean, 0.90);
  EXPECT_GT(gap_closed(steep_landscape(), {.name = "pairs"}, options)[2].worst, 0.90);
  const auto tiny = gap_closed(tiny_landscape(), {.name = "pairs"}, options);
  EXPECT_GT(tiny[0].worst, 0.70);
  EXPECT_GT(tiny[1].worst, 0.95);
  EXPECT_GT(tiny[2].worst, 0.97);
}

TEST(PairsLearning, LeavesAPlateauWhereNearlyEveryRewardIsZero) {
  const Landscape plateau = calibrate({.sensitivities = tiny_landscape().sensitivities,
                                       .total = 64,
                                       .dense = 0.999,
                                       .uniform_accuracy = 0.01,
                                       .best_accuracy = 0.8});
  const auto closed = gap_closed(plateau, {.name = "pairs"}, {.checkpoints = {100, 250}});
  EXPECT_GT(closed[0].worst, 0.75);
  EXPECT_GT(closed[1].worst, 0.90);
}

TEST(PairsLearning, LosesLittleWhereUniformIsAlreadyTheBest) {
  Landscape flat = paper_landscape();
  const double published_noise = flat.noise(uniform_schedule(28, 8));
  flat.sensitivities.assign(28, 1.0);
  flat.midpoint += std::log(flat.noise(uniform_schedule(28, 8)) / published_noise);
  ASSERT_NEAR(flat.accuracy(uniform_schedule(28, 8)), 0.5246, 1e-6);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto policy = make_policy({.name = "pairs", .layers = 28, .total = 224, .seed = seed});
    for (const double accuracy :
         rehearse(*policy, flat, {.episodes = 500, .seed = seed, .checkpoints = {50, 100, 250, 500}})) {
      EXPECT_GT(accuracy, 0.45) << "seed " << seed;
    }
  }
}

TEST(Algorithm1Learning, ClosesAboutHalfOfTheGapOfThePublishedCaseIn5000Episodes) {
  const auto closed =
      gap_closed(paper_landscape(), {.name = "reinforce-paper", .floor = 0}, {.checkpoints = {500, 5000}}, 5);
  EXPECT_LT(closed[0].mean, 0.20);
  EXPECT_GT(closed[1].mean, 0.40);
  EXPECT_LT(closed[1].mean, 0.65);
}

TEST(Algorithm1Learning, TheCorrectedVariantIsNoWorseWhenOutcomesAreLate) {
  const RehearsalOptions options{.in_flight = 100, .checkpoints = {3000}};
  const double published = gap_closed(paper_landscape(), {.name = "reinforce-paper"}, options, 5)[0].mean;
  const double corrected = gap_closed(paper_landscape(), {.name = "reinforce"}, options, 5)[0].mean;
  EXPECT_GT(corrected, published - 0.01);
}

}  // namespace
}  // namespace allot::policy
