// Held-out questions that are changed while a run lasts, and a run that learns on while it is verified: what
// is asked, what the history says, and that a restart and whoever reads the history find the same.
#include <gmock/gmock.h>

#include <set>

#include "aggregator/history_check.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/file.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/replay.h"
#include "tests/names.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Control;

// 4 learning episodes of 4 questions, 6 of 20 held-out questions.
class VerificationControlTest : public testing::TestWithParam<Storage> {
 protected:
  VerificationControlTest() {
    write_file_atomically(spec_path(directory()), wire::to_json(driver_.spec()));
    driver_.hello("w");
  }
  static wire::RunSpec short_spec() {
    wire::RunSpec spec = example_spec();
    spec.set_episodes(4);
    return spec;
  }
  std::filesystem::path directory() const { return driver_.file().parent_path(); }

  wire::ControlReply verify_on(int64_t questions) {
    Control control;
    control.set_action(Control::ACTION_HELDOUT_QUESTIONS);
    control.set_heldout_questions(questions);
    return driver_.control(std::move(control));
  }
  void learn(int episodes) {
    for (int i = 0; i < episodes; ++i) driver_.answer("w", result_of(driver_.leases("w", 1).at(0), 2));
  }
  void expect_replayed(std::vector<int64_t> held = {}) {
    const wire::Status before = driver_.status();
    const std::string state = driver_.core().policy().save();
    driver_.crash();
    driver_.hello("w", std::move(held));
    EXPECT_EQ(driver_.core().policy().save(), state);
    const wire::Status after = driver_.status();
    EXPECT_EQ(after.stage(), before.stage());
    ASSERT_EQ(after.scores_size(), before.scores_size());
    for (int i = 0; i < after.scores_size(); ++i) {
      EXPECT_EQ(after.scores(i).answered(), before.scores(i).answered());
      EXPECT_EQ(after.scores(i).wanted(), before.scores(i).wanted());
    }
    if (GetParam() != Storage::kSqlite) return;
    // Who reads the history finds the stage and the scores of the core.
    const RunData run = read_run(directory());
    EXPECT_EQ(run.stage, after.stage());
    EXPECT_EQ(run.spec.task().heldout_questions(),
              after.scores_size() > 0 ? after.scores(0).wanted() : run.spec.task().heldout_questions());
    const wire::Score* learned = after.scores_size() > 0 ? &after.scores(1) : nullptr;
    const ScoreRow* row = find_score(run, "learned");
    EXPECT_EQ(row == nullptr ? 0 : std::ssize(row->scores), learned == nullptr ? 0 : learned->answered());
  }
  // The questions of the verification that are asked of `label`, in order.
  std::vector<uint32_t> asked_of(const std::string& label) const {
    std::vector<uint32_t> questions;
    for (const auto& asked : driver_.records_of<EpisodeAsked>()) {
      if (asked.episode.label != label) continue;
      questions.insert(questions.end(), asked.episode.questions.begin(), asked.episode.questions.end());
    }
    return questions;
  }
  static std::vector<uint32_t> first(uint32_t count) {
    std::vector<uint32_t> questions(count);
    for (uint32_t i = 0; i < count; ++i) questions[i] = i;
    return questions;
  }
  void expect_verified_on(uint32_t questions) {
    EXPECT_EQ(driver_.status().stage(), "finished");
    for (const char* label : {"uniform", "learned", "dense"})
      EXPECT_EQ(asked_of(label), first(questions)) << label;
    const wire::Status status = driver_.status();
    ASSERT_EQ(status.scores_size(), 3);
    for (const wire::Score& score : status.scores()) {
      EXPECT_EQ(score.answered(), questions);
      EXPECT_EQ(score.wanted(), questions);
    }
    expect_replayed();
  }

  CoreDriver driver_{GetParam(), short_spec()};
};
INSTANTIATE_TEST_SUITE_P(Histories, VerificationControlTest,
                         testing::Values(Storage::kMemory, Storage::kSqlite), storage_name);

TEST_P(VerificationControlTest, MoreOrFewerHeldOutQuestionsAreVerifiedWhereTheLearningStillLasts) {
  learn(1);
  EXPECT_TRUE(verify_on(3).done());
  const wire::ControlReply reply = verify_on(11);
  EXPECT_TRUE(reply.done());
  EXPECT_THAT(reply.message(), Names(11));
  EXPECT_EQ(driver_.status().steering(1).heldout_questions(), 11);
  expect_replayed();
  finish(&driver_, "w");
  expect_verified_on(11);
}

TEST_P(VerificationControlTest, MoreAreAddedToAVerificationThatLasts) {
  learn(4);
  ASSERT_EQ(driver_.status().stage(), "verify");
  const std::vector<wire::Lease> running = driver_.leases("w", 4);  // the first batch and one of the second
  EXPECT_TRUE(verify_on(13).done());
  expect_replayed({running[0].lease(), running[1].lease(), running[2].lease(), running[3].lease()});
  for (const wire::Lease& lease : running) driver_.answer("w", result_of(lease, 1));
  finish(&driver_, "w");
  expect_verified_on(13);
}

TEST_P(VerificationControlTest, FewerEndAVerificationAfterTheBatchThatHasBegun) {
  EXPECT_TRUE(verify_on(20).done());
  learn(4);
  for (int i = 0; i < 4; ++i) driver_.answer("w", result_of(driver_.leases("w", 1).at(0), 1));
  const wire::ControlReply reply = verify_on(1);
  EXPECT_TRUE(reply.done());
  EXPECT_THAT(reply.message(), Names(8)) << "two batches of four had begun";
  expect_replayed();
  EXPECT_EQ(driver_.status().stage(), "verify") << "the second batch is not asked of all schedules yet";
  finish(&driver_, "w");
  expect_verified_on(8);
}

TEST_P(VerificationControlTest, FewerThanAreVerifiedAlreadyFinishTheRunAtOnce) {
  EXPECT_TRUE(verify_on(20).done());
  learn(4);
  for (int i = 0; i < 3; ++i) driver_.answer("w", result_of(driver_.leases("w", 1).at(0), 1));
  EXPECT_TRUE(verify_on(4).done());
  expect_verified_on(4);
}

TEST_P(VerificationControlTest, AFinishedRunIsVerifiedOnWhatItHasNotHad) {
  finish(&driver_, "w");
  EXPECT_TRUE(driver_.request("w", 1).wait().finished());
  EXPECT_TRUE(driver_.core().everyone_heard_finished());
  const std::vector<int32_t> learned = driver_.core().policy().recommend().samples;
  const wire::ControlReply refused = verify_on(6);
  EXPECT_FALSE(refused.done());
  EXPECT_THAT(refused.message(), Names(6, "more", 20));
  EXPECT_TRUE(verify_on(20).done());
  EXPECT_EQ(driver_.status().stage(), "verify");
  EXPECT_EQ(driver_.status().scores(1).answered(), 6);
  EXPECT_FALSE(driver_.core().everyone_heard_finished());
  expect_replayed();
  finish(&driver_, "w");
  expect_verified_on(20);
  const wire::Status status = driver_.status();
  EXPECT_THAT(status.scores(1).samples(), testing::ElementsAreArray(learned));
}

TEST_P(VerificationControlTest, NumbersThatTheHeldOutFileDoesNotHaveAreRefused) {
  for (const int64_t wrong : {int64_t{0}, int64_t{-1}, int64_t{21}, int64_t{1} << 40}) {
    const wire::ControlReply refused = verify_on(wrong);
    EXPECT_FALSE(refused.done());
    EXPECT_THAT(refused.message(), Names(wrong, 20));
  }
  EXPECT_THAT(driver_.records_of<RunControlled>(), IsEmpty());
}

TEST_P(VerificationControlTest, ARunThatIsVerifiedLearnsOnAndWhatRanOfTheVerificationIsWithdrawn) {
  learn(4);
  driver_.answer("w", result_of(driver_.leases("w", 1).at(0), 1));
  const std::vector<wire::Lease> running = driver_.leases("w", 2);
  driver_.release("w", running[1], {});  // so that one waits and one is leased
  const int64_t asked = std::ssize(driver_.records_of<EpisodeAsked>());

  const wire::ControlReply reply = driver_.control(Control::ACTION_EPISODES, 9);
  EXPECT_TRUE(reply.done());
  EXPECT_THAT(reply.message(), Names(9, 4, "verified again"));
  EXPECT_EQ(driver_.status().stage(), "learn");
  EXPECT_EQ(driver_.status().scores_size(), 0);
  EXPECT_EQ(driver_.status().episodes_running(), 0);
  EXPECT_EQ(driver_.status().given_up_size(), 0) << "nothing went wrong with them";
  EXPECT_EQ(driver_.status().counters().set_aside(), 0);
  std::set<int64_t> withdrawn;
  for (const auto& given_up : driver_.records_of<EpisodeGivenUp>()) {
    EXPECT_EQ(given_up.kind, GiveUp::kWithdrawn);
    EXPECT_THAT(given_up.reason, Names("ann", "learn on"));
    withdrawn.insert(given_up.episode.value);
  }
  EXPECT_THAT(withdrawn, ElementsAre(asked - 2, asked - 1));
  EXPECT_EQ(driver_.records_of<LeaseEnded>().back().how, LeaseEnd::kWithdrawn);
  // Who works on one is told to stop, and a result that comes nevertheless changes nothing.
  EXPECT_THAT(driver_.heartbeat("w", {running[0].lease()}), ElementsAre(running[0].lease()));
  EXPECT_EQ(driver_.answer("w", result_of(running[0], 4)).verdict(), wire::Ack::VERDICT_STALE);
  expect_replayed();

  learn(5);
  ASSERT_EQ(driver_.status().stage(), "verify");
  finish(&driver_, "w");
  EXPECT_EQ(driver_.status().stage(), "finished");
  EXPECT_EQ(driver_.status().episodes_done(), 9);
  const wire::Status status = driver_.status();
  for (const wire::Score& score : status.scores()) EXPECT_EQ(score.answered(), 6);
  expect_replayed();
  EXPECT_EQ(replay_by_hand(driver_.history(), driver_.spec())->save(), driver_.core().policy().save());
  if (GetParam() != Storage::kSqlite) return;
  const HistoryReport report = check_history(driver_.file(), driver_.spec());
  EXPECT_THAT(report.problems, IsEmpty()) << report.problems[0].what;
}

TEST_P(VerificationControlTest, FewerEpisodesThanARunHasLearnedDoNotEndItsVerification) {
  learn(4);
  const wire::ControlReply refused = driver_.control(Control::ACTION_EPISODES, 4);
  EXPECT_FALSE(refused.done());
  EXPECT_THAT(refused.message(), Names("more", 4));
  EXPECT_EQ(driver_.status().stage(), "verify");
}

TEST_P(VerificationControlTest, ARunWithoutHeldOutFileGetsNone) {
  wire::RunSpec spec = short_spec();
  spec.mutable_task()->set_heldout_questions(0);
  CoreDriver driver(GetParam(), spec);
  Control control;
  control.set_action(Control::ACTION_HELDOUT_QUESTIONS);
  control.set_heldout_questions(3);
  const wire::ControlReply refused = driver.control(std::move(control));
  EXPECT_FALSE(refused.done());
  EXPECT_THAT(refused.message(), Names("no held-out"));
}

}  // namespace
}  // namespace allot::aggregator
