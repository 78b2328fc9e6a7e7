#include "app/report/verdict.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "aggregator/run_spec.h"
#include "app/report/run_again.h"
#include "episode/samples.h"
#include "tests/app/report/example_run.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

aggregator::ScoreRow& score(aggregator::RunData* run, const char* label) {
  return *std::ranges::find(run->scores, label, &aggregator::ScoreRow::label);
}

// What its last version expects.
void set_outlook(aggregator::RunData* run, double gain, double low, double high, double left) {
  auto& scalars = run->versions.back().described.scalars;
  scalars.insert(
      scalars.end(),
      {{"outlook_gain", gain}, {"outlook_low", low}, {"outlook_high", high}, {"outlook_left", left}});
}

TEST(Verdict, SaysWhetherLearningWasOverAndWhatGoingOnMayBring) {
  aggregator::RunData run = example_run({});
  EXPECT_THAT(verdict_of(run, "r").learning, Names("not known", "pairs"));
  set_outlook(&run, 0.1, 0.05, 0.15, 0.012);
  EXPECT_THAT(verdict_of(run, "r").learning,
              AllOf(HasSubstr("Not settled"), Names("+10.0 points (+5.0 to +15.0)", "1.2 points"),
                    Not(HasSubstr("--most-episodes"))));
  run.until_settled = true;
  EXPECT_THAT(verdict_of(run, "r").learning, Names("Not settled", "--most-episodes"));
  run.settled = true;
  EXPECT_THAT(verdict_of(run, "r").learning,
              AllOf(HasSubstr("Settled after"), Names(run.learned.size()), Not(HasSubstr("Not settled"))));
  run.learned_of_other_kinds = 7;
  EXPECT_THAT(verdict_of(run, "r").learning,
              Names("Settled after", run.learned.size() + 7, "7 of them divergences"));
}

TEST(Verdict, SaysInWordsThatThePolicyMadeNoUpdate) {
  aggregator::RunData run = example_run({});
  EXPECT_EQ(verdict_of(run, "r").no_update, "");
  run.recommended = aggregator::even_schedule(run.spec).samples;
  EXPECT_THAT(verdict_of(run, "r").no_update, Names("still is the even one", run.policy_version));
  run.versions.resize(1);
  run.policy_version = 0;
  EXPECT_THAT(verdict_of(run, "r").no_update, Names("The policy made no update", "the even one"));
}

TEST(Verdict, ListsTheFirstQuestionsThatAreLostWithWhatBecameOfBothReplies) {
  aggregator::RunData run = example_run({});
  aggregator::ScoreRow &dense = score(&run, "dense"), &learned = score(&run, "learned");
  std::ranges::fill(dense.scores, 1.0);
  std::ranges::fill(learned.scores, 1.0);
  dense.scores[3] = 0;
  learned.scores[3] = 0;  // wrong with both
  for (const size_t place : {5, 6, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}) learned.scores[place] = 0;
  for (aggregator::ScoreRow* row : {&dense, &learned}) {
    for (size_t i = 0; i < row->questions.size(); ++i)
      row->results.push_back({.question = row->questions[i], .score = row->scores[i], .output_tokens = 31});
  }
  learned.results[5].finish = Finish::kLength;
  learned.results[6].no_answer = true;
  const Verdict verdict = verdict_of(run, "r");
  EXPECT_EQ(verdict.lost, 12);
  ASSERT_THAT(verdict.lost_questions, SizeIs(10));
  EXPECT_EQ(verdict.lost_questions[0].question, 5u);
  EXPECT_EQ(reply_text(verdict.lost_questions[0].dense), "right in 31 tokens");
  EXPECT_EQ(reply_text(verdict.lost_questions[0].learned), "cut off after 31 tokens");
  EXPECT_EQ(reply_text(verdict.lost_questions[1].learned), "no answer in 31 tokens");
  EXPECT_EQ(reply_text(verdict.lost_questions[2].learned), "wrong in 31 tokens");
  ASSERT_TRUE(verdict.to_dense.has_value());
  EXPECT_EQ(verdict.to_dense->pairs.only_first, 0);
  EXPECT_EQ(verdict.to_dense->pairs.only_second, 12);
  ASSERT_THAT(verdict.replies_of, SizeIs(2));
  EXPECT_EQ(verdict.replies_of[0].label, "learned");
  EXPECT_EQ(verdict.replies_of[0].cut_off, 1);
  EXPECT_EQ(verdict.replies_of[0].no_answer, 1);
  EXPECT_THAT(text(verdict.replies_of[0]), Names("learned", "31 tokens each"));
}

TEST(Verdict, CountsValueRowsFromTheScheduleAndTheModelsShape) {
  aggregator::RunData run = example_run({});  // 8 query heads on 4 KV heads of 32, bfloat16
  run.recommended = {10, 600, kExactLayer};
  const Verdict verdict = verdict_of(run, "r");
  ASSERT_THAT(verdict.rows, SizeIs(8));
  EXPECT_EQ(verdict.rows[0].context, 1024);
  EXPECT_EQ(verdict.rows[0].dense, 3 * 4 * 1024);
  EXPECT_EQ(verdict.rows[0].learned, 4 * (2 * 10 + 1024 + 1024))
      << "a layer reads no more rows than there are";
  EXPECT_EQ(verdict.rows[7].context, 131072);
  EXPECT_EQ(verdict.rows[7].learned, 4 * (2 * 10 + 2 * 600 + 131072));
  EXPECT_EQ(verdict.rows[7].dense_bytes, 3 * 4 * 131072 * 32 * 2);
  EXPECT_EQ(verdict.rows[7].learned_bytes, verdict.rows[7].learned * 64);
  run.spec.mutable_attention()->set_estimator("joint");
  run.spec.mutable_attention()->set_unit("rows");
  EXPECT_EQ(verdict_of(run, "r").rows[0].learned, 4 * (10 + 600 + 1024));
  run.spec.mutable_model()->clear_num_kv_heads();
  EXPECT_THAT(verdict_of(run, "r").rows, IsEmpty());
}

TEST(Verdict, NamesTheCommandThatRunsItAgain) {
  aggregator::RunData run = example_run({});
  EXPECT_THAT(verdict_of(run, "runs/it is").command,
              Names("allot tune --run 'runs/it is'", "--total", run.spec.policy().total(),
                    "--policy-option gain=16"));
  EXPECT_THAT(verdict_of(run, "r").command, Not(HasSubstr("--unit")));
  run.spec.mutable_attention()->set_estimator("joint");
  run.spec.mutable_attention()->set_unit("rows");
  EXPECT_THAT(verdict_of(run, "r").command, HasSubstr("--unit rows"));
}

}  // namespace
}  // namespace allot::app
