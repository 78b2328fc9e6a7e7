#include "policy/divergence_search.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "policy/draws.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

using Surface = std::function<double(const Schedule&)>;

constexpr int kLayers = 12;

// Layers differ by factors of up to 100, the first matters most; errors of early layers grow in later ones.
double growing(const Schedule& schedule) {
  double noise = 0;
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer) {
    const double weight = layer == 0 ? 10 : std::pow(10, std::sin(static_cast<double>(5 * layer)));
    const double own = weight / std::pow(std::max(schedule.samples[layer], 1), 1.5);
    noise = noise * (1 + 0.05 * own) + own;
  }
  return 0.01 * noise;
}

double equal(const Schedule& schedule) {
  double sum = 0;
  for (const int32_t samples : schedule.samples) sum += 0.01 / std::max(samples, 1);
  return sum;
}

// Standard normal, a function of its number.
double normal(uint64_t number) {
  DrawStream draws(1, number, draw_purpose("divergence-search-test"));
  return standard_normal(draws);
}

// The candidates of a search whose measurements have `noise` (standard deviation of the log), twice as much
// in common within a step.
std::vector<Schedule> search(const Surface& surface, const DivergenceSearchOptions& options, double noise,
                             DivergenceModel* model) {
  DivergenceSearch search(options, model);
  uint64_t number = 0;
  while (!search.done()) {
    const double common = 2 * noise * normal(number++);
    std::vector<double> divergences;
    for (const Schedule& schedule : search.ask()) {
      check_schedule(schedule, options.layers, options.floor, options.total);
      divergences.push_back(surface(schedule) * std::exp(common + noise * normal(number++)));
    }
    search.tell(divergences);
  }
  return search.candidates();
}

// The least divergence that exchanges of up to three samples lead to.
double best_of(const Surface& surface, Schedule schedule) {
  double best = surface(schedule);
  for (bool better = true; better;) {
    better = false;
    for (size_t from = 0; from < schedule.samples.size(); ++from) {
      for (size_t to = 0; to < schedule.samples.size(); ++to) {
        for (int32_t count = 1; count <= 3 && from != to && schedule.samples[from] > count; ++count) {
          Schedule other = schedule;
          other.samples[from] -= count;
          other.samples[to] += count;
          if (surface(other) >= best) continue;
          best = surface(other);
          schedule = other;
          better = true;
        }
      }
    }
  }
  return best;
}

// Of the way from the even schedule to the best one, in logs.
double gap_closed(int64_t total, uint64_t seed) {
  DivergenceModel model(kLayers, static_cast<double>(total) / kLayers);
  const std::vector<Schedule> found = search(
      growing, {.layers = kLayers, .total = total, .seed = seed, .steps = 20, .pairs = 6}, 0.1, &model);
  const double even = growing(found.front());
  double least = even;
  for (const Schedule& schedule : found) least = std::min(least, growing(schedule));
  const double best = std::min(best_of(growing, found.front()), best_of(growing, found.back()));
  return std::log(even / least) / std::log(even / best);
}

TEST(DivergenceSearch, ClosesTheGapInAFewHundredMeasurements) {
  for (const uint64_t seed : {1, 2, 3}) {
    EXPECT_GT(gap_closed(8 * kLayers, seed), 0.93) << seed;
    EXPECT_GT(gap_closed(4 * kLayers, seed), 0.93) << seed;
  }
}

TEST(DivergenceSearch, WorksWhereLayersHaveOneOrTwoSamples) {
  for (const uint64_t seed : {1, 2, 3}) EXPECT_GT(gap_closed(2 * kLayers, seed), 0.85) << seed;
}

TEST(DivergenceSearch, StaysNearTheEvenScheduleWhereLayersAreAlike) {
  DivergenceModel model(kLayers, 4);
  const std::vector<Schedule> found = search(
      equal, {.layers = kLayers, .total = 4 * kLayers, .seed = 1, .steps = 20, .pairs = 6}, 0.05, &model);
  for (const Schedule& schedule : found)
    EXPECT_LT(equal(schedule), 1.03 * equal(found.front())) << schedule.to_string();
}

TEST(DivergenceSearch, ASecondTotalStartsFromWhatTheFirstOneLearned) {
  DivergenceModel model(kLayers, 8);
  search(growing, {.layers = kLayers, .total = 8 * kLayers, .seed = 1, .steps = 20, .pairs = 6}, 0.05,
         &model);
  const Schedule start = model.best(5 * kLayers, 1);
  const Schedule even = even_schedule(kLayers, 5 * kLayers, 1);
  EXPECT_LT(std::log(growing(start) / growing(even)), 0.9 * std::log(best_of(growing, even) / growing(even)));
  const DivergenceSearch next({.layers = kLayers, .total = 5 * kLayers, .seed = 1}, &model, start);
  EXPECT_THAT(next.candidates(), testing::ElementsAre(even, start));
}

TEST(DivergenceSearch, AskIsTheSameUntilTold) {
  DivergenceModel model(3, 4);
  DivergenceSearch search({.layers = 3, .total = 12, .seed = 1, .steps = 2, .pairs = 2}, &model);
  const std::vector<Schedule> first = search.ask();
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(search.ask(), first);
  search.tell(std::vector{0.1, 0.2, 0.3, 0.4});
  EXPECT_NE(search.ask(), first);
  EXPECT_EQ(search.step(), 1);
  search.tell(std::vector{0.1, 0.2, 0.3, 0.4});
  EXPECT_TRUE(search.done());
}

TEST(DivergenceSearch, OneScheduleAloneNeedsNoSearch) {
  DivergenceModel model(3, 1);
  const DivergenceSearch search({.layers = 3, .total = 3}, &model);
  EXPECT_TRUE(search.done());
  EXPECT_THAT(search.candidates(), testing::ElementsAre(uniform_schedule(3, 1)));
}

TEST(DivergenceSearch, LayersMayGetNothingWhereTheFloorIsNone) {
  const Surface first_alone = [](const Schedule& schedule) {
    return 0.1 / (0.2 + schedule.samples[0]) + 1e-4 * (5 - std::min(schedule.samples[1], 5));
  };
  DivergenceModel model(4, 2);
  const std::vector<Schedule> found = search(
      first_alone, {.layers = 4, .total = 8, .floor = 0, .seed = 1, .steps = 15, .pairs = 4}, 0.02, &model);
  int32_t most = 0;
  for (const Schedule& schedule : found) most = std::max(most, schedule.samples[0]);
  EXPECT_GE(most, 6);
}

TEST(DivergenceSearch, RefusesOptionsThatDoNotFit) {
  DivergenceModel model(3, 4);
  const auto refusal = [&](const DivergenceSearchOptions& options, const std::optional<Schedule>& start) {
    return message_of<InvalidArgument>([&] { const DivergenceSearch search(options, &model, start); });
  };
  EXPECT_THAT(refusal({.layers = 3, .total = 12, .steps = 0}, {}), Names(0, 8));
  EXPECT_THAT(refusal({.layers = 3, .total = 2}, {}), Names(2, 3));
  EXPECT_THAT(refusal({.layers = 3, .total = 12}, Schedule{{4, 4, 5}}), Names(13, 12));
}

}  // namespace
}  // namespace allot::policy
