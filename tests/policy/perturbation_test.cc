#include "policy/perturbation.h"

#include <gmock/gmock.h>

#include <set>

namespace allot::policy {
namespace {

TEST(PerturbationDirection, OverACycleEveryTwoLayersAgreeOnceLessThanTheyDiffer) {
  for (const auto& [layers, cycle] : {std::pair{8, 7}, {28, 31}, {32, 31}, {2, 1}, {9, 15}}) {
    for (const int64_t start : {int64_t{0}, int64_t{5} * cycle}) {
      std::vector<std::vector<double>> directions;
      for (int64_t pair = start; pair < start + cycle; ++pair) {
        directions.push_back(perturbation_direction(layers, 3, pair));
      }
      for (size_t a = 0; a < static_cast<size_t>(layers); ++a) {
        for (size_t b = 0; b < a; ++b) {
          double agreement = 0;
          for (const auto& direction : directions) agreement += direction[a] * direction[b];
          ASSERT_EQ(agreement, -1) << layers << " layers, " << a << " and " << b << " from pair " << start;
        }
      }
    }
  }
}

TEST(PerturbationDirection, HasOneSignPerLayerAndIsBalancedWhereLayersAreAPowerOfTwo) {
  for (int64_t pair = 0; pair < 50; ++pair) {
    double sum = 0;
    for (const double sign : perturbation_direction(16, 7, pair)) {
      ASSERT_EQ(sign * sign, 1);
      sum += sign;
    }
    EXPECT_EQ(sum, 0);
  }
  EXPECT_EQ(perturbation_direction(1, 7, 0).size(), 1u);
}

TEST(PerturbationDirection, DiffersByCycleAndBySeed) {
  std::set<std::vector<double>> seen;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    for (int64_t cycle = 0; cycle < 5; ++cycle) seen.insert(perturbation_direction(28, seed, 31 * cycle));
  }
  EXPECT_EQ(seen.size(), 25u);
}

}  // namespace
}  // namespace allot::policy
