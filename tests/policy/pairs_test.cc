#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <numeric>

#include "policy/multinomial.h"
#include "policy/perturbation.h"
#include "policy/policy.h"

namespace allot::policy {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;
using ::testing::Pointwise;

PolicyConfig small_config() {
  return {.name = "pairs",
          .layers = 8,
          .total = 64,
          .seed = 4,
          .max_policy_lag = 1,
          .parameters = {{"pairs_per_update", 2}}};
}

// Tells both halves of pairs first, first + 1, … for one update, with equal rewards.
void make_update(Policy& policy, int64_t first_pair) {
  for (int64_t number = 2 * first_pair; number < 2 * first_pair + 4; ++number) policy.tell({number, 0.5});
}

TEST(Pairs, HalvesShareAGroupAndLieSymmetricallyAroundThePolicy) {
  const auto policy = make_policy(small_config());
  const std::vector<Proposal> asked = policy->ask(20);
  for (size_t k = 0; k < asked.size(); ++k) {
    EXPECT_EQ(asked[k].number, static_cast<int64_t>(k));
    EXPECT_EQ(asked[k].group, static_cast<int64_t>(k / 2));
    EXPECT_EQ(asked[k].log_prob, 0);
    std::vector<double> logits = perturbation_direction(8, 4, asked[k].group);
    for (double& logit : logits) logit *= k % 2 == 0 ? 1.25 : -1.25;
    EXPECT_EQ(asked[k].schedule, apportion(softmax(logits), 64, 1));
  }
}

TEST(Pairs, AnUpdateFollowsTheMeanSlopeOfItsPairs) {
  const PolicyConfig config = small_config();
  const auto policy = make_policy(config);
  policy->ask(4);
  policy->tell({0, 0.75});
  policy->tell({1, 0.25});
  policy->tell({3, 0.5});
  EXPECT_EQ(policy->version(), 0);
  policy->tell({2, 0.25});
  ASSERT_EQ(policy->version(), 1);
  const double gain = 20 / std::pow(6, 0.8);
  const auto first = perturbation_direction(8, 4, 0);
  const auto second = perturbation_direction(8, 4, 1);
  std::vector<double> theta(8);
  for (size_t layer = 0; layer < 8; ++layer) {
    theta[layer] = gain / 2 * (0.5 * first[layer] - 0.25 * second[layer]) / (2 * 1.25);
  }
  EXPECT_THAT(policy->describe().per_layer, Pointwise(DoubleNear(1e-12), softmax(theta)));
}

TEST(Pairs, AveragingRecommendsTheMeanOfAllLogitsAndLearnsAsWithoutIt) {
  PolicyConfig config = small_config();
  const auto last = make_policy(config);
  config.parameters["averaging"] = 1;
  auto averaged = make_policy(config);
  std::vector<double> sum(8);
  double weights = 0;
  const auto rewards = std::array{0.9, 0.1, 0.6, 0.3, 0.2, 0.4, 0.8, 0.1, 0.5, 0.7, 0.3, 0.3};
  for (int64_t number = 0; number < 12; ++number) {
    for (Policy* policy : {last.get(), averaged.get()}) {
      policy->ask(1);
      policy->tell({number, rewards[static_cast<size_t>(number)]});
    }
    ASSERT_EQ(averaged->describe().per_layer, last->describe().per_layer);
    if (number % 4 != 3) continue;
    // A share's logarithm is its logit but for a constant, which no share of a mean depends on either.
    const auto update = static_cast<double>(last->version());
    weights += update;
    for (size_t layer = 0; layer < 8; ++layer)
      sum[layer] += update * std::log(last->describe().per_layer[layer]);
    std::vector<double> mean = sum;
    for (double& logit : mean) logit /= weights;
    EXPECT_EQ(averaged->recommend(), apportion(softmax(mean), 64, 1)) << "after update " << update;
    averaged = restore_policy(config, averaged->save());
  }
  EXPECT_NE(averaged->recommend(), last->recommend());
}

TEST(Pairs, APairOfDivergencesClimbsAQuarterOfMinusTheirLog) {
  const auto policy = make_policy(small_config());
  policy->ask(4);
  for (const int64_t number : {0, 1, 2, 3})
    policy->tell({.number = number, .reward = number == 0 ? 0.01 : 0.02, .kind = RewardKind::kDivergence});
  ASSERT_EQ(policy->version(), 1);
  const auto direction = perturbation_direction(8, 4, 0);
  std::vector<double> theta(8);
  for (size_t layer = 0; layer < 8; ++layer)
    theta[layer] = 20 / std::pow(6, 0.8) / 2 * std::log(2) / 4 * direction[layer] / (2 * 1.25);
  EXPECT_THAT(policy->describe().per_layer, Pointwise(DoubleNear(1e-12), softmax(theta)));
}

TEST(Pairs, AHalfAskedLaterBelongsToThePolicyThatDrewItsPair) {
  const auto policy = make_policy(small_config());
  policy->ask(4);
  const Proposal first = policy->ask(1)[0];
  policy->tell({0, 1.0});
  policy->tell({1, 0.0});
  policy->tell({2, 1.0});
  policy->tell({3, 0.0});
  ASSERT_EQ(policy->version(), 1);
  const Proposal second = policy->ask(1)[0];
  EXPECT_EQ(second.group, first.group);
  EXPECT_EQ(second.policy_version, 0);
  EXPECT_EQ(policy->ask(1)[0].policy_version, 1);
}

TEST(Pairs, APairWithOneHalfGivenUpIsDropped) {
  const auto policy = make_policy(small_config());
  policy->ask(8);
  EXPECT_EQ(policy->tell({0, 1.0}), TellResult::kLearned);
  policy->give_up(1);
  policy->give_up(2);
  EXPECT_EQ(policy->tell({3, 1.0}), TellResult::kStale);
  make_update(*policy, 2);
  EXPECT_EQ(policy->version(), 1);
  EXPECT_THAT(policy->describe().per_layer,
              Each(DoubleNear(0.125, 1e-15)));  // rewards of the dropped pairs left no trace
  for (int64_t number = 0; number < 4; ++number) {
    EXPECT_EQ(policy->tell({number, 1.0}), TellResult::kDuplicate) << number;
  }
}

TEST(Pairs, ALatePairIsLearnedFromWithinTheLagAndStaleBeyondIt) {
  const auto policy = make_policy(small_config());
  policy->ask(20);
  make_update(*policy, 0);
  EXPECT_EQ(policy->tell({18, 0.5}), TellResult::kLearned);
  EXPECT_EQ(policy->tell({16, 1.0}), TellResult::kLearned);
  EXPECT_EQ(policy->tell({17, 0.0}), TellResult::kLearned);  // lag 1: learned
  EXPECT_EQ(policy->tell({4, 0.5}), TellResult::kLearned);
  EXPECT_EQ(policy->tell({5, 0.5}), TellResult::kLearned);
  ASSERT_EQ(policy->version(), 2);
  EXPECT_NE(policy->describe().per_layer, std::vector<double>(8, 0.125));
  EXPECT_EQ(policy->tell({19, 0.5}), TellResult::kStale);  // its mate came in time, the pair did not
  EXPECT_EQ(policy->tell({6, 0.5}), TellResult::kStale);
}

TEST(Pairs, ALatePairCountsTheLessTheFurtherThePolicyMoved) {
  PolicyConfig config = small_config();
  config.parameters["pairs_per_update"] = 1;
  config.parameters["gain"] = 6;
  const auto policy = make_policy(config);
  policy->ask(4);
  policy->tell({0, 1.0});
  policy->tell({1, 0.0});
  const double first_gain = 6 / std::pow(6, 0.8);
  const double move = first_gain / 2.5;
  policy->tell({2, 1.0});
  policy->tell({3, 0.0});
  const double second_gain = 6 / std::pow(7, 0.8);
  const double weight = 1 / (1 + (move / 1.25) * (move / 1.25));
  const auto first = perturbation_direction(8, 4, 0);
  const auto second = perturbation_direction(8, 4, 1);
  std::vector<double> theta(8);
  for (size_t layer = 0; layer < 8; ++layer) {
    theta[layer] = move * first[layer] + weight * second_gain / 2.5 * second[layer];
  }
  EXPECT_THAT(policy->describe().per_layer, Pointwise(DoubleNear(1e-12), softmax(theta)));
}

TEST(Pairs, NoLayerLeavesTheReachOfItsPerturbations) {
  PolicyConfig config = small_config();
  config.parameters["gain"] = 1000;
  const auto policy = make_policy(config);
  for (int round = 0; round < 50; ++round) {
    for (const Proposal& proposal : policy->ask(4)) {
      policy->tell({proposal.number, proposal.schedule.samples[0] > 8 ? 1.0 : 0.0});
    }
    const std::vector<double> shares = policy->describe().per_layer;
    EXPECT_GE(*std::ranges::min_element(shares), 0.45 / 56) << "round " << round;
    EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1, 1e-12);
  }
  EXPECT_GT(policy->describe().per_layer[0], 0.8);
}

TEST(Pairs, RewardsThatAreAllEqualMoveNothing) {
  const auto policy = make_policy(small_config());
  for (int round = 0; round < 20; ++round) {
    for (const Proposal& proposal : policy->ask(4)) policy->tell({proposal.number, 0.0});
  }
  EXPECT_EQ(policy->version(), 20);
  EXPECT_EQ(policy->recommend(), uniform_schedule(8, 8));
}

}  // namespace
}  // namespace allot::policy
