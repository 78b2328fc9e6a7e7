#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "policy/draws.h"
#include "policy/learner.h"
#include "policy/rehearsal.h"
#include "policy/surface.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

// The share of the gap, or the points over uniform, on instances whose uniform schedule answers 30 and 60 %,
// after each of `episodes`.
std::vector<double> gains(const char* family, const std::vector<int>& episodes, int in_flight = 1,
                          double loss = 0) {
  std::vector<double> gained;
  for (int k = 0; k < 4; ++k) {
    const RatedSurface rated = find_surface_family(family)->make(static_cast<uint64_t>(k + k / 2));
    const auto policy = make_policy({.name = "auto",
                                     .layers = rated.layers,
                                     .total = rated.total,
                                     .seed = static_cast<uint64_t>(40 + k),
                                     .max_policy_lag = kNoPolicyLagLimit});
    const bool has_gap = find_surface_family(family)->has_gap;
    for (const double reached : rehearse(*policy, rated.surface,
                                         {.episodes = episodes.back(),
                                         .in_flight = in_flight,
                                         .loss = loss,
                                         .seed = static_cast<uint64_t>(k),
                                         .checkpoints = episodes})) {
      gained.push_back(has_gap ? rated.share_of_gap(reached) : 100 * (reached - rated.uniform_accuracy));
    }
  }
  return gained;
}

double mean_gain(const char* family, int episodes, int in_flight = 1, double loss = 0) {
  const std::vector<double> gained = gains(family, {episodes}, in_flight, loss);
  return std::accumulate(gained.begin(), gained.end(), 0.0) / static_cast<double>(gained.size());
}

TEST(AutomaticLearning, ClosesMostOfTheGapIn500Episodes) {
  EXPECT_GT(mean_gain("middle", 500), 0.9);
}

TEST(AutomaticLearning, LearnsFromManyInFlightAndWithLosses) {
  EXPECT_GT(mean_gain("middle", 500, 32, 0.1), 0.75);
}

TEST(AutomaticLearning, LosesNextToNothingWhereAllLayersAreEqual) {
  EXPECT_THAT(gains("equal", {125, 250, 500}), ::testing::Each(::testing::Gt(-0.3)));
}

TEST(AutomaticLearning, FindsTheNeedsOfLayersThatFailBelowThem) {
  EXPECT_GT(mean_gain("thresholds", 1000), 0.6);
}

// Both forms of the model are then compared on the same questions.
TEST(AutomaticLearning, RestoredWhileItsFormsRaceItGoesOnBitForBit) {
  const RatedSurface rated = find_surface_family("thresholds")->make(100);
  const PolicyConfig config{.name = "auto",
                            .layers = rated.layers,
                            .total = rated.total,
                            .floor = 1,
                            .max_policy_lag = kNoPolicyLagLimit};
  auto policy = make_policy(config);
  const RehearsalOptions options{.episodes = 200, .seed = 100};
  rehearse(*policy, rated.surface, options);
  const auto answer = [&](Policy& learner, const Proposal& proposal) {
    learner.tell({proposal.number, rated.surface.accuracy(proposal.schedule)});
  };
  // Up to between the two that race.
  std::vector<Proposal> asked = policy->ask(1);
  for (int64_t group = asked[0].group; asked[0].group == group; asked = policy->ask(1))
    answer(*policy, asked[0]);
  const nlohmann::json saved = nlohmann::json::parse(policy->save());
  ASSERT_FALSE(saved.at("learner").at("opponent").empty());
  ASSERT_GT(saved.at("learner").at("race").at("pairs"), 3);
  const auto restored = restore_policy(config, policy->save());
  for (Policy* learner : {policy.get(), restored.get()}) answer(*learner, asked[0]);
  for (int k = 0; k < 9; ++k) {
    asked = policy->ask(1);
    ASSERT_EQ(restored->ask(1)[0].schedule, asked[0].schedule) << k;
    for (Policy* learner : {policy.get(), restored.get()}) answer(*learner, asked[0]);
  }
  EXPECT_EQ(restored->digest(), policy->digest());
  EXPECT_EQ(restored->save(), policy->save());
}

TEST(Automatic, LeavesTheEvenScheduleOnlyAfter48Outcomes) {
  const auto policy = make_policy({.name = "auto", .layers = 4, .total = 32, .seed = 2});
  for (const Proposal& proposal : policy->ask(47)) {
    policy->tell({proposal.number, proposal.schedule.samples[0] > 8 ? 0.9 : 0.1});
    EXPECT_EQ(policy->recommend(), uniform_schedule(4, 8));
  }
  for (int k = 0; k < 40; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    policy->tell({proposal.number, proposal.schedule.samples[0] > 8 ? 0.9 : 0.1});
  }
  EXPECT_GT(policy->recommend().samples[0], 12);
}

// Mean of |log2(samples / 8)| over layers and proposals: how wide they are.
double width_of(const std::vector<Proposal>& proposals) {
  double sum = 0;
  int count = 0;
  for (const Proposal& proposal : proposals) {
    for (const int32_t samples : proposal.schedule.samples) {
      sum += std::abs(std::log2(samples / 8.0));
      ++count;
    }
  }
  return sum / count;
}

TEST(Automatic, AsksNarrowlyWhereNearlyNothingIsAnsweredAndWidelyWhereMostIs) {
  const auto rewarded = [](auto reward) {
    const auto policy = make_policy({.name = "auto", .layers = 8, .total = 64, .seed = 2});
    for (int k = 0; k < 80; ++k) {
      const Proposal proposal = policy->ask(1)[0];
      policy->tell({proposal.number, reward(proposal.schedule)});
    }
    return width_of(policy->ask(32));
  };
  // Right answers only near the even schedule, and everywhere but far from it.
  const double narrow = rewarded([](const Schedule& schedule) {
    return *std::ranges::min_element(schedule.samples) >= 6 ? 0.125 : 0.0;
  });
  const double wide = rewarded([](const Schedule& schedule) {
    return *std::ranges::min_element(schedule.samples) >= 2 ? 0.875 : 0.5;
  });
  EXPECT_LT(narrow, 0.8 * wide);
}

TEST(Automatic, FollowsOrLeavesItsStartAsTheAnswersSay) {
  // Layer 0 matters alone, layer 3 not at all.
  const auto learned_from = [](const char* start) {
    PolicyConfig config{.name = "auto", .layers = 4, .total = 32, .seed = 3};
    config.start = parse_schedule(start);
    auto policy = make_policy(config);
    DrawStream answers(5, 0, draw_purpose("test-answers"));
    for (int k = 0; k < 240; ++k) {
      const Proposal proposal = policy->ask(1)[0];
      const double chance = 1 - std::exp(-0.15 * proposal.schedule.samples[0]);
      int right = 0;
      for (int question = 0; question < 16; ++question) right += answers.uniform() < chance;
      policy->tell({proposal.number, right / 16.0});
    }
    return policy;
  };
  const auto good = learned_from("20,4,4,4");
  EXPECT_GE(good->recommend().samples[0], 20);
  EXPECT_GT(good->outlook()->over_even.low, 0.05);
  ASSERT_TRUE(good->outlook()->over_start);
  EXPECT_LT(std::abs(good->outlook()->over_start->mean), good->outlook()->over_even.mean);
  const auto bad = learned_from("4,4,4,20");
  EXPECT_GE(bad->recommend().samples[0], 16);
  EXPECT_GT(bad->outlook()->over_start->mean, bad->outlook()->over_even.mean);
}

TEST(Automatic, ReturnsToTheEvenScheduleWhereTheStartIsWorseAndNothingBetterIsKnown) {
  PolicyConfig config{.name = "auto", .layers = 4, .total = 32, .seed = 3};
  config.start = parse_schedule("29,1,1,1");
  const auto policy = make_policy(config);
  EXPECT_EQ(policy->recommend(), config.start);
  DrawStream answers(6, 0, draw_purpose("test-answers"));
  for (int k = 0; k < 160; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    // The least of the layers decides.
    const double chance = 0.1 * *std::ranges::min_element(proposal.schedule.samples);
    int right = 0;
    for (int question = 0; question < 16; ++question) right += answers.uniform() < chance;
    policy->tell({proposal.number, right / 16.0});
  }
  EXPECT_LT(std::ranges::max(policy->recommend().samples), 16);
}

TEST(Automatic, HasNoOutlookBeforeItTrustsItsDrawsNorOfDivergences) {
  const auto policy = make_policy({.name = "auto", .layers = 4, .total = 32, .seed = 2});
  for (int k = 0; k < 40; ++k) policy->tell({policy->ask(1)[0].number, 0.5});
  EXPECT_FALSE(policy->outlook());
  for (int k = 0; k < 40; ++k) policy->tell({policy->ask(1)[0].number, 0.5});
  ASSERT_TRUE(policy->outlook());
  EXPECT_FALSE(policy->outlook()->over_start);
  EXPECT_GE(policy->outlook()->left_to_gain, 0);
  const auto divergences = make_policy({.name = "auto", .layers = 4, .total = 32, .seed = 2});
  for (int k = 0; k < 80; ++k) {
    divergences->tell(
        {.number = divergences->ask(1)[0].number, .reward = 2, .kind = RewardKind::kDivergence});
  }
  EXPECT_FALSE(divergences->outlook());
}

TEST(AutomaticLearning, ItsIntervalHoldsTheTrueAdvantageInMostInstances) {
  int held = 0;
  int of_all = 0;
  for (const char* family : {"middle", "power-law", "equal"}) {
    for (uint64_t instance = 0; instance < 4; ++instance) {
      const RatedSurface rated = find_surface_family(family)->make(instance);
      const PolicyConfig config{.name = "auto",
                                .layers = rated.layers,
                                .total = rated.total,
                                .seed = 60 + instance,
                                .max_policy_lag = kNoPolicyLagLimit};
      const auto policy = make_policy(config);
      rehearse(*policy, rated.surface, {.episodes = 250, .seed = instance});
      const std::optional<Outlook> outlook = policy->outlook();
      ASSERT_TRUE(outlook);
      EXPECT_EQ(restore_policy(config, policy->save())->outlook(), outlook);
      const double truth = rated.surface.accuracy(policy->recommend()) - rated.uniform_accuracy;
      held += outlook->over_even.low - 1e-9 <= truth && truth <= outlook->over_even.high + 1e-9 ? 1 : 0;
      ++of_all;
    }
  }
  EXPECT_GE(held, of_all - 2);
}

TEST(Automatic, LearnsFromDivergencesOfWhichLessIsBetter) {
  const auto policy = make_policy({.name = "auto", .layers = 4, .total = 32, .seed = 2});
  for (int k = 0; k < 160; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    policy->tell({.number = proposal.number,
                  .reward = 1.0 / (1 + proposal.schedule.samples[2]),
                  .kind = RewardKind::kDivergence});
  }
  EXPECT_EQ(std::ranges::max(policy->recommend().samples), policy->recommend().samples[2]);
  EXPECT_GT(policy->recommend().samples[2], 12);
}

TEST(Automatic, RefusesTotalsWhoseTablesWouldNotFit) {
  EXPECT_THAT([] { make_policy({.name = "auto", .layers = 4, .total = 70'000}); },
              ::testing::ThrowsMessage<InvalidArgument>(Names(4, 70000, 65535, "pairs")));
  // The same rule before a policy is made, which commands and aggregator ask.
  EXPECT_THAT(
      [] { validate({.name = "auto", .layers = 100, .total = 40'000}); },
      ::testing::ThrowsMessage<InvalidArgument>(Names("total", 40000, 39999, 100, "layers", "pairs")));
  EXPECT_NO_THROW(validate({.name = "auto", .layers = 100, .total = 39'999}));
  EXPECT_NO_THROW(validate({.name = "auto", .layers = 4, .total = 65'535}));
  EXPECT_NO_THROW(validate({.name = "pairs", .layers = 4, .total = 70'000}));
}

}  // namespace
}  // namespace allot::policy
