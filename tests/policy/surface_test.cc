#include "policy/surface.h"

#include <gmock/gmock.h>

#include <cmath>
#include <random>

namespace allot::policy {
namespace {

class EverySurfaceFamily : public ::testing::TestWithParam<std::string> {
 protected:
  static const SurfaceFamily& family() { return *find_surface_family(GetParam()); }
};

std::vector<std::string> family_names() {
  std::vector<std::string> names;
  for (const SurfaceFamily& family : surface_families()) names.emplace_back(family.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Surfaces, EverySurfaceFamily, ::testing::ValuesIn(family_names()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST_P(EverySurfaceFamily, AnInstanceIsAFunctionOfItsNumber) {
  const RatedSurface one = family().make(5), again = family().make(5), other = family().make(6);
  EXPECT_EQ(one.best_accuracy, again.best_accuracy);
  EXPECT_EQ(one.surface.types[0].penalties, again.surface.types[0].penalties);
  EXPECT_NE(one.surface.types[0].penalties, other.surface.types[0].penalties);
}

TEST_P(EverySurfaceFamily, NoExchangeOfTwoLayersAndNoRandomScheduleBeatsTheBest) {
  const RatedSurface rated = family().make(3);
  check_schedule(rated.best, rated.layers, 0, rated.total);
  EXPECT_DOUBLE_EQ(rated.surface.accuracy(rated.best), rated.best_accuracy);
  std::mt19937_64 random(8);
  std::uniform_int_distribution<size_t> layer(0, static_cast<size_t>(rated.layers) - 1);
  for (int round = 0; round < 300; ++round) {
    Schedule other = rated.best;
    for (int moves = round % 20; moves >= 0; --moves) {
      const size_t from = layer(random);
      if (other.samples[from] == 0) continue;
      --other.samples[from];
      ++other.samples[layer(random)];
    }
    ASSERT_LE(rated.surface.accuracy(other), rated.best_accuracy + 1e-9) << other.to_string();
  }
}

TEST_P(EverySurfaceFamily, UniformStartsAtFiveThirtyOrSixtyPercentWithAGapToClose) {
  constexpr double kUniform[] = {0.3, 0.6, 0.05};
  for (uint64_t instance = 0; instance < 3; ++instance) {
    const RatedSurface rated = family().make(instance);
    EXPECT_NEAR(rated.uniform_accuracy, kUniform[instance], 1e-6);
    const double gap = rated.best_accuracy - rated.uniform_accuracy;
    if (family().has_gap) {
      EXPECT_GE(gap, 0.15);
    } else {
      EXPECT_EQ(rated.best, even_schedule(rated.layers, rated.total, 0));
    }
  }
}

TEST_P(EverySurfaceFamily, TheAccuracyIsTheMeanChanceOverTheQuestions) {
  const RatedSurface rated = family().make(1);
  double sum = 0;
  for (uint32_t question = 0; question < 7473; ++question) sum += rated.surface.chance(rated.best, question);
  EXPECT_NEAR(sum / 7473, rated.best_accuracy, 0.02);
}

}  // namespace
}  // namespace allot::policy
