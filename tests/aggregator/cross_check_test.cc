// Cross-checked grades: which episodes are run once more and by whom, what counts as a disagreement, and that
// neither the learner nor a restart sees a difference.
#include "aggregator/cross_check.h"

#include <gmock/gmock.h>

#include "aggregator/history_check.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/file.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/replay.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::IsEmpty;
using testing::SizeIs;

wire::RunSpec checked_spec(double share) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(100);
  spec.set_cross_check(share);
  return spec;
}

std::vector<QuestionResult> results(std::vector<double> scores) {
  std::vector<QuestionResult> made;
  for (const double score : scores) made.push_back({.question = 0, .score = score});
  return made;
}

class CrossCheckTest : public testing::TestWithParam<Storage> {
 protected:
  CrossCheckTest() {
    driver_.use_keys();
    for (const char* name : {"ann/w", "bob/w", "eve/w"}) driver_.hello(name);
  }
  wire::Lease lease(const std::string& worker) { return driver_.leases(worker, 1).at(0); }
  void control(wire::Control::Action action, int64_t episodes = 0) {
    wire::Envelope message;
    message.mutable_control()->set_action(action);
    message.mutable_control()->set_episodes(episodes);
    message.mutable_control()->set_by("op");
    driver_.send_frame({.peer = "op", .rights = Rights::kOperator, .user = "op"}, wire::encode(message));
  }
  // Whether a lease repeats another, which a worker cannot see.
  static bool repeats(const wire::Lease& check, const wire::Lease& checked) {
    return check.episode() != checked.episode() && check.sampling_seed() == checked.sampling_seed() &&
           std::ranges::equal(check.questions(), checked.questions()) &&
           std::ranges::equal(check.samples(), checked.samples());
  }
  void expect_replayed(std::vector<std::pair<std::string, int64_t>> held = {}) {
    const wire::CrossCheck before = driver_.status().cross_check();
    const int64_t done = driver_.status().episodes_done();
    const std::string state = driver_.core().policy().save();
    driver_.crash();
    for (const char* name : {"ann/w", "bob/w", "eve/w"}) {
      std::vector<int64_t> leases;
      for (const auto& [worker, lease] : held)
        if (worker == name) leases.push_back(lease);
      driver_.hello(name, leases);
    }
    EXPECT_EQ(driver_.core().policy().save(), state);
    EXPECT_EQ(replay_by_hand(driver_.history(), driver_.spec())->save(), state)
        << "no learner is told of a check";
    EXPECT_EQ(driver_.status().cross_check().SerializeAsString(), before.SerializeAsString());
    EXPECT_EQ(driver_.status().episodes_done(), done);
    if (GetParam() != Storage::kSqlite) return;
    EXPECT_THAT(check_history(driver_.file(), driver_.spec()).problems, IsEmpty());
    write_file_atomically(spec_path(driver_.file().parent_path()), wire::to_json(driver_.spec()));
    const RunData run = read_run(driver_.file().parent_path());
    EXPECT_EQ(run.checks.describe().SerializeAsString(), before.SerializeAsString());
    EXPECT_EQ(run.episodes_learned(), done);
  }

  CoreDriver driver_{GetParam(), checked_spec(1)};
};
INSTANTIATE_TEST_SUITE_P(Histories, CrossCheckTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(CrossCheckTest, AToldEpisodeIsRunOnceMoreByAnotherHolderAndItsGradesAreCompared) {
  const wire::Lease first = lease("ann/w");
  EXPECT_EQ(driver_.answer("ann/w", result_of(first, 3)).verdict(), wire::Ack::VERDICT_ACCEPTED);
  const wire::Lease own = lease("ann/w");
  EXPECT_FALSE(repeats(own, first)) << "nobody checks itself";
  const wire::Lease check = lease("bob/w");
  EXPECT_TRUE(repeats(check, first));
  EXPECT_EQ(check.split(), first.split());
  expect_replayed({{"ann/w", own.lease()}, {"bob/w", check.lease()}});
  EXPECT_EQ(driver_.answer("bob/w", result_of(check, 1)).verdict(), wire::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(driver_.status().episodes_done(), 1) << "the check is no learning episode";
  const wire::CrossCheck checks = driver_.status().cross_check();
  EXPECT_EQ(checks.episodes(), 1);
  EXPECT_EQ(checks.questions(), 4);
  EXPECT_EQ(checks.disagreements(), 2) << "3 of 4 were said to be right, then 1";
  ASSERT_EQ(checks.holders_size(), 2);
  EXPECT_EQ(checks.holders(0).disagreements(), 2);
  expect_replayed({{"ann/w", own.lease()}});
}

TEST_P(CrossCheckTest, WhoLiesDisagreesWithEverybody) {
  const auto honest = [](const wire::Lease& lease) { return result_of(lease, 2); };
  const auto lie = [](const wire::Lease& lease) { return result_of(lease, 4); };
  for (int round = 0; round < 20; ++round) {
    for (const char* worker : {"ann/w", "bob/w", "eve/w"}) {
      const wire::Lease one = lease(worker);
      driver_.answer(worker, worker[0] == 'e' ? lie(one) : honest(one));
    }
  }
  const wire::CrossCheck checks = driver_.status().cross_check();
  EXPECT_GT(checks.episodes(), 20);
  EXPECT_EQ(checks.holders(0).holder(), "eve");
  EXPECT_EQ(checks.holders(0).disagreements(), checks.holders(0).questions() / 2);
  for (int i = 1; i < checks.holders_size(); ++i)
    EXPECT_LT(checks.holders(i).disagreements(), checks.holders(i).questions() / 3);
  expect_replayed();
}

TEST_P(CrossCheckTest, WhereOneHolderWorksNothingIsCheckedAndNoMoreThanTheOldestWait) {
  for (int episode = 0; episode < 80; ++episode) driver_.answer("ann/w", result_of(lease("ann/w"), 2));
  EXPECT_EQ(driver_.status().episodes_done(), 80);
  EXPECT_EQ(
      std::ranges::count_if(driver_.records_of<EpisodeAsked>(),
                            [](const EpisodeAsked& asked) { return asked.episode.stage == Stage::kCheck; }),
      0);
  expect_replayed();
  // Another holder comes late: it gets the checks that wait, then new episodes.
  for (size_t check = 0; check < CrossCheck::kMostWaiting; ++check)
    driver_.answer("bob/w", result_of(lease("bob/w"), 2));
  EXPECT_EQ(driver_.status().cross_check().episodes(), std::ssize(driver_.records_of<EpisodeAsked>()) - 80);
  EXPECT_EQ(driver_.status().cross_check().episodes(), 64);
  EXPECT_EQ(driver_.status().cross_check().disagreements(), 0);
  EXPECT_EQ(driver_.status().episodes_done(), 80);
  expect_replayed();
}

TEST_P(CrossCheckTest, ACheckThatIsGivenBackGoesToAnyHolderButTheOneThatIsChecked) {
  const wire::Lease first = lease("ann/w");
  driver_.answer("ann/w", result_of(first, 3));
  const wire::Lease check = lease("bob/w");
  driver_.release("bob/w", check, {});
  expect_replayed();
  const wire::Lease anns = lease("ann/w");
  EXPECT_FALSE(repeats(anns, first));
  const wire::Lease again = lease("eve/w");
  EXPECT_EQ(again.episode(), check.episode());
  driver_.answer("eve/w", result_of(again, 3));
  EXPECT_EQ(driver_.status().cross_check().disagreements(), 0);
}

TEST_P(CrossCheckTest, ACheckThatFailsAlwaysIsGivenUpAndTheRunGoesOn) {
  const wire::Lease first = lease("ann/w");
  driver_.answer("ann/w", result_of(first, 3));
  for (int attempt = 0; attempt < 3; ++attempt) {
    const char* worker = attempt == 1 ? "eve/w" : "bob/w";
    const wire::Lease check = lease(worker);
    ASSERT_TRUE(repeats(check, first)) << attempt;
    driver_.fail(worker, check, "no memory");
  }
  EXPECT_EQ(driver_.status().given_up_size(), 1);
  EXPECT_EQ(driver_.status().cross_check().episodes(), 0);
  const wire::Lease next = lease("bob/w");
  EXPECT_FALSE(repeats(next, first));
  expect_replayed({{"bob/w", next.lease()}});
}

TEST_P(CrossCheckTest, GradesOfTheVerificationAreCheckedOnHeldOutQuestions) {
  driver_.answer("ann/w", result_of(lease("ann/w"), 2));
  control(wire::Control::ACTION_STOP);
  driver_.answer("bob/w", result_of(lease("bob/w"), 2));  // the check of the one learning episode
  ASSERT_EQ(driver_.status().stage(), "verify");
  const wire::Lease uniform = lease("ann/w");
  driver_.answer("ann/w", result_of(uniform, 1));
  const wire::Lease check = lease("bob/w");
  EXPECT_TRUE(repeats(check, uniform));
  EXPECT_EQ(check.split(), wire::SPLIT_HELDOUT);
  driver_.answer("bob/w", result_of(check, 1));
  EXPECT_EQ(driver_.status().cross_check().episodes(), 2);
  EXPECT_EQ(driver_.status().scores(0).answered(), 4) << "the check adds nothing to the scores";
  finish(&driver_, "ann/w");
  EXPECT_EQ(driver_.status().stage(), "finished");
  for (const wire::Status status = driver_.status(); const wire::Score& score : status.scores())
    EXPECT_EQ(score.answered(), score.wanted());
  EXPECT_TRUE(driver_.request("bob/w", 1).wait().finished()) << "a finished run asks for no checks";
  expect_replayed();
}

TEST_P(CrossCheckTest, ACheckThatRunsStaysWhereARunLearnsOnInTheMiddleOfItsVerification) {
  driver_.answer("ann/w", result_of(lease("ann/w"), 2));
  control(wire::Control::ACTION_STOP);
  const wire::Lease check = lease("bob/w");
  const wire::Lease verifying = lease("ann/w");
  ASSERT_EQ(driver_.status().stage(), "verify");
  control(wire::Control::ACTION_EPISODES, 50);
  ASSERT_EQ(driver_.status().stage(), "learn");
  EXPECT_EQ(driver_.answer("ann/w", result_of(verifying, 2)).verdict(), wire::Ack::VERDICT_STALE);
  EXPECT_EQ(driver_.answer("bob/w", result_of(check, 2)).verdict(), wire::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(driver_.status().cross_check().episodes(), 1);
  expect_replayed();
}

TEST(CrossCheck, AShareOfTheEpisodesIsDrawn) {
  PlannedEpisode episode;
  CrossCheck quarter(7, 0.25), none(7, 0), all(7, 1);
  int drawn = 0;
  for (int64_t number = 0; number < 2000; ++number) {
    episode.id = {number};
    quarter.told(episode, results({1}), "ann/w");
    none.told(episode, results({1}), "ann/w");
    if (const PlannedEpisode* waiting = quarter.waiting_for("bob")) {
      EXPECT_EQ(waiting->id.value, number);
      (void)quarter.begin(waiting->id);
      ++drawn;
    }
    EXPECT_EQ(none.waiting_for("bob"), nullptr);
    all.told(episode, results({1}), "ann/w");
    EXPECT_EQ(all.begin({number}).group, number);
  }
  EXPECT_NEAR(drawn, 500, 80);
  EXPECT_THROW((void)all.begin({5}), std::logic_error) << "its check has begun already";
}

TEST(CheckTally, GradesDisagreeWhereTheyDifferAndDivergencesWhereTheyDifferByMoreThanDevicesDo) {
  CheckTally tally;
  tally.add(RewardKind::kAnswers, "ann", results({1, 0, 0.5}), "bob", results({1, 1, 0.25}));
  EXPECT_EQ(tally.all().disagreements, 2);
  tally.add(RewardKind::kDivergence, "ann", results({0.2, 0.2, 0.001}), "eve", results({0.21, 0.3, 0.009}));
  EXPECT_EQ(tally.all().disagreements, 3);
  EXPECT_EQ(tally.all().questions, 6);
  EXPECT_EQ(tally.episodes(), 2);
  EXPECT_EQ(tally.by_holder().at("ann").disagreements, 3);
  EXPECT_EQ(tally.by_holder().at("bob").questions, 3);
  EXPECT_EQ(tally.describe().holders(0).holder(), "bob") << "two of three";
  EXPECT_THROW(tally.add(RewardKind::kAnswers, "ann", results({1}), "bob", results({})), std::logic_error);
  for (int i = 0; i < 120; ++i)
    tally.add(RewardKind::kAnswers, "h" + std::to_string(i), results({1}), "ann", results({1}));
  EXPECT_EQ(tally.describe().holders_size(), 100);
}

}  // namespace
}  // namespace allot::aggregator
