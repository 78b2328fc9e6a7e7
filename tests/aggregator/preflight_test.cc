#include "aggregator/preflight.h"

#include <gmock/gmock.h>

#include "aggregator/plan.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/file.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/plans.h"
#include "tests/aggregator/replay.h"
#include "tests/names.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr Timestamp kStart{Duration{1'700'000'000'000}};

wire::RunSpec spec_with_preflight(uint32_t questions = 16) {
  wire::RunSpec spec = example_spec();
  spec.set_preflight_questions(questions);
  spec.set_gain_floor(0.005);
  spec.mutable_generation()->set_max_new_tokens(96);
  spec.mutable_task()->set_prompt_style("boxed");
  return spec;
}

// Answers to `count` questions, the first `right` of them right.
std::vector<QuestionResult> answers(uint32_t count, uint32_t right, const QuestionResult& like = {}) {
  std::vector<QuestionResult> results(count, like);
  for (uint32_t i = 0; i < count; ++i) {
    results[i].question = i;
    results[i].score = i < right ? 1 : 0;
  }
  return results;
}

Preflight measured(const wire::RunSpec& spec, const std::vector<QuestionResult>& dense,
                   const std::vector<QuestionResult>& even) {
  Preflight preflight(spec);
  preflight.add("dense", dense, {"a", 1, kStart});
  preflight.add("uniform", even, {"a", 1, kStart});
  return preflight;
}

TEST(Preflight, CountsWhatEachScheduleDid) {
  std::vector<QuestionResult> dense =
      answers(4, 3, {.finish = Finish::kStop, .prompt_tokens = 100, .output_tokens = 50});
  dense[3].finish = Finish::kLength;
  dense[3].no_answer = true;
  const wire::Preflight shown = measured(spec_with_preflight(), dense, answers(4, 1)).describe(false);
  ASSERT_EQ(shown.schedules_size(), 2);
  const wire::PreflightSchedule& row = shown.schedules(0);
  EXPECT_EQ(row.label(), "dense");
  EXPECT_EQ(row.answered(), 4);
  EXPECT_EQ(row.correct(), 3);
  EXPECT_EQ(row.mean(), 0.75);
  EXPECT_EQ(row.cut_off(), 1);
  EXPECT_EQ(row.no_answer(), 1);
  EXPECT_EQ(row.prompt_tokens(), 400);
  EXPECT_EQ(row.output_tokens(), 200);
  EXPECT_EQ(shown.schedules(1).label(), "uniform");
  EXPECT_EQ(shown.schedules(1).correct(), 1);
  EXPECT_EQ(shown.wanted(), 16);
}

TEST(Preflight, TheRunsTimeFollowsFromHowLongWorkersWereBusyAndItsCostFromTheirPrice) {
  wire::RunSpec spec = spec_with_preflight();  // 10 episodes of 4 questions, 3 times 6 held-out ones
  spec.set_price_per_hour(36);
  Preflight preflight(spec);
  // Worker a has both episodes at once for 10 s, b one for 6 s: 16 worker-seconds for 12 answers.
  preflight.add("dense", answers(4, 4), {"a", 10, kStart + Duration{10'000}});
  preflight.add("uniform", answers(4, 4), {"a", 9, kStart + Duration{10'000}});
  preflight.add("dense", answers(4, 4), {"b", 6, kStart + Duration{50'000}});
  wire::Preflight shown = preflight.describe(true);
  EXPECT_DOUBLE_EQ(shown.worker_seconds(), 16);
  EXPECT_EQ(shown.run_episodes(), 10);
  // Questions that were answered before count once.
  EXPECT_DOUBLE_EQ(shown.run_worker_seconds(), 16.0 / 8 * (10 * 4 + 3 * 6));
  EXPECT_DOUBLE_EQ(shown.cost(), shown.run_worker_seconds() / 100);
  spec.set_reward_kind("divergence");  // such episodes generate nothing, the verification does
  shown = measured(spec, answers(4, 4), answers(4, 4)).describe(true);
  EXPECT_DOUBLE_EQ(shown.run_worker_seconds_least(), shown.run_worker_seconds() * 3 * 6 / (10 * 4 + 3 * 6));
}

TEST(Preflight, TheRunTakesLessWhereAWorkersBatchesWillBeLarger) {
  wire::RunSpec spec = spec_with_preflight();  // 10 episodes of 4 questions, 3 times 6 held-out ones
  Preflight preflight = measured(spec, answers(4, 4), answers(4, 4));
  const double most = preflight.describe(true).run_worker_seconds();
  EXPECT_EQ(preflight.describe(true).run_worker_seconds_least(), 0);
  EXPECT_EQ(preflight.describe(true, {{"a", 8}, {"b", 64}}).run_worker_seconds_least(), 0) << "it was full";
  const wire::Preflight shown = preflight.describe(true, {{"a", 64}});
  EXPECT_DOUBLE_EQ(shown.run_worker_seconds(), most);
  EXPECT_DOUBLE_EQ(shown.run_worker_seconds_least(), most * 8 / 64);
  // Divergences generate nothing: they take no longer than as many replies.
  spec.set_divergence_episodes(5);
  spec.set_divergence_questions(2);
  const wire::Preflight mixed = measured(spec, answers(4, 4), answers(4, 4)).describe(true);
  EXPECT_EQ(mixed.run_episodes(), 10);
  EXPECT_DOUBLE_EQ(mixed.run_worker_seconds_least(), most * (5 * 4 + 3 * 6) / (10 * 4 + 3 * 6));
  EXPECT_DOUBLE_EQ(mixed.run_worker_seconds(), most * (5 * 4 + 5 * 2 + 3 * 6) / (10 * 4 + 3 * 6));
}

TEST(Preflight, ARunWhoseDenseAttentionAnswersNextToNothingIsStoppedWithWhatToChange) {
  const wire::RunSpec spec = spec_with_preflight();
  const auto reason = [&](const std::vector<QuestionResult>& dense) {
    return measured(spec, dense, answers(16, 0)).stop_reason();
  };
  EXPECT_THAT(reason(answers(16, 1)), Names("dense", 1, 16, "another model", "--ignore-preflight"));
  EXPECT_THAT(reason(answers(16, 0, {.finish = Finish::kLength})), Names("100%", 96, "--max-new-tokens"));
  EXPECT_THAT(reason(answers(16, 0, {.no_answer = true})), Names("100%", "--prompt-style", "boxed"));
  EXPECT_EQ(reason(answers(16, 2)), "");
  EXPECT_THAT(reason(answers(400, 8)), Names(8, 400)) << "2 % with an interval that ends below 5 %";
  EXPECT_EQ(reason(answers(100, 2)), "") << "2 % of fewer questions may be 5 %";
  EXPECT_EQ(reason(answers(15, 0)), "") << "fifteen answers say too little";
}

TEST(Preflight, ARunWhoseEvenScheduleLosesNothingAgainstDenseIsStopped) {
  wire::RunSpec spec = spec_with_preflight();
  const auto reason = [&](uint32_t dense, uint32_t even) {
    return measured(spec, answers(16, dense), answers(16, even)).stop_reason();
  };
  EXPECT_THAT(reason(14, 14),
              Names("even schedule", 64, 14, 16, "none is lost", "19%", "--total", "--ignore-preflight"));
  EXPECT_EQ(reason(14, 13), "") << "one question of sixteen may be six points";
  EXPECT_EQ(reason(14, 5), "");
  spec.set_gain_floor(0.3);
  EXPECT_THAT(reason(14, 13), Names("the loss is +6.2 points", "30.0 points"));
}

TEST(Preflight, WarnsWhereALayersShareExceedsTheKeysOfATypicalToken) {
  wire::RunSpec spec = spec_with_preflight();  // 8 samples a layer
  const auto warnings = [&](int32_t prompt, int32_t output) {
    const auto dense = answers(16, 14, {.prompt_tokens = prompt, .output_tokens = output});
    const wire::Preflight shown = measured(spec, dense, answers(16, 2)).describe(true);
    return std::vector<std::string>(shown.warnings().begin(), shown.warnings().end());
  };
  EXPECT_THAT(warnings(4, 4), ElementsAre(Names("8 samples", "6 keys", "--total")));
  EXPECT_THAT(warnings(7, 4), IsEmpty());
}

// ---- As a stage of the plan

std::vector<QuestionResult> answers_to(const Episode& episode, size_t right) {
  std::vector<QuestionResult> results =
      answers(static_cast<uint32_t>(episode.questions.size()), static_cast<uint32_t>(right));
  for (size_t i = 0; i < results.size(); ++i) results[i].question = episode.questions[i];
  return results;
}

TEST(PlanWithPreflight, AsksDenseAndTheEvenScheduleOnTheSameTrainingQuestionsAndThenLearns) {
  Plan plan = make_plan(spec_with_preflight(10));
  EXPECT_EQ(plan.stage(), Stage::kPreflight);
  const std::vector<PlannedEpisode> episodes = all_open(&plan);
  ASSERT_THAT(episodes, SizeIs(6)) << "batches of 4, 4 and 2 questions";
  std::set<uint32_t> asked;
  for (size_t i = 0; i < episodes.size(); i += 2) {
    const PlannedEpisode &dense = episodes[i], &even = episodes[i + 1];
    EXPECT_EQ(dense.label, "dense");
    EXPECT_THAT(dense.samples, IsEmpty());
    EXPECT_EQ(even.label, "uniform");
    EXPECT_THAT(even.samples, ElementsAre(8, 8, 8, 8, 8, 8, 8, 8));
    EXPECT_EQ(dense.questions, even.questions);
    EXPECT_EQ(dense.sampling_seed, even.sampling_seed);
    EXPECT_EQ(dense.split, Split::kTrain);
    asked.insert(dense.questions.begin(), dense.questions.end());
  }
  EXPECT_THAT(asked, SizeIs(10));

  for (size_t i = 0; i + 1 < episodes.size(); ++i)
    plan.tell(episodes[i], answers_to(episodes[i], episodes[i].samples.empty() ? 4 : 1));
  EXPECT_EQ(plan.next(), std::nullopt) << "one episode of the preflight is open";
  plan.give_up(episodes.back());
  EXPECT_EQ(plan.stage(), Stage::kLearn);
  const std::vector<PlannedEpisode> learning = all_open(&plan);
  ASSERT_THAT(learning, SizeIs(10));
  EXPECT_EQ(learning[0].id.value, 6);
  EXPECT_TRUE(plan.tell(learning[0], answers_to(learning[0], 2))) << "the policy knows it as its proposal 0";
  plan.give_up(learning[1]);
}

TEST(PlanWithPreflight, AReasonAgainstLearningEndsTheRunUnlessItIsIgnored) {
  for (const bool ignore : {false, true}) {
    wire::RunSpec spec = spec_with_preflight();
    spec.set_ignore_preflight(ignore);
    Plan plan = make_plan(spec);
    for (const PlannedEpisode& episode : all_open(&plan)) plan.tell(episode, answers_to(episode, 0));
    EXPECT_THAT(plan.preflight().stop_reason(), HasSubstr("dense attention"));
    EXPECT_EQ(plan.stage(), ignore ? Stage::kLearn : Stage::kFinished);
    EXPECT_EQ(plan.next().has_value(), ignore);
    EXPECT_EQ(plan.remaining(), ignore ? 10 + 6 : 0);
  }
}

// ---- Through messages, histories and restarts

class CoreWithPreflight : public testing::TestWithParam<Storage> {};
INSTANTIATE_TEST_SUITE_P(Storages, CoreWithPreflight, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

wire::QuestionOutcome* outcome(wire::EpisodeResult* result, int i) {
  return result->mutable_outcomes(i);
}

// Answers all leases: `right` of four under dense, one under a schedule; the last reply holds no answer.
void answer_all(CoreDriver* driver, const std::vector<wire::Lease>& leases, int right) {
  for (const wire::Lease& lease : leases) {
    wire::EpisodeResult result = result_of(lease, lease.samples_size() == 0 ? right : 1);
    outcome(&result, result.outcomes_size() - 1)->set_no_answer(true);
    driver->answer("w", result);
  }
}

TEST_P(CoreWithPreflight, ARestartInItsMiddleLosesNothing) {
  CoreDriver driver(GetParam(), spec_with_preflight());
  driver.hello("w");
  const std::vector<wire::Lease> leases = driver.leases("w", 20);
  ASSERT_THAT(leases, SizeIs(8));
  answer_all(&driver, {leases.begin(), leases.begin() + 5}, 4);
  EXPECT_EQ(driver.status().stage(), "preflight");
  EXPECT_FALSE(driver.status().preflight().done());
  EXPECT_EQ(driver.status().preflight().schedules(0).no_answer(), 3);
  const std::string before = driver.status().preflight().SerializeAsString();
  driver.crash();
  EXPECT_EQ(driver.status().preflight().SerializeAsString(), before);
  driver.hello("w", {leases[5].lease(), leases[6].lease(), leases[7].lease()});
  answer_all(&driver, {leases.begin() + 5, leases.end()}, 4);
  EXPECT_EQ(driver.status().stage(), "learn");
  EXPECT_EQ(driver.status().preflight().stop_reason(), "");
  finish(&driver, "w");
  EXPECT_EQ(driver.status().stage(), "finished");
  EXPECT_EQ(driver.status().episodes_done(), 10);
  driver.crash();
  EXPECT_EQ(driver.status().stage(), "finished");
  EXPECT_TRUE(driver.core().replayed_exactly());
  replay_by_hand(driver.history(), driver.spec());
}

TEST_P(CoreWithPreflight, ARunThatItStopsTellsWorkersSoAndStaysStopped) {
  CoreDriver driver(GetParam(), spec_with_preflight());
  driver.hello("w");
  answer_all(&driver, driver.leases("w", 20), 0);
  EXPECT_EQ(driver.status().stage(), "finished");
  EXPECT_EQ(driver.status().eta_s(), 0);
  EXPECT_THAT(driver.status().preflight().stop_reason(), Names("dense", "0 of 16"));
  EXPECT_TRUE(driver.request("w", 1).wait().finished());
  driver.crash();
  EXPECT_EQ(driver.status().stage(), "finished");
  EXPECT_FALSE(driver.control(wire::Control::ACTION_EPISODES, 20).done());
}

TEST_P(CoreWithPreflight, AnOperatorWhoStopsTheLearningMeanwhileGetsTheVerificationAlone) {
  CoreDriver driver(GetParam(), spec_with_preflight());
  driver.hello("w");
  const std::vector<wire::Lease> leases = driver.leases("w", 20);
  EXPECT_TRUE(driver.control(wire::Control::ACTION_STOP).done());
  EXPECT_EQ(driver.status().stage(), "preflight");
  answer_all(&driver, leases, 4);
  EXPECT_EQ(driver.status().stage(), "verify");
  driver.crash();
  EXPECT_EQ(driver.status().stage(), "verify");
}

TEST(HistoryWithPreflight, ReadersSeeTheStageAndTheFiguresThatTheAggregatorShows) {
  for (const int right : {4, 0}) {
    CoreDriver driver(Storage::kSqlite, spec_with_preflight());
    const auto directory = driver.file().parent_path();
    write_file_atomically(spec_path(directory), wire::to_json(driver.spec()));
    const auto look = [&] {
      const RunData data = read_run(directory);
      EXPECT_EQ(data.stage, driver.status().stage());
      ASSERT_TRUE(data.preflight.has_value());
      EXPECT_EQ(data.preflight->SerializeAsString(), driver.status().preflight().SerializeAsString());
      EXPECT_THAT(data.learned, IsEmpty());
    };
    driver.hello("w");
    look();
    const std::vector<wire::Lease> leases = driver.leases("w", 20);
    answer_all(&driver, {leases.begin(), leases.begin() + 3}, right);
    driver.clock().advance(Duration{2'500});
    look();
    answer_all(&driver, {leases.begin() + 3, leases.end()}, right);
    look();
    EXPECT_EQ(driver.status().stage(), right == 0 ? "finished" : "learn");
  }
}

}  // namespace
}  // namespace allot::aggregator
