// What an evaluation asks next, without a core around it.
#include "aggregator/evaluation_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::array<uint32_t, 1> kPerEpisode = {4};

// Two schedules, two repeats, six questions, none answered.
EvaluationWork example_work() {
  EvaluationWork work;
  for (const auto& [label, samples] : {std::pair<std::string, std::vector<int32_t>>("even", {8, 8}),
                                       std::pair<std::string, std::vector<int32_t>>("dense", {})})
    work.schedules.push_back({.label = label,
                              .samples = samples,
                              .repeats = 2,
                              .questions = 6,
                              .scores = std::vector<std::optional<double>>(12)});
  return work;
}

std::vector<QuestionResult> results_of(const PlannedEpisode& episode, double score) {
  std::vector<QuestionResult> results;
  for (const uint32_t question : episode.questions) results.push_back({.question = question, .score = score});
  return results;
}

std::vector<PlannedEpisode> all_of(EvaluationPlan* plan) {
  std::vector<PlannedEpisode> all;
  while (auto episode = plan->next()) all.push_back(*episode);
  return all;
}

TEST(EvaluationPlan, AsksEachScheduleInEachRepeatInBlocksThatEndWithIt) {
  EvaluationPlan plan(example_work(), kPerEpisode);
  plan.begin();
  EXPECT_EQ(plan.remaining(), 8);
  const std::vector<PlannedEpisode> all = all_of(&plan);
  ASSERT_EQ(all.size(), 8u);
  EXPECT_THAT(all[0].questions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(all[1].questions, ElementsAre(4, 5));
  EXPECT_THAT(all[2].questions, ElementsAre(0, 1, 2, 3));
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].label, i < 4 ? "even" : "dense");
    EXPECT_EQ(all[i].samples, i < 4 ? std::vector<int32_t>({8, 8}) : std::vector<int32_t>());
    EXPECT_EQ(all[i].sampling_seed, i / 2 % 2);
    EXPECT_TRUE(all[i].replies);
  }
  EXPECT_EQ(plan.remaining(), 8);  // all open
  EXPECT_FALSE(plan.done());
  for (const PlannedEpisode& one : all) plan.tell(one, results_of(one, 1));
  EXPECT_TRUE(plan.done());
  EXPECT_EQ(plan.told(), 8);
  EXPECT_EQ(plan.remaining(), 0);
}

TEST(EvaluationPlan, AsksOnlyWhatHasNoAnswerAndCountsWhatHas) {
  EvaluationWork work = example_work();
  for (const size_t place : {0, 2, 3, 9}) work.schedules[0].scores[place] = place == 9 ? 0.25 : 1;
  std::ranges::fill(work.schedules[1].scores, std::optional(0.0));
  EvaluationPlan plan(work, kPerEpisode);
  plan.begin();
  EXPECT_EQ(plan.remaining(), 3);  // 3 questions of one repeat, 5 of the other
  const std::vector<PlannedEpisode> all = all_of(&plan);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_THAT(all[0].questions, ElementsAre(1, 4, 5));
  EXPECT_THAT(all[1].questions, ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(all[2].questions, ElementsAre(5));
  plan.tell(all[0], results_of(all[0], 0.5));
  const auto progress = plan.progress();
  ASSERT_EQ(progress.size(), 2u);
  EXPECT_EQ(progress[0].label, "even");
  EXPECT_EQ(progress[0].answered, 7);
  EXPECT_EQ(progress[0].right, 3);
  EXPECT_EQ(progress[0].score_sum, 3 + 0.25 + 1.5);
  EXPECT_EQ(progress[0].wanted, 12);
  EXPECT_EQ(progress[1].answered, 12);
}

TEST(EvaluationPlan, IsDoneAtOnceWhereAllIsAnswered) {
  EvaluationWork work = example_work();
  for (EvaluatedSchedule& one : work.schedules) std::ranges::fill(one.scores, std::optional(1.0));
  EvaluationPlan plan(work, kPerEpisode);
  EXPECT_FALSE(plan.done()) << "the replay has not ended";
  plan.begin();
  EXPECT_TRUE(plan.done());
  EXPECT_EQ(plan.next(), std::nullopt);
}

TEST(EvaluationPlan, LeavesWhatIsGivenUpUnansweredUntilTheNextStart) {
  EvaluationPlan plan(example_work(), kPerEpisode);
  plan.begin();
  const std::vector<PlannedEpisode> all = all_of(&plan);
  plan.give_up(all[0]);
  for (size_t i = 1; i < all.size(); ++i) plan.tell(all[i], results_of(all[i], 1));
  EXPECT_EQ(plan.next(), std::nullopt);
  EXPECT_TRUE(plan.done());
  EXPECT_EQ(plan.given_up(), 4);

  EvaluationPlan next(example_work(), kPerEpisode);
  next.asked_before(all[0]);
  next.give_up(all[0]);
  next.begin();
  EXPECT_EQ(next.given_up(), 0);
  EXPECT_EQ(next.next()->questions, all[0].questions);
}

TEST(EvaluationPlan, TakesOpenEpisodesOverAndAsksTheRest) {
  EvaluationPlan first(example_work(), kPerEpisode);
  first.begin();
  const PlannedEpisode open = *first.next();
  EvaluationPlan plan(example_work(), kPerEpisode);
  plan.asked_before(open);
  EXPECT_TRUE(plan.still_wanted(open, std::vector<bool>(4)));
  plan.begin();
  EXPECT_EQ(plan.remaining(), 8);
  EXPECT_THAT(plan.next()->questions, ElementsAre(4, 5));
}

TEST(EvaluationPlan, DoesNotWantEpisodesOfOtherWorkOrWithAnswersThatTheyLack) {
  EvaluationPlan first(example_work(), kPerEpisode);
  first.begin();
  const PlannedEpisode open = *first.next();
  const auto wanted = [&](const EvaluationWork& work, const std::vector<bool>& kept) {
    EvaluationPlan plan(work, kPerEpisode);
    plan.asked_before(open);
    return plan.still_wanted(open, kept);
  };
  const std::vector<bool> none(4), second = {false, true, false, false};
  EvaluationWork work = example_work();
  EXPECT_TRUE(wanted(work, none));
  EXPECT_FALSE(wanted(work, second)) << "the answer that it has kept is not there";
  work.schedules[0].scores[1] = 1;
  EXPECT_FALSE(wanted(work, none)) << "another has answered a question";
  EXPECT_TRUE(wanted(work, second));
  work = example_work();
  work.schedules[0].samples = {9, 9};
  EXPECT_FALSE(wanted(work, none)) << "another schedule has the name";
  work.schedules.erase(work.schedules.begin());
  EXPECT_FALSE(wanted(work, none)) << "the schedule is not asked any more";
  work = example_work();
  for (EvaluatedSchedule& one : work.schedules) {
    one.questions = 3;
    one.scores.resize(6);
  }
  EXPECT_FALSE(wanted(work, none)) << "fewer questions are asked";
}

// The answers' file is the truth: what the history was told and the file lacks is asked again.
TEST(EvaluationPlan, AsksAgainWhatOnlyTheHistoryKnowsAsAnswered) {
  EvaluationPlan first(example_work(), kPerEpisode);
  first.begin();
  const PlannedEpisode told = *first.next();
  EvaluationWork work = example_work();
  work.schedules[0].scores[0] = 1;
  EvaluationPlan plan(work, kPerEpisode);
  plan.asked_before(told);
  plan.tell(told, results_of(told, 1));
  plan.begin();
  EXPECT_EQ(plan.told(), 0);
  EXPECT_THAT(plan.next()->questions, ElementsAre(1, 2, 3, 4));
}

// Two questions of a second task, in three repeats and one by one, under a schedule of the first.
EvaluationWork two_tasks() {
  EvaluationWork work = example_work();
  work.schedules.pop_back();
  work.schedules.push_back({.label = "b: even",
                            .samples = {8, 8},
                            .task = 1,
                            .repeats = 3,
                            .questions = 2,
                            .scores = std::vector<std::optional<double>>(6)});
  return work;
}
constexpr std::array<uint32_t, 2> kPerEpisodeOfTwo = {4, 1};

TEST(EvaluationPlan, AsksTheQuestionsOfEachTaskInItsRepeats) {
  EvaluationPlan plan(two_tasks(), kPerEpisodeOfTwo);
  plan.begin();
  EXPECT_EQ(plan.remaining(), 4 + 6);
  const std::vector<PlannedEpisode> all = all_of(&plan);
  ASSERT_EQ(all.size(), 10u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].task, i < 4 ? 0u : 1u);
    if (i < 4) continue;
    EXPECT_THAT(all[i].questions, ElementsAre((i - 4) % 2));
    EXPECT_EQ(all[i].sampling_seed, (i - 4) / 2);
  }
  const auto progress = plan.progress();
  EXPECT_EQ(progress[0].wanted, 12);
  EXPECT_EQ(progress[1].wanted, 6);
  for (const PlannedEpisode& one : all) plan.tell(one, results_of(one, 1));
  EXPECT_TRUE(plan.done());
}

TEST(EvaluationPlan, KnowsTheTaskOfAnEpisodeByItsSchedulesName) {
  EvaluationPlan plan(two_tasks(), kPerEpisodeOfTwo);
  PlannedEpisode episode;
  for (const auto& [label, task] : {std::pair("even", 0u), std::pair("b: even", 1u)}) {
    episode.label = label;
    EXPECT_EQ(plan.task_of(episode), task);
  }
  episode.label = "c: even";
  EXPECT_EQ(plan.task_of(episode), std::nullopt);
}

TEST(EvaluationPlan, RefusesWorkThatContradictsItself) {
  EvaluationWork work = example_work();
  work.schedules[1].label = "even";
  EXPECT_THAT([&] { EvaluationPlan(work, kPerEpisode); },
              testing::ThrowsMessage<InvalidArgument>(Names("even")));
  work = example_work();
  work.schedules[1].scores.pop_back();
  EXPECT_THAT([&] { EvaluationPlan(work, kPerEpisode); },
              testing::ThrowsMessage<InvalidArgument>(Names("dense", 11, "2 x 6")));
  EXPECT_THAT([&] { EvaluationPlan(two_tasks(), kPerEpisode); },
              testing::ThrowsMessage<InvalidArgument>(Names("b: even", 1)));
}

}  // namespace
}  // namespace allot::aggregator
