#include "aggregator/plan.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <set>

#include "aggregator/run_spec.h"
#include "base/error.h"
#include "tests/aggregator/example_spec.h"
#include "tests/aggregator/plans.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;

std::vector<QuestionResult> answers(const Episode& episode, size_t correct) {
  std::vector<QuestionResult> results(episode.questions.size());
  for (size_t i = 0; i < results.size(); ++i) results[i].question = episode.questions[i];
  for (size_t i = 0; i < correct; ++i) results[i].score = 1;
  return results;
}

TEST(QuestionOrder, AnEpochAsksEveryQuestionOfItsWholeBatchesOnce) {
  QuestionOrder order(7, 50, 4);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<uint32_t> asked;
    for (int64_t batch = 0; batch < 12; ++batch) {
      for (const uint32_t question : order.batch(epoch * 12 + batch, 4)) {
        EXPECT_LT(question, 50u);
        EXPECT_TRUE(asked.insert(question).second) << "question " << question << " twice in epoch " << epoch;
      }
    }
    EXPECT_THAT(asked, SizeIs(48));
  }
}

TEST(QuestionOrder, TheOrderDependsOnSeedAndEpochAndNotOnWhatWasAskedBefore) {
  QuestionOrder order(7, 50, 4), fresh(7, 50, 4), other(8, 50, 4);
  const std::vector<uint32_t> first = order.batch(0, 4);
  EXPECT_NE(order.batch(12, 4), first) << "the second epoch";
  EXPECT_EQ(order.batch(0, 4), first);
  EXPECT_EQ(fresh.batch(12, 4), order.batch(12, 4));
  EXPECT_NE(other.batch(0, 4), first);
}

TEST(QuestionOrder, EveryQuestionIsAsLikelyFirst) {
  std::vector<int> times(10);
  for (uint32_t seed = 0; seed < 5000; ++seed) ++times[QuestionOrder(seed, 10, 1).batch(0, 1)[0]];
  // 500 expected, standard deviation 21; five of them.
  for (const int count : times) EXPECT_NEAR(count, 500, 107);
}

TEST(QuestionOrder, FewerQuestionsOfABatchAreTheFirstOfMore) {
  QuestionOrder order(7, 50, 4);
  for (const int64_t batch : {0, 3, 11, 25}) {
    const std::vector<uint32_t> all = order.batch(batch, 50);
    EXPECT_THAT(std::set<uint32_t>(all.begin(), all.end()), SizeIs(50));
    for (const uint32_t count : {1u, 4u, 9u}) {
      EXPECT_EQ(order.batch(batch, count), std::vector<uint32_t>(all.begin(), all.begin() + count));
    }
  }
}

// Proposes what it is given, and remembers what it is told.
class ScriptedPolicy final : public policy::Policy {
 public:
  struct Told {
    int64_t number = 0;
    double reward = 0;
    std::vector<QuestionResult> results;
    RewardKind kind = RewardKind::kAnswers;
  };
  ScriptedPolicy(std::vector<policy::Proposal> script, std::vector<Told>* told)
      : script_(std::move(script)), told_(told) {}

  std::vector<policy::Proposal> ask(int) override {
    policy::Proposal proposal = script_.at(static_cast<size_t>(next_));
    proposal.number = next_++;
    proposal.schedule = policy::uniform_schedule(8, 8);
    return {proposal};
  }
  policy::TellResult tell(const policy::Outcome& outcome) override {
    told_->push_back(
        {outcome.number, outcome.reward, {outcome.results.begin(), outcome.results.end()}, outcome.kind});
    return policy::TellResult::kLearned;
  }
  void give_up(int64_t) override {}
  void bound(const policy::Bounds&) override {}
  policy::Schedule recommend() const override { return policy::uniform_schedule(8, 8); }
  policy::Description describe() const override { return {}; }
  int64_t version() const override { return 0; }
  std::string save() const override { return ""; }

 private:
  std::vector<policy::Proposal> script_;
  std::vector<Told>* told_;
  int64_t next_ = 0;
};

TEST(Plan, AsksTheQuestionsThatAProposalNamesOrAsManyAsItWants) {
  using Questions = std::vector<uint32_t>;
  std::vector<ScriptedPolicy::Told> told;
  Plan plan(example_spec(),
            std::make_unique<ScriptedPolicy>(
                std::vector<policy::Proposal>{{.group = 5, .schedule = {}},
                                              {.group = 5, .schedule = {}, .num_questions = 2},
                                              {.group = 5, .schedule = {}, .num_questions = 9},
                                              {.schedule = {}, .questions = Questions{49, 0, 7}}},
                &told));
  std::vector<PlannedEpisode> asked;
  for (int i = 0; i < 4; ++i) asked.push_back(plan.next().value());
  const Questions& of_group = asked[0].questions;
  ASSERT_THAT(of_group, SizeIs(4));
  EXPECT_EQ(asked[1].questions, Questions(of_group.begin(), of_group.begin() + 2));
  ASSERT_THAT(asked[2].questions, SizeIs(9));
  EXPECT_TRUE(std::equal(of_group.begin(), of_group.end(), asked[2].questions.begin()));
  EXPECT_THAT(asked[3].questions, ElementsAre(49, 0, 7));
}

TEST(Plan, TheOutcomeBringsTheResultOfEachQuestion) {
  std::vector<ScriptedPolicy::Told> told;
  Plan plan(
      example_spec(),
      std::make_unique<ScriptedPolicy>(
          std::vector<policy::Proposal>{{.schedule = {}, .questions = std::vector<uint32_t>{12, 3}}}, &told));
  const PlannedEpisode episode = plan.next().value();
  std::vector<QuestionResult> results = answers(episode, 1);
  results[0].finish = Finish::kStop;
  results[0].output_tokens = 31;
  results[1].finish = Finish::kLength;
  results[1].prompt_tokens = 17;
  plan.tell(episode, results);
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].reward, 0.5);
  EXPECT_THAT(told[0].results, ElementsAre(QuestionResult{12, 1, Finish::kStop, 0, 31},
                                           QuestionResult{3, 0, Finish::kLength, 17, 0}));
}

TEST(Plan, QuestionsThatAreNotInTheTrainingSplitAreRefused) {
  using Questions = std::vector<uint32_t>;
  for (const policy::Proposal& proposal :
       std::vector<policy::Proposal>{{.schedule = {}, .questions = Questions{}},
                                     {.schedule = {}, .questions = Questions{3, 3}},
                                     {.schedule = {}, .questions = Questions{50}},
                                     {.schedule = {}, .num_questions = 0}}) {
    std::vector<ScriptedPolicy::Told> told;
    Plan plan(example_spec(), std::make_unique<ScriptedPolicy>(std::vector{proposal}, &told));
    EXPECT_THROW(plan.next(), std::logic_error);
  }
}

TEST(Plan, AProposalThatWantsMoreQuestionsThanThereAreGetsAll) {
  std::vector<ScriptedPolicy::Told> told;
  Plan plan(example_spec(), std::make_unique<ScriptedPolicy>(
                                std::vector<policy::Proposal>{{.schedule = {}, .num_questions = 51}}, &told));
  const std::vector<uint32_t> questions = plan.next().value().questions;
  EXPECT_EQ(std::set<uint32_t>(questions.begin(), questions.end()).size(), 50u);
  EXPECT_THAT(questions, SizeIs(50));
}

TEST(Plan, AProposalWithoutAKindOfRewardGetsTheRunsAndOneWithAKindThatKind) {
  wire::RunSpec spec = example_spec();
  spec.set_reward_kind("divergence");
  spec.set_episodes(2);
  std::vector<ScriptedPolicy::Told> told;
  Plan plan(spec, std::make_unique<ScriptedPolicy>(
                      std::vector<policy::Proposal>{{.schedule = {}},
                                                    {.schedule = {}, .reward_kind = RewardKind::kAnswers}},
                      &told));
  const PlannedEpisode of_run = plan.next().value(), of_proposal = plan.next().value();
  EXPECT_EQ(of_run.kind, RewardKind::kDivergence);
  EXPECT_EQ(of_proposal.kind, RewardKind::kAnswers);

  EXPECT_TRUE(plan.tell(of_proposal, answers(of_proposal, 4)));
  EXPECT_EQ(plan.mean_reward_recent(), 0) << "a share of right answers in the mean of divergences";
  std::vector<QuestionResult> divergences = answers(of_run, 0);
  for (QuestionResult& result : divergences) result.score = 0.25;
  EXPECT_TRUE(plan.tell(of_run, divergences));
  EXPECT_EQ(plan.mean_reward_recent(), 0.25);
  wire::LearningCurve curve;
  plan.curve().write(&curve);
  EXPECT_THAT(curve.reward(), ElementsAre(0.25));
  EXPECT_EQ(plan.learned(), 2);
  ASSERT_THAT(told, SizeIs(2));
  EXPECT_EQ(told[0].kind, RewardKind::kAnswers);
  EXPECT_EQ(told[1].kind, RewardKind::kDivergence);
  EXPECT_EQ(plan.next_kind(), RewardKind::kAnswers);
  EXPECT_EQ(plan.next().value().kind, RewardKind::kAnswers)
      << "every verification is on answers, whatever was learned from";
}

TEST(Plan, TheFirstEpisodesOfAMixedRunAreDivergencesAndNoGroupIsOfTwoKinds) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(10);
  spec.set_divergence_episodes(5);  // in the middle of a pair
  Plan plan = make_plan(spec);
  std::map<int64_t, std::set<RewardKind>> kinds_of_groups;
  std::vector<RewardKind> kinds;
  EXPECT_EQ(plan.next_kind(), RewardKind::kDivergence);
  for (const PlannedEpisode& episode : all_open(&plan)) {
    kinds.push_back(episode.kind);
    kinds_of_groups[episode.group].insert(episode.kind);
  }
  EXPECT_EQ(std::ranges::count(kinds, RewardKind::kDivergence), 6);
  EXPECT_TRUE(std::ranges::is_sorted(kinds, std::ranges::greater{})) << "divergences first";
  EXPECT_THAT(kinds_of_groups,
              Each(testing::Field(&std::pair<const int64_t, std::set<RewardKind>>::second, SizeIs(1))));
}

TEST(Plan, AnEpisodeOfDivergencesHasTheQuestionsThatTheSpecSaysForThem) {
  wire::RunSpec spec = example_spec();
  spec.set_divergence_episodes(4);
  Plan plan = make_plan(spec);
  const std::vector<PlannedEpisode> usual = all_open(&plan);
  spec.set_divergence_questions(2);
  Plan with_fewer = make_plan(spec);
  const std::vector<PlannedEpisode> fewer = all_open(&with_fewer);
  ASSERT_EQ(fewer.size(), usual.size());
  int divergences = 0;
  for (size_t i = 0; i < fewer.size(); ++i) {
    std::vector<uint32_t> expected = usual[i].questions;
    ASSERT_EQ(expected.size(), spec.questions_per_episode());
    if (fewer[i].kind == RewardKind::kDivergence) {
      ++divergences;
      expected.resize(2);
    }
    EXPECT_EQ(fewer[i].questions, expected) << "episode " << i;
  }
  EXPECT_EQ(divergences, 4);
}

TEST(Plan, ProposalsOfOneGroupGetTheSameQuestionsAndTheSameSamplingSeed) {
  Plan plan = make_plan(example_spec());
  const std::vector<PlannedEpisode> episodes = all_open(&plan);
  ASSERT_THAT(episodes, SizeIs(10));
  std::set<uint32_t> seeds;
  for (size_t i = 0; i < episodes.size(); i += 2) {
    const PlannedEpisode &first = episodes[i], &second = episodes[i + 1];
    EXPECT_EQ(first.group, second.group);
    EXPECT_EQ(first.questions, second.questions);
    EXPECT_EQ(first.sampling_seed, second.sampling_seed);
    EXPECT_NE(first.samples, second.samples);
    EXPECT_TRUE(seeds.insert(first.sampling_seed).second) << "two groups share a sampling seed";
  }
}

TEST(Plan, LearningNeverHasMoreOpenThanAreStillWanted) {
  Plan plan = make_plan(example_spec());
  std::vector<PlannedEpisode> open = all_open(&plan);
  EXPECT_THAT(open, SizeIs(10));
  EXPECT_TRUE(plan.tell(open[3], answers(open[3], 2)));
  EXPECT_EQ(plan.next(), std::nullopt);
  plan.give_up(open[4]);
  const std::optional<PlannedEpisode> replacement = plan.next();
  ASSERT_TRUE(replacement.has_value()) << "one that is given up is replaced";
  EXPECT_EQ(replacement->id.value, 10);
  EXPECT_EQ(plan.next(), std::nullopt);
}

TEST(Plan, EpisodesTooStaleToLearnFromAreCountedOutAndReplaced) {
  wire::RunSpec spec = example_spec();
  spec.mutable_policy()->set_max_policy_lag(0);
  Plan plan = make_plan(spec);
  std::vector<PlannedEpisode> open = all_open(&plan);
  int64_t used = 0;
  for (const PlannedEpisode& episode : open) used += plan.tell(episode, answers(episode, 4));
  EXPECT_EQ(used, 4) << "two pairs make an update, after which the other six lag by one version";
  EXPECT_EQ(plan.learned(), used);
  EXPECT_THAT(all_open(&plan), SizeIs(6));
}

TEST(Plan, VerificationPairsUniformLearnedAndDenseOnTheFirstHeldOutQuestions) {
  Plan plan = make_plan(example_spec());
  for (const PlannedEpisode& episode : all_open(&plan)) plan.tell(episode, answers(episode, 1));
  EXPECT_EQ(plan.stage(), Stage::kVerify);
  const std::vector<int32_t> learned = plan.policy().recommend().samples;
  const std::vector<PlannedEpisode> episodes = all_open(&plan);
  ASSERT_THAT(episodes, SizeIs(6));
  for (size_t batch = 0; batch < 2; ++batch) {
    const PlannedEpisode &uniform = episodes[3 * batch], &tuned = episodes[3 * batch + 1],
                         &dense = episodes[3 * batch + 2];
    EXPECT_EQ(uniform.label, "uniform");
    EXPECT_THAT(uniform.samples, Each(8));
    EXPECT_EQ(tuned.label, "learned");
    EXPECT_EQ(tuned.samples, learned);
    EXPECT_EQ(dense.label, "dense");
    EXPECT_THAT(dense.samples, IsEmpty());
    EXPECT_EQ(uniform.questions,
              batch == 0 ? std::vector<uint32_t>({0, 1, 2, 3}) : std::vector<uint32_t>({4, 5}));
    EXPECT_EQ(tuned.questions, uniform.questions);
    EXPECT_EQ(dense.questions, uniform.questions);
    EXPECT_EQ(tuned.sampling_seed, uniform.sampling_seed);
    EXPECT_EQ(dense.sampling_seed, uniform.sampling_seed);
  }
  EXPECT_NE(episodes[0].sampling_seed, episodes[3].sampling_seed);

  plan.give_up(episodes[0]);
  for (size_t i = 1; i < episodes.size(); ++i) plan.tell(episodes[i], answers(episodes[i], 2));
  EXPECT_EQ(plan.stage(), Stage::kFinished);
  EXPECT_EQ(plan.next(), std::nullopt);
  EXPECT_EQ(plan.remaining(), 0);
  const std::vector<VerifiedSchedule>& scores = plan.verified();
  ASSERT_THAT(scores, SizeIs(3));
  EXPECT_EQ(scores[0].answered, 2) << "the group given up is missing";
  EXPECT_EQ(scores[1].answered, 6);
  EXPECT_EQ(scores[1].right, 4);
  EXPECT_EQ(plan.heldout_questions(), 6);
}

TEST(Plan, WithoutHeldOutQuestionsTheRunIsFinishedAfterLearning) {
  wire::RunSpec spec = example_spec();
  spec.mutable_task()->set_heldout_questions(0);
  Plan plan = make_plan(spec);
  for (const PlannedEpisode& episode : all_open(&plan)) plan.tell(episode, answers(episode, 0));
  EXPECT_EQ(plan.stage(), Stage::kFinished);
}

TEST(Plan, RecentRewardsAreTheMeanOfTheEpisodesUsed) {
  Plan plan = make_plan(example_spec());
  EXPECT_EQ(plan.mean_reward_recent(), 0);
  const std::vector<PlannedEpisode> open = all_open(&plan);
  plan.tell(open[0], answers(open[0], 4));
  plan.tell(open[1], answers(open[1], 1));
  EXPECT_DOUBLE_EQ(plan.mean_reward_recent(), (1 + 0.25) / 2);
}

TEST(RunSpec, EveryFieldThatIsOutOfRangeIsNamedWithItsValue) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(0);
  spec.set_questions_per_episode(51);
  spec.mutable_task()->set_heldout_questions(21);
  spec.set_lease_ms(-5);
  spec.set_cross_check(1.5);
  EXPECT_THAT([&] { validate(spec); },
              ThrowsMessage<InvalidArgument>(Names("episodes", 0, "questions_per_episode", 51, 1, 50,
                                                   "task.heldout_questions", 21, "lease_ms", -5,
                                                   "cross_check", 1.5)));
  spec = example_spec();
  spec.mutable_policy()->set_total(3);
  EXPECT_THROW(validate(spec), InvalidArgument);
  EXPECT_NO_THROW(validate(example_spec()));
}

}  // namespace
}  // namespace allot::aggregator
