#include "policy/reinforce.h"

#include <gmock/gmock.h>

#include <cmath>

#include "policy/multinomial.h"

namespace allot::policy {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

PolicyConfig small_config(const char* name) {
  return {.name = name,
          .layers = 3,
          .total = 12,
          .floor = 0,
          .seed = 9,
          .parameters = {{"episodes_per_update", 3}}};
}

TEST(ReinforcePaper, MakesExactlyTheStepOfAlgorithm1) {
  PolicyConfig config = small_config("reinforce-paper");
  config.parameters["learning_rate"] = 0.05;
  const auto policy = make_policy(config);
  const std::vector<Proposal> asked = policy->ask(3);
  const std::vector<double> rewards{0.25, 0.75, 0.5};
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(policy->tell({asked[k].number, rewards[k]}), TellResult::kLearned);
  ASSERT_EQ(policy->version(), 1);

  // theta = alpha * 1/K sum_k (r - b)(s - N p) from theta = 0, where b = 0.5 and N p = 4.
  std::vector<double> theta(3);
  for (size_t layer = 0; layer < 3; ++layer) {
    for (size_t k = 0; k < 3; ++k) {
      theta[layer] += 0.05 / 3 * (rewards[k] - 0.5) * (asked[k].schedule.samples[layer] - 4.0);
    }
  }
  EXPECT_THAT(policy->describe().per_layer, Pointwise(DoubleNear(1e-15), softmax(theta)));
  EXPECT_NE(policy->describe().per_layer[0], policy->describe().per_layer[1]);
}

TEST(ReinforcePaper, UpdatesWhenTheOutcomesOfAnUpdateHaveArrivedWhateverTheirOrder) {
  const auto policy = make_policy(small_config("reinforce-paper"));
  policy->ask(7);
  policy->tell({6, 1.0});
  policy->tell({0, 0.0});
  EXPECT_EQ(policy->version(), 0);
  policy->give_up(1);
  EXPECT_EQ(policy->version(), 0);
  policy->tell({3, 0.5});
  EXPECT_EQ(policy->version(), 1);
}

TEST(ReinforcePaper, EqualRewardsLeaveThePolicyWhereItIs) {
  const auto policy = make_policy(small_config("reinforce-paper"));
  for (const Proposal& proposal : policy->ask(9)) policy->tell({proposal.number, 0.5});
  EXPECT_EQ(policy->version(), 3);
  EXPECT_THAT(policy->describe().per_layer, Pointwise(DoubleNear(1e-15), std::vector<double>(3, 1.0 / 3)));
}

TEST(Reinforce, DealsTheFloorOutBeforeItDraws) {
  PolicyConfig config = small_config("reinforce");
  config.floor = 2;
  const auto policy = make_policy(config);
  for (const Proposal& proposal : policy->ask(50)) {
    EXPECT_NO_THROW(check_schedule(proposal.schedule, 3, 2, 12));
    std::vector<int32_t> counts = proposal.schedule.samples;
    for (int32_t& count : counts) count -= 2;
    EXPECT_EQ(proposal.log_prob, multinomial_log_prob(counts, std::vector<double>(3)));
  }
}

TEST(Reinforce, CorrectedGradientIsThePublishedOneTimesKOverKMinusOneWhenNothingIsLate) {
  const std::vector<double> logits{0.5, -0.5, 0.1};
  std::vector<ReinforceSample> samples{
      {{5, 2, 5}, 0.2, 0}, {{9, 1, 2}, 0.9, 0}, {{3, 3, 6}, 0.4, 0}, {{4, 4, 4}, 0.1, 0}};
  for (auto& sample : samples) sample.log_prob = multinomial_log_prob(sample.counts, logits);
  std::vector<double> published = paper_gradient(samples, logits);
  for (double& entry : published) entry *= 4.0 / 3;
  EXPECT_THAT(corrected_gradient(samples, logits), Pointwise(DoubleNear(1e-12), published));
}

// Every pair of draws of 2 samples over 2 layers, weighted by its chance under the policy that drew it,
// against the derivative of the expected reward under the present policy.
TEST(Reinforce, CorrectedGradientOfLateSamplesWithoutABaselineIsTheGradientOfTheExpectedReward) {
  const std::vector<double> old_logits{0.8, 0.0};
  const std::vector<double> logits{0.0, 0.3};
  const auto reward = [](int32_t first) { return 0.1 + 0.4 * first * first / 4.0; };
  const auto expected_reward = [&](const std::vector<double>& at) {
    double sum = 0;
    for (int32_t first = 0; first <= 2; ++first) {
      sum += std::exp(multinomial_log_prob(std::vector{first, 2 - first}, at)) * reward(first);
    }
    return sum;
  };
  std::vector<double> mean(2);
  for (int32_t first = 0; first <= 2; ++first) {
    const std::vector<int32_t> counts{first, 2 - first};
    const double log_prob = multinomial_log_prob(counts, old_logits);
    // The other sample has reward 0, so its baseline is 0; half the gradient is this sample's.
    const std::vector<ReinforceSample> samples{{counts, reward(first), log_prob}, {{1, 1}, 0, log_prob}};
    const std::vector<double> with_other = corrected_gradient(samples, logits);
    const std::vector<double> of_other = [&] {
      const double other_weight = std::exp(multinomial_log_prob(std::vector{1, 1}, logits) - log_prob);
      std::vector<double> score = multinomial_score(std::vector{1, 1}, logits);
      for (double& entry : score) entry *= other_weight * (0 - reward(first)) / 2;
      return score;
    }();
    for (size_t layer = 0; layer < 2; ++layer) {
      mean[layer] += std::exp(log_prob) * 2 * (with_other[layer] - of_other[layer]);
    }
  }
  constexpr double kStep = 1e-5;
  EXPECT_NEAR(mean[0], (expected_reward({kStep, 0.3}) - expected_reward({-kStep, 0.3})) / (2 * kStep), 1e-8);
  EXPECT_NEAR(mean[1], (expected_reward({0, 0.3 + kStep}) - expected_reward({0, 0.3 - kStep})) / (2 * kStep),
              1e-8);
}

// All ways in which 3 draws fall on 3 layers.
std::vector<std::vector<int32_t>> all_counts() {
  std::vector<std::vector<int32_t>> all;
  for (int32_t first = 0; first <= 3; ++first) {
    for (int32_t second = 0; first + second <= 3; ++second)
      all.push_back({first, second, 3 - first - second});
  }
  return all;
}

// An update of three samples, each drawn by a policy of its own, the oldest far away: the mean of the
// gradient over all 1,000 outcomes, each with its chance, is the derivative of the expected reward at the
// present policy. Leaving a sample out of its own baseline is what makes that exact; the weights are what
// makes it so for late samples.
TEST(Reinforce, CorrectedGradientOfLateSamplesIsUnbiasedOverAllOutcomesBaselineIncluded) {
  const std::vector<std::vector<int32_t>> outcomes = all_counts();
  ASSERT_EQ(outcomes.size(), 10u);
  const std::vector<double> logits{0.2, -0.3, 0.6};
  const std::vector<std::vector<double>> drawn_by{{1.5, 0.0, -1.0}, {0.0, 0.0, 0.0}, logits};
  const auto reward = [](const std::vector<int32_t>& counts) {
    return 0.9 - 0.2 * counts[0] + 0.05 * counts[1] * counts[2] - 0.03 * counts[1] * counts[1];
  };
  const auto expected_reward = [&](const std::vector<double>& at) {
    double sum = 0;
    for (const auto& counts : outcomes) sum += std::exp(multinomial_log_prob(counts, at)) * reward(counts);
    return sum;
  };
  std::vector<double> mean(3), unweighted(3);
  double total = 0;
  for (const auto& a : outcomes) {
    for (const auto& b : outcomes) {
      for (const auto& c : outcomes) {
        std::vector<ReinforceSample> samples{{a, reward(a), multinomial_log_prob(a, drawn_by[0])},
                                             {b, reward(b), multinomial_log_prob(b, drawn_by[1])},
                                             {c, reward(c), multinomial_log_prob(c, drawn_by[2])}};
        const double chance = std::exp(samples[0].log_prob + samples[1].log_prob + samples[2].log_prob);
        const std::vector<double> gradient = corrected_gradient(samples, logits);
        for (auto& sample : samples) sample.log_prob = multinomial_log_prob(sample.counts, logits);
        const std::vector<double> as_if_new = corrected_gradient(samples, logits);
        for (size_t layer = 0; layer < 3; ++layer) {
          mean[layer] += chance * gradient[layer];
          unweighted[layer] += chance * as_if_new[layer];
        }
        total += chance;
      }
    }
  }
  EXPECT_NEAR(total, 1, 1e-12);
  constexpr double kStep = 1e-5;
  for (size_t layer = 0; layer < 3; ++layer) {
    std::vector<double> above = logits, below = logits;
    above[layer] += kStep;
    below[layer] -= kStep;
    const double slope = (expected_reward(above) - expected_reward(below)) / (2 * kStep);
    EXPECT_NEAR(mean[layer], slope, 1e-9) << "layer " << layer;
    EXPECT_GT(std::abs(slope), 0.01);
    EXPECT_GT(std::abs(unweighted[layer] - slope), 0.01) << "without weights it is biased";
  }
}

// The log_prob that ask() gives, which the history keeps, is the one that the weight needs: told late, after
// the policy has moved, an outcome moves it by w (r - b) (s - N p) with w = pi_now(s) / pi_then(s).
TEST(Reinforce, ALateOutcomeIsWeightedByTheRatioOfTheChancesThenAndNow) {
  PolicyConfig config = small_config("reinforce");
  config.parameters = {{"learning_rate", 0.3}, {"episodes_per_update", 2}};
  const auto policy = make_policy(config);
  const std::vector<Proposal> asked = policy->ask(4);
  policy->tell({0, 1.0});
  policy->tell({1, 0.0});
  ASSERT_EQ(policy->version(), 1);
  const std::vector<double> now = policy->describe().per_layer;
  std::vector<double> logits;
  for (const double share : now) logits.push_back(std::log(share));
  policy->tell({2, 0.75});
  policy->tell({3, 0.25});
  ASSERT_EQ(policy->version(), 2);
  std::vector<double> weights;
  for (const size_t k : {2u, 3u}) {
    weights.push_back(std::exp(multinomial_log_prob(asked[k].schedule.samples, logits) - asked[k].log_prob));
    EXPECT_GT(std::abs(weights.back() - 1), 0.01);
  }
  for (size_t layer = 0; layer < 3; ++layer) {
    const double first = weights[0] * (0.75 - 0.25) * (asked[2].schedule.samples[layer] - 12 * now[layer]);
    const double second = weights[1] * (0.25 - 0.75) * (asked[3].schedule.samples[layer] - 12 * now[layer]);
    logits[layer] += 0.3 * (first + second) / 2;
  }
  EXPECT_THAT(policy->describe().per_layer, Pointwise(DoubleNear(1e-12), softmax(logits)));
}

TEST(Reinforce, ABaselineLeavesTheExpectedCorrectedGradientUnchanged) {
  // Adding a constant to all rewards adds it to every leave-one-out baseline too.
  const std::vector<double> logits{0.5, -0.5, 0.1};
  std::vector<ReinforceSample> samples{
      {{5, 2, 5}, 0.2, -4.0}, {{9, 1, 2}, 0.5, -5.5}, {{3, 3, 6}, 0.4, -3.0}};
  const std::vector<double> before = corrected_gradient(samples, logits);
  for (auto& sample : samples) sample.reward += 0.3;
  EXPECT_THAT(corrected_gradient(samples, logits), Pointwise(DoubleNear(1e-12), before));
  EXPECT_GT(std::abs(before[0]), 1e-3);
}

TEST(Reinforce, AnOutcomeOlderThanTheLagIsStale) {
  PolicyConfig config = small_config("reinforce-paper");
  config.max_policy_lag = 1;
  const auto policy = make_policy(config);
  policy->ask(9);
  for (int64_t number = 0; number < 6; ++number) EXPECT_EQ(policy->tell({number, 0.5}), TellResult::kLearned);
  EXPECT_EQ(policy->version(), 2);
  const std::string before = policy->save();
  EXPECT_EQ(policy->tell({6, 0.5}), TellResult::kStale);
  EXPECT_EQ(policy->tell({6, 0.5}), TellResult::kDuplicate);
  EXPECT_EQ(policy->version(), 2);
  EXPECT_NE(policy->save(), before);  // proposal 6 is no longer waited for
}

TEST(Reinforce, WithoutALimitAnOutcomeOfAnyAgeIsLearnedFrom) {
  PolicyConfig config = small_config("reinforce-paper");
  config.max_policy_lag = kNoPolicyLagLimit;
  const auto policy = make_policy(config);
  const int64_t episodes = 300;
  policy->ask(static_cast<int>(episodes));
  for (int64_t number = episodes - 1; number >= 0; --number) {
    EXPECT_EQ(policy->tell({number, 0.5}), TellResult::kLearned);
  }
  EXPECT_EQ(policy->version(), 100);
}

}  // namespace
}  // namespace allot::policy
