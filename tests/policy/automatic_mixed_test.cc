// `auto` in a run that measures divergences first.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "policy/draws.h"
#include "policy/learner.h"
#include "policy/rehearsal.h"

namespace allot::policy {
namespace {

PolicyConfig example() {
  return {.name = "auto",
          .layers = 8,
          .total = 64,
          .seed = 5,
          .max_policy_lag = kNoPolicyLagLimit,
          .divergence_episodes = 96};
}

// Layer 2 matters most, layers 5 to 7 hardly.
double weight(size_t layer) {
  return layer == 2 ? 1 : layer < 5 ? 0.1 : 0.01;
}

double error_of(const Schedule& schedule) {
  double sum = 0;
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer)
    sum += weight(layer) / schedule.samples[layer];
  return sum;
}

constexpr int kQuestions = 16;  // of an episode

// Questions of a group have a divergence in common.
const Ground kGround{
    .chance = [](const Schedule& schedule, uint32_t) { return std::exp(-8 * error_of(schedule)); },
    .accuracy = [](const Schedule& schedule) { return std::exp(-8 * error_of(schedule)); },
    .divergence = [](const Schedule& schedule, int64_t group,
                     int) { return error_of(schedule) * std::exp(0.2 * static_cast<double>(group % 3)); }};

bool is_divergence(const Proposal& proposal) {
  return proposal.reward_kind == RewardKind::kDivergence;
}

void answer(Policy& policy, const Proposal& proposal) {
  const double reward = is_divergence(proposal)
                            ? kGround.divergence(proposal.schedule, proposal.group, kQuestions)
                            : kGround.accuracy(proposal.schedule);
  policy.tell({.number = proposal.number,
               .reward = reward,
               .kind = is_divergence(proposal) ? RewardKind::kDivergence : RewardKind::kAnswers});
}

double phase_of(const Policy& policy) {
  const Description described = policy.describe();
  const double* phase = described.find("phase");
  return phase == nullptr ? 0 : *phase;
}

TEST(AutomaticMixed, MeasuresDivergencesFirstAndStartsItsAnswersAtWhatTheyFound) {
  const auto policy = make_policy(example());
  std::vector<Proposal> asked;
  for (int k = 0; k < 220; ++k) {
    asked.push_back(policy->ask(1)[0]);
    EXPECT_EQ(is_divergence(asked.back()), phase_of(*policy) < 3) << k;
    answer(*policy, asked.back());
  }
  const auto first = std::ranges::find_if_not(asked, is_divergence);
  ASSERT_NE(first, asked.end());
  EXPECT_GT(first->number, 64);
  EXPECT_LE(first->number, 96);
  // Where it is not said what is measured, low numbers would measure divergences.
  for (auto proposal = first; proposal != asked.end(); ++proposal) {
    EXPECT_EQ(proposal->reward_kind.has_value(), proposal->number < 96) << proposal->number;
  }
  EXPECT_GT(policy->recommend().samples[2], 16);
  ASSERT_TRUE(policy->outlook());
  EXPECT_GT(policy->outlook()->over_even.low, 0);
  EXPECT_TRUE(policy->outlook()->over_start) << "the start is what the divergences found";
}

TEST(AutomaticMixed, RecommendsWhatTheDivergencesFoundBeforeAnyAnswer) {
  const auto policy = make_policy(example());
  while (phase_of(*policy) < 3) {
    EXPECT_FALSE(policy->outlook());
    answer(*policy, policy->ask(1)[0]);
  }
  EXPECT_LT(error_of(policy->recommend()), 0.7 * error_of(uniform_schedule(8, 8)));
}

TEST(AutomaticMixed, AsksForAnswersWhereItWouldWaitForDivergencesAndLearnsFromThemLater) {
  const auto policy = make_policy(example());
  const std::vector<Proposal> asked = policy->ask(300);
  const auto answers = std::ranges::find_if_not(asked, is_divergence);
  EXPECT_GT(answers->number, 48);
  EXPECT_LT(answers->number, 96);
  EXPECT_TRUE(std::none_of(answers, asked.end(), is_divergence));
  // A group has one kind and is asked in one go.
  std::map<int64_t, std::set<bool>> kinds;
  for (size_t k = 0; k < asked.size(); ++k) {
    kinds[asked[k].group].insert(is_divergence(asked[k]));
    if (k > 0) {
      EXPECT_GE(asked[k].group, asked[k - 1].group);
    }
  }
  for (const auto& [group, of_group] : kinds) EXPECT_EQ(of_group.size(), 1u) << group;

  for (auto proposal = asked.rbegin(); proposal != asked.rend(); ++proposal) answer(*policy, *proposal);
  EXPECT_EQ(phase_of(*policy), 2) << "candidates are to be measured";
  while (phase_of(*policy) < 3) answer(*policy, policy->ask(1)[0]);
  for (int k = 0; k < 8; ++k) answer(*policy, policy->ask(1)[0]);
  EXPECT_TRUE(policy->outlook()) << "more than 48 answers are known";
}

TEST(AutomaticMixed, LostAndLateDivergencesNeverHoldItUp) {
  const auto policy = make_policy(example());
  std::vector<Proposal> late;
  for (int k = 0; k < 500; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    if (is_divergence(proposal) && proposal.number % 5 == 1) {
      late.push_back(proposal);
    } else if (is_divergence(proposal) && proposal.number % 5 == 2) {
      policy->give_up(proposal.number);
    } else {
      answer(*policy, proposal);
    }
  }
  EXPECT_EQ(phase_of(*policy), 3);
  EXPECT_GT(policy->recommend().samples[2], 16);
  const std::string before = policy->save();
  for (const Proposal& proposal : late) {
    EXPECT_EQ(policy->tell({.number = proposal.number, .reward = 1, .kind = RewardKind::kDivergence}),
              TellResult::kStale);
  }
  EXPECT_NE(policy->save(), before) << "they are out no more";
}

TEST(AutomaticMixed, WithoutAnyDivergenceItLearnsFromAnswersAlone) {
  const auto policy = make_policy(example());
  for (int k = 0; k < 400; ++k) {
    const Proposal proposal = policy->ask(1)[0];
    if (is_divergence(proposal)) {
      policy->give_up(proposal.number);
    } else {
      answer(*policy, proposal);
    }
  }
  EXPECT_EQ(phase_of(*policy), 3);
  EXPECT_FALSE(policy->outlook()->over_start) << "it started at the even schedule";
  EXPECT_GT(policy->recommend().samples[2], 16);
}

TEST(AutomaticMixed, ARunOfDivergencesAsksForNothingElse) {
  PolicyConfig config = example();
  config.reward_kind = RewardKind::kDivergence;
  const auto policy = make_policy(config);
  for (int k = 0; k < 150; ++k) {
    for (const Proposal& proposal : policy->ask(3)) {
      EXPECT_NE(proposal.reward_kind, RewardKind::kAnswers);
      policy->tell({.number = proposal.number,
                    .reward = kGround.divergence(proposal.schedule, proposal.group, kQuestions),
                    .kind = RewardKind::kDivergence});
    }
  }
  EXPECT_GT(policy->recommend().samples[2], 16);
  EXPECT_FALSE(policy->outlook());
}

TEST(AutomaticMixed, RestoredWithAnyNumberInFlightItGoesOnBitForBit) {
  for (const int in_flight : {2, 40}) {
    const auto original = make_policy(example());
    DrawStream draws(2, static_cast<uint64_t>(in_flight), draw_purpose("automatic-mixed-test"));
    std::map<int64_t, Proposal> out;
    for (int k = 0; k < 300; ++k) {
      while (std::ssize(out) < in_flight) {
        const Proposal asked = original->ask(1)[0];
        out.emplace(asked.number, asked);
      }
      const auto any = std::next(out.begin(), draws.below(static_cast<uint32_t>(out.size())));
      const Proposal proposal = any->second;
      out.erase(any);
      if (k % 9 != 0) {
        answer(*original, proposal);
        continue;
      }
      const auto restored = restore_policy(example(), original->save());
      for (Policy* policy : {original.get(), restored.get()}) answer(*policy, proposal);
      ASSERT_EQ(restored->ask(3)[2].schedule,
                restore_policy(example(), original->save())->ask(3)[2].schedule);
      ASSERT_EQ(restore_policy(example(), original->save())->save(), original->save()) << k;
      ASSERT_EQ(restored->recommend(), original->recommend());
      ASSERT_EQ(restored->outlook(), original->outlook());
    }
    EXPECT_EQ(phase_of(*original), 3) << in_flight;
  }
}

TEST(AutomaticMixed, ReachesMoreThanAnswersAloneInARehearsal) {
  const auto reached = [](int64_t divergences) {
    PolicyConfig config = example();
    config.divergence_episodes = divergences;
    const auto policy = make_policy(config);
    return rehearse(*policy, kGround, {.episodes = 140, .in_flight = 8, .loss = 0.05, .checkpoints = {140}})
        .back();
  };
  EXPECT_GT(reached(96), kGround.accuracy(uniform_schedule(8, 8)) + 0.1);
  EXPECT_GT(reached(96), reached(0));
}

}  // namespace
}  // namespace allot::policy
