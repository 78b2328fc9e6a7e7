// What becomes of leases: answers of workers that leave, late results, failures and who has to wait for them.
#include <gmock/gmock.h>

#include <limits>

#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/replay.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Ack;
using wire::Refused;
using namespace std::chrono_literals;

class CoreResultsTest : public CoreDriverTest {};
INSTANTIATE_TEST_SUITE_P(Histories, CoreResultsTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

// ---- Answers kept

// The second worker says nothing that the release before this one would not have said.
TEST_P(CoreResultsTest, AnswersThatCameWithAReleaseAreKeptAndAWorkerThatKnowsNothingOfThemAnswersTheRest) {
  driver_.hello("a");
  driver_.hello("b");
  const wire::Lease whole = lease("a");
  driver_.release("a", whole, {0, 2});
  for (const bool crash : {false, true}) {
    if (crash) {
      driver_.crash();
      driver_.hello("b");  // without the lease it got: asked again
    }
    const wire::Lease rest = lease("b");
    EXPECT_EQ(rest.episode(), whole.episode());
    EXPECT_EQ(rest.attempt(), crash ? 2 : 1);
    EXPECT_THAT(rest.questions(), ElementsAre(whole.questions(1), whole.questions(3)));
    EXPECT_EQ(rest.sampling_seed(), whole.sampling_seed());
    if (!crash) continue;
    EXPECT_EQ(driver_.answer("b", result_of(rest, 1)).verdict(), Ack::VERDICT_ACCEPTED);
  }
  std::vector<EpisodeTold> told = driver_.records_of<EpisodeTold>();
  ASSERT_THAT(told, SizeIs(1));
  for (QuestionResult& result : told[0].results) result.question = 0;  // which a file does not repeat
  EXPECT_THAT(told[0].results, ElementsAre(QuestionResult{0, 1, Finish::kLength, 100, 10},
                                           QuestionResult{0, 1, Finish::kStop, 200, 50},
                                           QuestionResult{0, 1, Finish::kLength, 102, 10},
                                           QuestionResult{0, 0, Finish::kStop, 200, 50}));
  EXPECT_DOUBLE_EQ(told[0].seconds, 0.25 + 0.5);
  EXPECT_DOUBLE_EQ(driver_.status().mean_reward_recent(), 0.75);
  EXPECT_EQ(driver_.status().counters().answers_kept(), 2);
  driver_.crash();
  EXPECT_DOUBLE_EQ(driver_.status().mean_reward_recent(), 0.75);
}

TEST_P(CoreResultsTest, KeptAnswersAreInTheHistoryBeforeTheReleaseIsAnswered) {
  driver_.hello("a");
  const wire::Lease whole = lease("a");
  wire::Envelope message;
  message.mutable_release()->add_leases(whole.lease());
  *message.mutable_release()->add_partial() = CoreDriver::partial_of(whole, {1});
  driver_.core().receive({"peer of a"}, wire::encode(message), driver_.clock().now());
  const Outputs outputs = driver_.core().take();
  ASSERT_THAT(outputs.records, SizeIs(2));
  const std::vector<QuestionResult>& kept = std::get<AnswersKept>(outputs.records[0]).results;
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(kept[0].question, whole.questions(1));
  EXPECT_TRUE(std::holds_alternative<LeaseEnded>(outputs.records[1]));
  ASSERT_THAT(outputs.replies, SizeIs(1));
  EXPECT_TRUE(outputs.replies[0].envelope.has_released());
}

TEST_P(CoreResultsTest, AReleaseThatAnswersTheLastQuestionIsTheEpisodesResult) {
  driver_.hello("a");
  driver_.release("a", lease("a"), {0, 1, 2});
  driver_.hello("b");
  const wire::Lease last = lease("b");
  ASSERT_EQ(last.questions_size(), 1);
  driver_.release("b", last, {0});
  EXPECT_EQ(driver_.status().episodes_done(), 1);
  EXPECT_EQ(driver_.status().counters().accepted(), 1);
  EXPECT_EQ(driver_.status().counters().released(), 1) << "the second lease is answered, not released";
  driver_.hello("c");
  EXPECT_EQ(lease("c").episode(), last.episode() + 1);
  EXPECT_EQ(driver_.answer("b", result_of(last, 1)).stored(), Ack::VERDICT_ACCEPTED);
}

TEST_P(CoreResultsTest, ARepeatedReleaseKeepsNothingTwice) {
  driver_.hello("a");
  const wire::Lease whole = lease("a");
  driver_.release("a", whole, {0, 2});
  driver_.release("a", whole, {0, 1, 2});
  EXPECT_THAT(driver_.records_of<AnswersKept>(), SizeIs(2));
  EXPECT_EQ(driver_.status().counters().answers_kept(), 3);
  EXPECT_EQ(driver_.status().counters().released(), 1);
  driver_.crash();
  driver_.hello("a");
  EXPECT_THAT(lease("a").questions(), ElementsAre(whole.questions(3)));
}

TEST_P(CoreResultsTest, AWorkerThatWasSilentTooLongStillLeavesItsAnswersBehind) {
  driver_.hello("a");
  driver_.hello("b");
  const wire::Lease slow = lease("a");
  driver_.clock().advance(60s);
  driver_.tick();
  const wire::Lease second = lease("b");
  driver_.release("a", slow, {1});
  EXPECT_EQ(driver_.status().counters().answers_kept(), 1);
  EXPECT_EQ(driver_.status().counters().released(), 0);
  EXPECT_EQ(driver_.answer("b", result_of(second, 4)).verdict(), Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(driver_.records_of<EpisodeTold>().at(0).results.at(1).finish, Finish::kLength)
      << "the answer that was kept first stands";
}

TEST_P(CoreResultsTest, AnswersThatDoNotFitAreDroppedAndTheirLeaseIsReleasedAllTheSame) {
  using Change = void (*)(wire::PartialResult*);
  const std::vector<Change> changes{
      [](wire::PartialResult* p) { p->mutable_outcomes(0)->set_question(49'999); },
      [](wire::PartialResult* p) { p->mutable_outcomes()->SwapElements(0, 1); },
      [](wire::PartialResult* p) { *p->add_outcomes() = p->outcomes(1); },
      [](wire::PartialResult* p) { p->mutable_outcomes(1)->set_prompt_tokens(-3); },
      [](wire::PartialResult* p) { p->mutable_outcomes(1)->set_finish(wire::FINISH_REASON_UNSPECIFIED); },
      [](wire::PartialResult* p) { p->set_seconds(std::numeric_limits<double>::infinity()); },
      [](wire::PartialResult* p) { p->set_episode(7); },
      [](wire::PartialResult* p) { p->set_lease(std::numeric_limits<int64_t>::min()); },
  };
  driver_.hello("a");
  for (const Change change : changes) {
    const wire::Lease held = lease("a");
    EXPECT_EQ(held.questions_size(), 4);
    wire::Envelope message;
    message.mutable_release()->add_leases(held.lease());
    *message.mutable_release()->add_partial() = CoreDriver::partial_of(held, {0, 2});
    change(message.mutable_release()->mutable_partial(0));
    driver_.send("a", message, {held.lease()});
  }
  EXPECT_THAT(driver_.records_of<AnswersKept>(), IsEmpty());
  EXPECT_EQ(driver_.status().counters().released(), static_cast<int64_t>(changes.size()));
  EXPECT_EQ(driver_.status().counters().rejected(), 6);

  driver_.hello("b");
  const wire::Lease held = lease("a");
  driver_.release("b", held, {0});
  EXPECT_THAT(driver_.records_of<AnswersKept>(), IsEmpty()) << "b does not hold it";
}

// ---- Counters

TEST_P(CoreResultsTest, PreemptedCrashedAndTimedOutAreCountedApartAndOutliveACrash) {
  driver_.hello("w");
  driver_.release("w", lease("w"), {}, wire::Release::REASON_STOPPED);
  driver_.release("w", lease("w"), {}, wire::Release::REASON_PREEMPTED);
  driver_.release("w", lease("w"), {}, wire::Release::REASON_UNSPECIFIED);
  (void)lease("w");
  driver_.hello("w");  // without it
  (void)lease("w");
  driver_.clock().advance(60s);
  driver_.tick();
  wire::EpisodeResult broke;
  const wire::Lease last = lease("w");
  broke.set_lease(last.lease());
  broke.set_episode(last.episode());
  broke.set_error("device lost");
  broke.set_crashed(true);
  EXPECT_EQ(driver_.answer("w", broke).verdict(), Ack::VERDICT_FAILED);
  EXPECT_EQ(driver_.answer("w", broke).verdict(), Ack::VERDICT_DUPLICATE);
  driver_.tick();
  driver_.crash();
  const wire::Counters counters = driver_.status().counters();
  EXPECT_EQ(counters.released(), 3);
  EXPECT_EQ(counters.preempted(), 1);
  EXPECT_EQ(counters.expired(), 2);
  EXPECT_EQ(counters.timed_out(), 1);
  EXPECT_EQ(counters.crashed(), 2);
  EXPECT_EQ(counters.failed(), 1);
  EXPECT_EQ(counters.duplicate(), 1);
}

// ---- Late results and clocks

TEST_P(CoreResultsTest, WhatAWorkerToldOfItsWorkIsInTheStatusUnlessItIsImpossible) {
  driver_.hello("w");
  const auto answer_with = [&](double seconds, int64_t tokens, double busy_seconds, double slot_seconds,
                               int64_t memory_used = 90) {
    wire::EpisodeResult result = result_of(driver_.leases("w", 1).at(0), 1);
    wire::WorkerLoad& load = *result.mutable_load();
    load.set_seconds(seconds);
    load.set_output_tokens(tokens);
    load.set_busy_seconds(busy_seconds);
    load.set_slot_seconds(slot_seconds);
    load.set_memory_used_bytes(memory_used);
    load.set_memory_total_bytes(100);
    EXPECT_EQ(driver_.answer("w", result).verdict(), wire::Ack::VERDICT_ACCEPTED) << seconds;
  };
  EXPECT_FALSE(driver_.status().workers(0).has_load());
  answer_with(10, 5000, 8, 6);
  constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
  answer_with(0, 1, 0, 0);
  answer_with(kNothing, 1, 0, 0);
  answer_with(10, -1, 8, 6);
  answer_with(10, 1, 11, 6);
  answer_with(10, 1, 8, 9);
  answer_with(10, 1, kNothing, 0);
  answer_with(10, 1, 8, kNothing);
  answer_with(10, 1, 8, 6, 101);
  answer_with(10, 1, 8, 6, -1);
  const wire::WorkerLoad load = driver_.status().workers(0).load();
  EXPECT_EQ(load.output_tokens(), 5000);
  EXPECT_EQ(load.busy_seconds(), 8);
  EXPECT_EQ(load.memory_used_bytes(), 90);
  answer_with(20, 1, 0, 0);
  EXPECT_EQ(driver_.status().workers(0).load().seconds(), 20);
}

TEST_P(CoreResultsTest, AMessageByTheWelcomeOfAnotherEpochIsAskedToSayHelloAndChangesNothing) {
  driver_.hello("w");
  const wire::Lease held = lease("w");
  driver_.crash();
  driver_.hello("w", {held.lease()});
  for (const int64_t epoch : {int64_t{1}, int64_t{3}, int64_t{-1}}) {
    wire::Envelope message;
    message.set_epoch(epoch);
    *message.mutable_result() = result_of(held, 4);
    const wire::Refused refused = driver_.send("w", message, {held.lease()}).refused();
    EXPECT_EQ(refused.reason(), Refused::REASON_NOT_INTRODUCED);
    EXPECT_THAT(refused.message(), Names(fmt::format("epoch {}", epoch), "epoch 2"));
  }
  EXPECT_EQ(driver_.status().episodes_done(), 0);
  wire::Envelope message;
  message.set_epoch(2);
  *message.mutable_result() = result_of(held, 4);
  EXPECT_EQ(driver_.send("w", message).ack().verdict(), Ack::VERDICT_ACCEPTED)
      << "granted in epoch 1, still held";
}

TEST(CoreResults, ALateResultIsUsedUpToTheAllowedLagAndStaleBeyond) {
  for (const int64_t lag : {1, 2}) {
    wire::RunSpec spec = example_spec();
    *spec.mutable_policy() = policy_spec(
        {.name = "reinforce", .total = 64, .max_policy_lag = 1, .parameters = {{"episodes_per_update", 2}}});
    CoreDriver driver(Storage::kMemory, spec);
    driver.hello("slow");
    driver.hello("w");
    const wire::Lease late = driver.leases("slow", 1).at(0);
    driver.clock().advance(60s);
    driver.tick();
    ASSERT_EQ(driver.leases("w", 1).at(0).episode(), late.episode()) << "it is offered again";
    for (int i = 1; i <= 2 * lag; ++i) driver.answer("w", result_of(driver.leases("w", 1).at(0), i));
    ASSERT_EQ(driver.status().policy_version(), lag);
    EXPECT_EQ(driver.answer("slow", result_of(late, 4)).verdict(),
              lag == 1 ? Ack::VERDICT_LATE : Ack::VERDICT_STALE);
    EXPECT_EQ(driver.status().counters().stale(), lag - 1);
    EXPECT_EQ(driver.status().episodes_done(), 2 * lag + (lag == 1 ? 1 : 0));
    const std::string state = driver.core().policy().save();
    driver.crash();
    EXPECT_EQ(driver.core().policy().save(), state);
  }
}

// The service's clock never jumps while it runs (base/clock.h), but each start reads the wall clock anew.
TEST_P(CoreResultsTest, AWallClockThatJumpsByHoursBetweenTwoStartsExpiresNoLease) {
  driver_.hello("w");
  wire::Lease held = lease("w");
  int64_t expired = 0;
  for (const Duration jump : {Duration{-10h}, Duration{30h}}) {
    driver_.clock().advance(jump);
    driver_.crash();
    driver_.tick();
    driver_.hello("w", {held.lease()});
    driver_.clock().advance(59s);
    driver_.tick();
    EXPECT_EQ(driver_.status().counters().expired(), expired);
    EXPECT_EQ(driver_.answer("w", result_of(held, 4)).verdict(), Ack::VERDICT_ACCEPTED);
    EXPECT_GE(driver_.status().elapsed_s(), 0);
    held = lease("w");
    driver_.clock().advance(60s);
    driver_.tick();
    EXPECT_EQ(driver_.status().counters().timed_out(), ++expired) << "and a real minute does";
    held = lease("w");
  }
}

// ---- Partial credit

TEST_P(CoreResultsTest, ScoresBetweenRightAndWrongAreStoredAndLearnedFrom) {
  driver_.hello("w");
  const std::vector<double> scores = {0.25, 1, 0, 1.0 / 3};
  const auto graded = [&](const wire::Lease& held) {
    wire::EpisodeResult result = result_of(held, 0);
    for (int i = 0; i < result.outcomes_size(); ++i) {
      result.mutable_outcomes(i)->set_correct(scores[static_cast<size_t>(i)] == 1);
      result.mutable_outcomes(i)->set_score(scores[static_cast<size_t>(i)]);
    }
    return result;
  };
  EXPECT_EQ(driver_.answer("w", graded(lease("w"))).verdict(), Ack::VERDICT_ACCEPTED);
  const double expected = (0.25 + 1 + 1.0 / 3) / 4;
  EXPECT_DOUBLE_EQ(driver_.status().mean_reward_recent(), expected);
  for (int episode = 1; episode < 10; ++episode) driver_.answer("w", graded(lease("w")));
  for (wire::Lease held = lease("w"); held.lease() != 0;) {  // the verification
    driver_.answer("w", graded(held));
    const std::vector<wire::Lease> next = driver_.leases("w", 1);
    if (next.empty()) break;
    held = next[0];
  }
  const wire::Status before = driver_.status();
  ASSERT_EQ(before.stage(), "finished");
  EXPECT_GT(before.scores(0).answered(), 0);
  EXPECT_TRUE(before.scores(0).has_mean());
  const std::string policy = driver_.core().policy().save();
  driver_.crash();
  const wire::Status after = driver_.status();
  EXPECT_EQ(driver_.core().policy().save(), policy) << "the replay learns from the same scores";
  EXPECT_EQ(after.scores(0).mean(), before.scores(0).mean());
  EXPECT_DOUBLE_EQ(after.mean_reward_recent(), expected);
  const std::vector<QuestionResult> stored = driver_.records_of<EpisodeTold>().at(0).results;
  ASSERT_THAT(stored, SizeIs(4));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(stored[i].score, scores[i]);
}

TEST_P(CoreResultsTest, KeptAnswersKeepTheirScores) {
  driver_.hello("a");
  driver_.hello("b");
  const wire::Lease whole = lease("a");
  wire::Envelope message;
  message.mutable_release()->add_leases(whole.lease());
  wire::PartialResult& partial = *message.mutable_release()->add_partial() =
      CoreDriver::partial_of(whole, {1});
  partial.mutable_outcomes(0)->set_score(0.75);
  driver_.send("a", std::move(message));
  driver_.crash();
  driver_.hello("b");
  const wire::Lease rest = lease("b");
  ASSERT_EQ(rest.questions_size(), 3);
  driver_.answer("b", result_of(rest, 3));
  EXPECT_EQ(driver_.records_of<EpisodeTold>().at(0).results.at(1).score, 0.75);
  EXPECT_DOUBLE_EQ(driver_.status().mean_reward_recent(), 3.75 / 4);
}

TEST_P(CoreResultsTest, AScoreThatTheKindCannotHaveIsRejected) {
  driver_.hello("w");
  for (const double score : {-0.25, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    wire::EpisodeResult result = result_of(lease("w"), 4);
    result.mutable_outcomes(2)->set_score(score);
    EXPECT_EQ(driver_.answer("w", result).verdict(), Ack::VERDICT_REJECTED) << score;
  }
  EXPECT_EQ(driver_.status().episodes_done(), 0);
}

}  // namespace
}  // namespace allot::aggregator
