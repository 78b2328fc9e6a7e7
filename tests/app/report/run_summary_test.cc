#include "app/report/run_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

#include "base/error.h"
#include "evaluation/statistics.h"
#include "tests/app/report/example_run.h"
#include "tests/names.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using ::testing::DoubleNear;

// Six questions; learned is right on 1, 2, 4, 5, uniform on 2, 3.
aggregator::RunData six_questions() {
  aggregator::RunData run = example_run();
  const std::vector<uint32_t> questions = {0, 1, 2, 3, 4, 5};
  run.scores = {{.label = "uniform", .samples = {}, .questions = questions, .scores = {0, 0, 1, 1, 0, 0}},
                {.label = "learned", .samples = {}, .questions = questions, .scores = {0, 1, 1, 0, 1, 1}}};
  return run;
}

TEST(MovingMean, IsTheMeanOfTheLastTwentyWithTheIntervalOfTheirSpread) {
  std::vector<aggregator::LearnedEpisode> episodes(30, {.finished = {}, .reward = 0.5});
  episodes[0].reward = 1;
  const auto after = [&](size_t count) {
    return moving_mean(std::span(episodes).first(count), RewardKind::kAnswers);
  };
  EXPECT_EQ(after(1).mean, 1);
  EXPECT_EQ(after(1).low, 1);  // one value has no spread
  EXPECT_DOUBLE_EQ(after(2).mean, 0.75);
  // Standard error of {1, 0.5}: sqrt(0.125 / 2) = 0.25.
  EXPECT_NEAR(after(2).low, 0.75 - 1.959963984540054 * 0.25, 1e-12);
  EXPECT_EQ(after(2).high, 1);  // 1.24 cut to what a reward can be
  // Of {1, 0.5, 0.5}: sqrt(1/6 / 2 / 3) = 1/6.
  EXPECT_NEAR(after(3).low, 2.0 / 3 - 1.959963984540054 / 6, 1e-12);
  EXPECT_DOUBLE_EQ(after(20).mean, 0.525);
  EXPECT_DOUBLE_EQ(after(21).mean, 0.5);  // the first value has left the window
}

TEST(Evaluate, PartialCreditCountsByItsScores) {
  aggregator::RunData run = six_questions();
  run.scores[1].scores = {0, 1, 1, 0.25, 1, 0.5};
  const EvaluationRecord evaluation = evaluate(run);
  ASSERT_TRUE(evaluation.uniform && evaluation.learned && evaluation.paired);
  EXPECT_DOUBLE_EQ(evaluation.uniform->value, 2.0 / 6);
  EXPECT_EQ(evaluation.learned->correct, 3);
  EXPECT_DOUBLE_EQ(evaluation.learned->value, 3.75 / 6);
  const evaluation::PairedTest test = evaluation::compare_scores(run.scores[1].scores, run.scores[0].scores);
  EXPECT_TRUE(evaluation.paired->graded);
  EXPECT_DOUBLE_EQ(evaluation.paired->difference, 1.75 / 6);
  EXPECT_EQ(evaluation.paired, test);
  EXPECT_EQ(evaluation.paired->pairs.only_first, 3);
  EXPECT_EQ(evaluation.paired->pairs.only_second, 1);
  // And in the file.
  const ScheduleFile file = schedule_file_of(run, "test");
  EXPECT_EQ(parse_schedule_file(format_schedule_file(file), "s.json").evaluation, evaluation);
}

TEST(Evaluate, CountsRightAnswersAndPairsThemByQuestion) {
  const EvaluationRecord evaluation = evaluate(six_questions());
  ASSERT_TRUE(evaluation.uniform && evaluation.learned && evaluation.paired);
  EXPECT_EQ(evaluation.uniform->questions, 6);
  EXPECT_EQ(evaluation.uniform->correct, 2);
  EXPECT_EQ(evaluation.learned->correct, 4);
  EXPECT_EQ(evaluation.learned->interval, evaluation::wilson_interval(4, 6));
  EXPECT_EQ(evaluation.paired->pairs.only_first, 3);
  EXPECT_EQ(evaluation.paired->pairs.only_second, 1);
  EXPECT_THAT(evaluation.paired->difference, DoubleNear(2.0 / 6, 1e-12));
  EXPECT_THAT(evaluation.paired->p_value, DoubleNear(0.625, 1e-12));  // 2 (1 + 4) / 2^4
  EXPECT_FALSE(evaluation.dense);
}

TEST(Evaluate, LeavesOutWhatIsNotThereAndDoesNotPairDifferentQuestions) {
  aggregator::RunData run = six_questions();
  run.scores[0].questions.pop_back();
  run.scores[0].scores.pop_back();
  EXPECT_FALSE(evaluate(run).paired);
  EXPECT_TRUE(evaluate(run).uniform);
  run.scores.clear();
  EXPECT_EQ(evaluate(run), EvaluationRecord{});
}

TEST(Evaluate, RefusesScoresThatContradictThemselves) {
  aggregator::RunData run = six_questions();
  run.scores[1].scores.pop_back();
  EXPECT_THROW((void)evaluate(run), CorruptFile);
  run = six_questions();
  run.scores[1].questions[3] = 2;
  try {
    (void)evaluate(run);
    FAIL() << "a question counted twice";
  } catch (const CorruptFile& error) {
    EXPECT_THAT(error.what(), Names("learned", "question", 2, 2));
  }
}

TEST(ScheduleFileOf, CarriesTheRunIntoAFileThatIsAcceptedAndMatchesItsModel) {
  aggregator::RunData run = example_run();
  const ScheduleFile file = schedule_file_of(run, "0.1.0");
  EXPECT_EQ(parse_schedule_file(format_schedule_file(file), "s.json"), file);
  EXPECT_EQ(file.schedule.samples, run.recommended);
  EXPECT_EQ(file.total, 64);
  EXPECT_EQ(file.floor, 1);
  EXPECT_EQ(file.conditions.attention.estimator, kernels::Estimator::kSys);
  EXPECT_EQ(file.conditions.attention.prefill, kernels::Prefill::kSampled);
  EXPECT_EQ(file.run_id, run.spec.run_id());
  EXPECT_TRUE(file.start.samples.empty());
  EXPECT_EQ(file.policy_version, run.policy_version);
  EXPECT_EQ(file.conditions, worker::conditions_of(run.spec));
  EXPECT_EQ(file.evaluation, evaluate(run));
  const model::ModelIdentity model{.id = "elsewhere",
                                   .config_sha256 = run.spec.model().config_sha256(),
                                   .tokenizer_sha256 = run.spec.model().tokenizer_sha256(),
                                   .weights_fingerprint = run.spec.model().weights_fingerprint(),
                                   .layers = 8,
                                   .num_q_heads = 8,
                                   .num_kv_heads = 4,
                                   .head_dim = 32};
  EXPECT_NO_THROW(check_matches(file, model));
  run.spec.mutable_policy()->set_start("15,7,7,7,7,7,7,7");
  EXPECT_EQ(schedule_file_of(run, "0.1.0").start.to_string(), "15,7,7,7,7,7,7,7");
  EXPECT_FALSE(file.calibration.has_value()) << "learned from answers";
}

TEST(ScheduleFileOf, KeepsTheSharesOfThePolicyForOtherTotals) {
  aggregator::RunData run = example_run();
  run.recommended = {36, 4, 4, 4, 4, 4, 4, 4};
  run.versions.back().described.per_layer = {0.625, 0.0525, 0.0525, 0.054, 0.054, 0.054, 0.054, 0.054};
  const ScheduleFile file = schedule_file_of(run, "0.1.0");
  ASSERT_TRUE(file.costs);
  EXPECT_EQ(file.costs->shares, run.versions.back().described.per_layer);
  EXPECT_EQ(resolve_total(file, 1008).schedule.samples,
            policy::apportion(run.versions.back().described.per_layer, 1008, 1).samples);
  // Of a learner that describes something else, those of its schedule.
  run.versions.back().described.layer_name = "need";
  EXPECT_DOUBLE_EQ(schedule_file_of(run, "0.1.0").costs->shares[0], 35.0 / 56);
  run.versions.clear();
  EXPECT_DOUBLE_EQ(schedule_file_of(run, "0.1.0").costs->shares[1], 3.0 / 56);
}

TEST(ScheduleFileOf, SaysThatDivergencesLedToTheSchedule) {
  aggregator::RunData run = example_run();
  run.kind = RewardKind::kDivergence;
  ScheduleFile file = schedule_file_of(run, "0.1.0");
  EXPECT_EQ(parse_schedule_file(format_schedule_file(file), "s.json"), file);
  EXPECT_EQ(file.calibration, (CalibrationRecord{.reward = "divergence", .mode = "reply", .check = {}}));
  EXPECT_EQ(file.evaluation, evaluate(run)) << "verified on answers like any other";

  run.kind = RewardKind::kAnswers;
  run.spec.set_divergence_episodes(60);
  run.spec.mutable_attention()->set_prefill("dense");
  file = schedule_file_of(run, "0.1.0");
  EXPECT_EQ(parse_schedule_file(format_schedule_file(file), "s.json"), file);
  EXPECT_EQ(file.calibration, (CalibrationRecord{.reward = "mixed", .mode = "decode", .check = {}}));
}

}  // namespace
}  // namespace allot::app
