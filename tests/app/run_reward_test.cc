// What a run learns from: answers, divergences, or both, by its options, learner and data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/run/run_spec_builder.h"
#include "base/error.h"
#include "policy/learner.h"
#include "tests/app/small_run.h"
#include "tests/names.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

using ::testing::IsEmpty;

using RewardOfARun = SmallRun;

TEST_F(RewardOfARun, ARunOfAnswersSaysNothingOfItsKindAsInTheReleaseBefore) {
  const wire::RunSpec spec = build_run_spec(run_);
  EXPECT_EQ(spec.reward_kind(), "");
  EXPECT_EQ(spec.divergence_episodes(), 0);
}

TEST_F(RewardOfARun, ByDefaultAutoLearnsFromDivergencesFirst) {
  const RunOptions defaults;
  EXPECT_EQ(defaults.policy.name, "auto");
  EXPECT_EQ(defaults.reward, "auto");
  run_.policy.name = "auto";
  const int64_t wanted = policy::find_learner("auto")->divergences(8);
  // Where --episodes is the end, at most half of them.
  run_.episodes = 3 * wanted;
  EXPECT_EQ(build_run_spec(run_).divergence_episodes(), wanted);
  EXPECT_EQ(build_run_spec(run_).episodes(), 3 * wanted);
  run_.episodes = wanted;
  wire::RunSpec spec = build_run_spec(run_);
  EXPECT_EQ(spec.divergence_episodes(), wanted / 2);
  EXPECT_EQ(spec.reward_kind(), "");
  resolve(spec, &run_);
  EXPECT_EQ(run_.reward, "mixed");
  // Until settled they come beside the others.
  run_.reward = "auto";
  run_.divergence_episodes.reset();
  run_.until = "settled";
  spec = build_run_spec(run_);
  EXPECT_EQ(spec.divergence_episodes(), wanted);
  EXPECT_EQ(spec.episodes(), 2 * wanted);
  resolve(spec, &run_);
  EXPECT_THAT(wire::differences(spec, build_run_spec(run_)), IsEmpty()) << "what --dry-run prints is the run";
}

TEST_F(RewardOfARun, ByDefaultItLearnsFromAnswersWhereDivergencesAreOfNoUse) {
  const auto first = [&] { return build_run_spec(run_).divergence_episodes(); };
  run_.policy.name = "auto";
  run_.episodes = 250;
  EXPECT_GT(first(), 0);
  run_.reward = "answers";
  EXPECT_EQ(first(), 0);
  run_.reward = "auto";
  run_.episodes = 40;
  EXPECT_EQ(first(), 0) << "half of so few teach nothing";
  run_.divergence_episodes = 20;
  EXPECT_EQ(first(), 20) << "unless they are asked for";
  run_.divergence_episodes.reset();
  run_.episodes = 250;
  for (const char* other : {"pairs", "reinforce-paper"}) {
    run_.policy.name = other;
    EXPECT_EQ(first(), 0) << other;
  }
}

TEST_F(RewardOfARun, AMixedRunOfPairsBeginsWithHalfItsEpisodesUnlessToldOtherwise) {
  run_.reward = "mixed";
  run_.episodes = 101;
  wire::RunSpec spec = build_run_spec(run_);
  EXPECT_EQ(spec.reward_kind(), "") << "its rewards are answers";
  EXPECT_EQ(spec.divergence_episodes(), 50);
  resolve(spec, &run_);
  EXPECT_EQ(run_.divergence_episodes, 50) << "as --dry-run prints it";
  run_.divergence_episodes = 7;
  EXPECT_EQ(build_run_spec(run_).divergence_episodes(), 7);
  run_.divergence_episodes = 101;
  EXPECT_THAT(fault<UsageError>(), Names("--divergence-episodes", 101, "--reward divergence"));
  run_.divergence_episodes = 7;
  run_.reward = "divergence";
  EXPECT_THAT(fault<UsageError>(), Names("--divergence-episodes", "mixed"));
}

TEST_F(RewardOfARun, ALearnerOfOneKindIsRefusedAMixedRunNamingOneThatMixes) {
  run_.reward = "mixed";
  run_.policy.name = "reinforce-paper";
  EXPECT_THAT(fault<InvalidArgument>(), Names("reinforce-paper", 125, "pairs"));
  run_.reward = "divergence";
  EXPECT_NO_THROW((void)build_run_spec(run_));
}

}  // namespace
}  // namespace allot::app
