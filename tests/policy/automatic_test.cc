#include <gmock/gmock.h>

#include <algorithm>

#include "base/error.h"
#include "policy/learner.h"
#include "policy/rehearsal.h"
#include "policy/surface.h"
#include "tests/names.h"
#include "tests/repeats.h"

namespace allot::policy {
namespace {

// Mean over instances whose uniform schedule answers 30 and 60 %, of the share of the gap, or of the points
// over uniform.
double mean_gain(const char* family, int episodes, int in_flight = 1, double loss = 0) {
  const int count = repeats(4);
  double sum = 0;
  for (int k = 0; k < count; ++k) {
    const RatedSurface rated = find_surface_family(family)->make(static_cast<uint64_t>(k + k / 2));
    const auto policy = make_policy({.name = "auto",
                                     .layers = rated.layers,
                                     .total = rated.total,
                                     .seed = static_cast<uint64_t>(40 + k),
                                     .max_policy_lag = kNoPolicyLagLimit});
    const double reached = rehearse(*policy, rated.surface,
                                    {.episodes = episodes,
                                     .in_flight = in_flight,
                                     .loss = loss,
                                     .seed = static_cast<uint64_t>(k),
                                     .checkpoints = {episodes}})
                               .back();
    const bool has_gap = find_surface_family(family)->has_gap;
    sum += (has_gap ? rated.share_of_gap(reached) : 100 * (reached - rated.uniform_accuracy)) / count;
  }
  return sum;
}

// The release build judges what is learned; under sanitizers a fifth of the run shows that it goes the right
// way.
constexpr int kEpisodes = kUnderSanitizers ? 100 : 500;

TEST(AutomaticLearning, ClosesMostOfTheGapIn500Episodes) {
  EXPECT_GT(mean_gain("middle", kEpisodes), kUnderSanitizers ? 0.1 : 0.75);
}

TEST(AutomaticLearning, LearnsFromManyInFlightAndWithLosses) {
  EXPECT_GT(mean_gain("middle", kEpisodes, 32, 0.1), kUnderSanitizers ? 0.0 : 0.65);
}

TEST(AutomaticLearning, LosesLittleWhereAllLayersAreEqual) {
  EXPECT_GT(mean_gain("equal", kEpisodes), -1.5);
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

TEST(Automatic, NarrowsItsPerturbationsWhileNothingIsAnswered) {
  const auto policy = make_policy({.name = "auto", .layers = 8, .total = 64, .seed = 2});
  for (int k = 0; k < 80; ++k) policy->tell({policy->ask(1)[0].number, 0});
  EXPECT_LT(*policy->describe().find("width"), 0.3);
  EXPECT_EQ(policy->recommend().total(), 64);
  for (int k = 0; k < 200; ++k) policy->tell({policy->ask(1)[0].number, 0.5});
  EXPECT_EQ(*policy->describe().find("width"), 1);
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
}

}  // namespace
}  // namespace allot::policy
