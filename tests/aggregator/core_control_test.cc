// Pause, resume, stop, target and number of episodes: what they do, what the history says of them, and that a
// restart does the same again.
#include <gmock/gmock.h>

#include <limits>

#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/file.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/replay.h"
#include "tests/names.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Ack;
using wire::Control;
using namespace std::chrono_literals;

class CoreControlTest : public testing::TestWithParam<Storage> {
 protected:
  CoreControlTest() { driver_.hello("w"); }
  // The run goes on as it was, and by hand the policy is the same.
  void expect_replayed() {
    const wire::Status before = driver_.status();
    const std::string state = driver_.core().policy().save();
    driver_.crash();
    driver_.hello("w", held_);
    EXPECT_EQ(driver_.core().policy().save(), state);
    EXPECT_EQ(replay_by_hand(driver_.history(), driver_.spec())->save(), state);
    const wire::Status after = driver_.status();
    EXPECT_EQ(after.stage(), before.stage());
    EXPECT_EQ(after.paused(), before.paused());
    EXPECT_EQ(after.episodes_wanted(), before.episodes_wanted());
    EXPECT_EQ(after.target_reward(), before.target_reward());
    EXPECT_EQ(after.steering_size(), before.steering_size());
  }
  void learn(int episodes, int correct) {
    for (int i = 0; i < episodes; ++i) driver_.answer("w", result_of(driver_.leases("w", 1).at(0), correct));
  }

  static wire::RunSpec long_spec() {
    wire::RunSpec spec = example_spec();
    spec.set_episodes(100);
    return spec;
  }
  CoreDriver driver_{GetParam(), long_spec()};
  std::vector<int64_t> held_;
};
INSTANTIATE_TEST_SUITE_P(Histories, CoreControlTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(CoreControlTest, APausedRunGrantsNothingAndTakesTheResultsOfWhatRuns) {
  for (int i = 0; i < 3; ++i) {
    learn(1, 2);
    driver_.clock().advance(1s);
  }
  EXPECT_GT(driver_.status().eta_s(), 0);
  const std::vector<wire::Lease> running = driver_.leases("w", 2);
  const wire::ControlReply reply = driver_.control(Control::ACTION_PAUSE);
  EXPECT_TRUE(reply.done());
  EXPECT_THAT(reply.message(), Names(2, "leases"));
  EXPECT_TRUE(driver_.status().paused());
  EXPECT_EQ(driver_.status().eta_s(), -1);
  for (const wire::Lease& lease : running) held_.push_back(lease.lease());
  expect_replayed();
  for (const wire::Lease& lease : running) {
    EXPECT_EQ(driver_.answer("w", result_of(lease, 1)).verdict(), Ack::VERDICT_ACCEPTED);
    const wire::Wait wait = driver_.request("w", 1).wait();
    EXPECT_TRUE(wait.paused());
    EXPECT_FALSE(wait.finished());
    EXPECT_GT(wait.retry_after_ms(), 0);
  }
  EXPECT_TRUE(driver_.control(Control::ACTION_RESUME).done());
  EXPECT_EQ(driver_.leases("w", 1).size(), 1u);
  EXPECT_FALSE(driver_.control(Control::ACTION_RESUME).done()) << "it is not paused any more";
  EXPECT_THAT(driver_.records_of<RunControlled>(), SizeIs(2));
}

TEST_P(CoreControlTest, EachControlIsInTheHistoryWithWhoAndWhen) {
  driver_.clock().advance(5s);
  Control control;
  control.set_action(Control::ACTION_EPISODES);
  control.set_episodes(40);
  EXPECT_TRUE(driver_.control(control, "bob\n(ops)").done());
  const std::vector<RunControlled> controlled = driver_.records_of<RunControlled>();
  ASSERT_THAT(controlled, SizeIs(1));
  EXPECT_EQ(controlled[0].action, ControlAction::kEpisodes);
  EXPECT_EQ(controlled[0].episodes, 40);
  EXPECT_EQ(controlled[0].by, "bob (ops)");
  EXPECT_EQ(controlled[0].at, driver_.clock().now());
  const wire::ControlEvent event = driver_.status().steering(0);
  EXPECT_EQ(event.action(), Control::ACTION_EPISODES);
  EXPECT_EQ(event.by(), "bob (ops)");
  EXPECT_EQ(event.at_ms(), driver_.clock().now().time_since_epoch().count());
}

TEST_P(CoreControlTest, TheStatusHoldsTheLastFiftyOfManyControls) {
  for (int i = 1; i <= 60; ++i) driver_.control(Control::ACTION_EPISODES, 100 + i);
  ASSERT_EQ(driver_.status().steering_size(), 50);
  EXPECT_EQ(driver_.status().steering(0).episodes(), 111);
  EXPECT_EQ(driver_.status().steering(49).episodes(), 160);
  EXPECT_THAT(driver_.records_of<RunControlled>(), SizeIs(60));
}

TEST_P(CoreControlTest, ChangedBoundsHoldForWhatIsAskedAndRecommendedFromThenOn) {
  const auto bound = [&](const char* bounds) {
    Control control;
    control.set_action(Control::ACTION_BOUNDS);
    control.set_bounds(bounds);
    return driver_.control(control, "ann");
  };
  learn(6, 2);
  const std::vector<wire::Lease> running = driver_.leases("w", 1);
  const int64_t version = driver_.core().policy().version();
  const wire::ControlReply reply = bound("2:3,5-7:-6");
  EXPECT_TRUE(reply.done());
  const policy::Schedule recommended = driver_.core().policy().recommend();
  EXPECT_EQ(recommended.samples[2], 3);
  EXPECT_THAT(reply.message(), Names("2:3,5-7:-6", recommended.to_string()));
  EXPECT_EQ(driver_.core().policy().version(), version + 1);
  EXPECT_EQ(driver_.status().policy_version(), version + 1);
  EXPECT_THAT(driver_.status().recommended(), ElementsAreArray(recommended.samples));
  EXPECT_EQ(driver_.answer("w", result_of(running.at(0), 1)).verdict(), Ack::VERDICT_ACCEPTED);
  for (int i = 0; i < 6; ++i) {
    const wire::Lease lease = driver_.leases("w", 1).at(0);
    EXPECT_EQ(lease.samples(2), 3);
    for (const int layer : {5, 6, 7}) EXPECT_LE(lease.samples(layer), 6);
    driver_.answer("w", result_of(lease, 1));
  }
  expect_replayed();
  EXPECT_EQ(driver_.core().policy().recommend().samples[2], 3);
  const wire::ControlEvent event = driver_.status().steering(0);
  EXPECT_EQ(event.action(), Control::ACTION_BOUNDS);
  EXPECT_EQ(event.bounds(), "2:3,5-7:-6");
  EXPECT_TRUE(bound("").done());
  expect_replayed();
}

TEST_P(CoreControlTest, BoundsThatTheRunCannotKeepAreRefusedAndChangeNothing) {
  constexpr std::pair<const char*, const char*> kRefused[] = {
      {"8:3", "layers 8 to 8"}, {"3=4", "LAYERS:RANGE"}, {"0:exact", "exact"}, {"0-7:-1", "total"}};
  for (const auto& [bounds, names] : kRefused) {
    Control control;
    control.set_action(Control::ACTION_BOUNDS);
    control.set_bounds(bounds);
    const wire::ControlReply reply = driver_.control(control, "ann");
    EXPECT_FALSE(reply.done()) << bounds;
    EXPECT_THAT(reply.message(), HasSubstr(names));
  }
  EXPECT_THAT(driver_.records_of<RunControlled>(), IsEmpty());
  EXPECT_EQ(driver_.core().policy().version(), 0);
}

TEST_P(CoreControlTest, AStoppedRunLearnsFromWhatRunsThenVerifies) {
  learn(4, 2);
  const std::vector<wire::Lease> running = driver_.leases("w", 2);
  EXPECT_TRUE(driver_.control(Control::ACTION_STOP).done());
  EXPECT_TRUE(driver_.leases("w", 1).empty());
  for (const wire::Lease& lease : running) held_.push_back(lease.lease());
  expect_replayed();
  EXPECT_EQ(driver_.status().stage(), "learn");
  for (const wire::Lease& lease : running) driver_.answer("w", result_of(lease, 3));
  held_.clear();
  EXPECT_EQ(driver_.status().episodes_done(), 6);
  EXPECT_EQ(driver_.status().stage(), "verify");
  expect_replayed();
  for (const auto action :
       {Control::ACTION_STOP, Control::ACTION_TARGET, Control::ACTION_EPISODES, Control::ACTION_BOUNDS}) {
    const wire::ControlReply reply = driver_.control(action, 5, 0.5);
    EXPECT_FALSE(reply.done());
    EXPECT_THAT(reply.message(), Names("stage", "verify"));
  }
  EXPECT_TRUE(driver_.control(Control::ACTION_PAUSE).done());
  EXPECT_TRUE(driver_.control(Control::ACTION_RESUME).done());
  finish(&driver_, "w");
  EXPECT_EQ(driver_.status().stage(), "finished");
  EXPECT_FALSE(driver_.control(Control::ACTION_PAUSE).done());
  expect_replayed();
}

TEST_P(CoreControlTest, AFinishedRunLearnsOnAndIsVerifiedAgainWithItsNewSchedule) {
  learn(4, 2);
  driver_.control(Control::ACTION_STOP);
  finish(&driver_, "w");
  ASSERT_EQ(driver_.status().stage(), "finished");
  ASSERT_TRUE(driver_.request("w", 1).wait().finished());
  ASSERT_TRUE(driver_.core().everyone_heard_finished());
  const size_t verified = driver_.records_of<EpisodeAsked>().size() - 4;
  for (const int64_t no_more : {1, 4}) {
    const wire::ControlReply refused = driver_.control(Control::ACTION_EPISODES, no_more);
    EXPECT_FALSE(refused.done());
    EXPECT_THAT(refused.message(), Names("finished", 4));
  }

  const wire::ControlReply reply = driver_.control(Control::ACTION_EPISODES, 10);
  EXPECT_TRUE(reply.done());
  EXPECT_THAT(reply.message(), Names(10, 4, "verified again"));
  EXPECT_EQ(driver_.status().stage(), "learn");
  EXPECT_EQ(driver_.status().scores_size(), 0);
  EXPECT_FALSE(driver_.core().everyone_heard_finished());
  expect_replayed();
  learn(6, 3);
  EXPECT_EQ(driver_.status().episodes_done(), 10);
  ASSERT_EQ(driver_.status().stage(), "verify");
  const std::vector<int32_t> learned = driver_.core().policy().recommend().samples;
  EXPECT_THAT(driver_.status().scores(1).samples(), ElementsAreArray(learned));
  finish(&driver_, "w");
  EXPECT_EQ(driver_.status().stage(), "finished");
  EXPECT_EQ(driver_.records_of<EpisodeAsked>().size(), 10 + 2 * verified);
  const wire::Status status = driver_.status();
  for (const wire::Score& score : status.scores()) EXPECT_EQ(score.answered(), score.wanted());
  expect_replayed();
  if (GetParam() != Storage::kSqlite) return;
  // Who reads the history counts the second verification alone.
  write_file_atomically(spec_path(driver_.file().parent_path()), wire::to_json(driver_.spec()));
  const RunData run = read_run(driver_.file().parent_path());
  EXPECT_EQ(run.stage, "finished");
  EXPECT_THAT(find_score(run, "learned")->samples, ElementsAreArray(learned));
}

TEST_P(CoreControlTest, AFinishedRunThatIsToLearnOnIsLearningForWhoReadsItsHistory) {
  if (GetParam() != Storage::kSqlite) return;
  learn(4, 2);
  driver_.control(Control::ACTION_STOP);
  finish(&driver_, "w");
  driver_.control(Control::ACTION_EPISODES, 10);
  write_file_atomically(spec_path(driver_.file().parent_path()), wire::to_json(driver_.spec()));
  EXPECT_EQ(read_run(driver_.file().parent_path()).stage, "learn");
  EXPECT_TRUE(read_run(driver_.file().parent_path()).scores.empty());
  // Stopped before it asks for anything: the new verification has not begun.
  driver_.control(Control::ACTION_STOP);
  EXPECT_EQ(driver_.status().stage(), "verify");
  EXPECT_EQ(read_run(driver_.file().parent_path()).stage, "verify");
  EXPECT_TRUE(read_run(driver_.file().parent_path()).scores.empty());
}

TEST_P(CoreControlTest, AnotherLeaseTimeHoldsForLeasesThatAreGrantedOrRenewedFromThenOn) {
  const wire::Lease before = driver_.leases("w", 1).at(0);
  Control control;
  control.set_action(Control::ACTION_LEASE_SECONDS);
  control.set_lease_seconds(2);
  EXPECT_TRUE(driver_.control(control).done());
  EXPECT_EQ(driver_.status().lease_ms(), 2000);
  // A worker learns from its next hello how often to speak; the spec that it works by stays.
  EXPECT_EQ(driver_.request("w", 1).refused().reason(), wire::Refused::REASON_NOT_INTRODUCED);
  const wire::Envelope welcome = driver_.hello("w", {before.lease()});
  EXPECT_EQ(welcome.welcome().heartbeat_ms(), 500);
  EXPECT_EQ(welcome.welcome().spec().lease_ms(), driver_.spec().lease_ms());
  const wire::Lease after = driver_.leases("w", 1).at(0);
  EXPECT_EQ(after.deadline_ms(), 2000);
  held_ = {before.lease(), after.lease()};
  expect_replayed();
  EXPECT_EQ(driver_.status().lease_ms(), 2000);
  driver_.clock().advance(2001ms);
  driver_.tick();
  EXPECT_EQ(driver_.status().counters().timed_out(), 2);
  held_.clear();
  expect_replayed();
}

TEST_P(CoreControlTest, FewerAttemptsGiveUpWhatHasUsedThemAndMoreAreGranted) {
  const auto attempts = [&](int number) {
    Control control;
    control.set_action(Control::ACTION_MAX_ATTEMPTS);
    control.set_max_attempts(number);
    return driver_.control(control);
  };
  EXPECT_TRUE(attempts(4).done());
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const wire::Lease lease = driver_.leases("w", 1).at(0);
    EXPECT_EQ(lease.episode(), 0);
    driver_.fail("w", lease, "no");
  }
  EXPECT_THAT(driver_.records_of<EpisodeGivenUp>(), IsEmpty()) << "the spec alone allows three";
  expect_replayed();
  EXPECT_TRUE(attempts(2).done());
  EXPECT_THAT(driver_.records_of<EpisodeGivenUp>(), SizeIs(1));
  expect_replayed();
  for (const int wrong : {0, -1, 1'000'001}) {
    const wire::ControlReply refused = attempts(wrong);
    EXPECT_FALSE(refused.done());
    EXPECT_THAT(refused.message(), Names("max-attempts", wrong));
  }
}

TEST_P(CoreControlTest, AnEpisodeThatIsGivenUpAfterAStopDoesNotHoldTheRunUp) {
  const wire::Lease lease = driver_.leases("w", 1).at(0);
  driver_.control(Control::ACTION_STOP);
  driver_.fail("w", lease, "no");
  for (int attempt = 2; attempt <= 3; ++attempt) driver_.fail("w", driver_.leases("w", 1).at(0), "no");
  EXPECT_EQ(driver_.status().stage(), "verify");
  EXPECT_EQ(driver_.status().episodes_done(), 0);
  expect_replayed();
}

TEST_P(CoreControlTest, LearningStopsWhenTheRecentMeanReachesTheTarget) {
  EXPECT_TRUE(driver_.control(Control::ACTION_TARGET, 0, 0.75).done());
  learn(20, 2);
  EXPECT_EQ(driver_.status().stage(), "learn");
  learn(9, 4);
  EXPECT_EQ(driver_.status().stage(), "learn") << "mean reward is " << driver_.status().mean_reward_recent();
  expect_replayed();
  learn(1, 4);
  EXPECT_EQ(driver_.status().stage(), "verify");
  EXPECT_EQ(driver_.status().episodes_done(), 30);
  EXPECT_EQ(driver_.status().episodes_wanted(), 30);
  EXPECT_EQ(driver_.records_of<RunControlled>().back().by, "target 0.75");
  expect_replayed();
}

TEST_P(CoreControlTest, ATargetThatIsReachedAlreadyStopsAtOnceAndANewNumberOfEpisodesRemovesATarget) {
  EXPECT_TRUE(driver_.control(Control::ACTION_TARGET, 0, 0.5).done());
  learn(19, 4);
  EXPECT_EQ(driver_.status().stage(), "learn") << "the mean of fewer than 20 is no mean yet";
  EXPECT_TRUE(driver_.control(Control::ACTION_EPISODES, 30).done());
  EXPECT_EQ(driver_.status().target_reward(), 0);
  learn(5, 4);
  EXPECT_EQ(driver_.status().stage(), "learn");
  expect_replayed();
  EXPECT_TRUE(driver_.control(Control::ACTION_TARGET, 0, 0.5).done());
  EXPECT_EQ(driver_.status().stage(), "verify");
  expect_replayed();
}

TEST_P(CoreControlTest, MoreOrFewerEpisodesMayBeWantedAtAnyTimeWhileLearning) {
  learn(2, 2);
  EXPECT_TRUE(driver_.control(Control::ACTION_EPISODES, 5).done());
  const std::vector<wire::Lease> running = driver_.leases("w", 64);
  EXPECT_EQ(running.size(), 3u);
  EXPECT_TRUE(driver_.control(Control::ACTION_EPISODES, 7).done());
  EXPECT_EQ(driver_.leases("w", 64).size(), 2u);
  EXPECT_TRUE(driver_.control(Control::ACTION_EPISODES, 1).done()) << "fewer than are done";
  EXPECT_EQ(driver_.status().stage(), "learn");
  for (const wire::Lease& lease : running) held_.push_back(lease.lease());
  held_.push_back(6);
  held_.push_back(7);
  expect_replayed();
}

TEST_P(CoreControlTest, ControlsThatMakeNoSenseAreRefusedAndLeaveNoTrace) {
  for (const int64_t episodes : {int64_t{0}, int64_t{-4}, std::numeric_limits<int64_t>::max()})
    EXPECT_FALSE(driver_.control(Control::ACTION_EPISODES, episodes).done());
  for (const double reward : {0.0, -1.0, 1.01, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_FALSE(driver_.control(Control::ACTION_TARGET, 0, reward).done());
  EXPECT_FALSE(driver_.control(static_cast<Control::Action>(77)).done());
  Control nameless;
  nameless.set_action(Control::ACTION_PAUSE);
  EXPECT_FALSE(driver_.control(nameless, "").done());
  EXPECT_THAT(driver_.records_of<RunControlled>(), IsEmpty());
  EXPECT_EQ(driver_.status().episodes_wanted(), 100);
}

TEST_P(CoreControlTest, APeerWithAWorkersRightsMayNotControl) {
  wire::Envelope message;
  message.mutable_control()->set_action(Control::ACTION_STOP);
  message.mutable_control()->set_by("mallory");
  driver_.core().receive({"peer", Rights::kWorker}, wire::encode(message), driver_.clock().now());
  const Outputs outputs = driver_.core().take();
  EXPECT_THAT(outputs.records, IsEmpty());
  ASSERT_THAT(outputs.replies, SizeIs(1));
  EXPECT_FALSE(outputs.replies[0].envelope.control_reply().done());
  EXPECT_THAT(outputs.replies[0].envelope.control_reply().message(), Names("operator's key"));
}

TEST_P(CoreControlTest, WhoReadsTheRunDirectorySeesTheControlAndTheStageThatFollows) {
  if (GetParam() == Storage::kMemory) GTEST_SKIP() << "a history in memory has no directory";
  const auto directory = driver_.file().parent_path();
  write_file_atomically(spec_path(directory), wire::to_json(driver_.spec()));
  const wire::Lease running = driver_.leases("w", 1).at(0);
  wire::Control target;
  target.set_action(Control::ACTION_TARGET);
  target.set_reward(0.75);
  driver_.control(target, "ann");
  driver_.control(Control::ACTION_PAUSE);
  RunData run = read_run(directory);
  EXPECT_EQ(run.target_reward, 0.75);
  EXPECT_TRUE(run.paused);
  driver_.control(Control::ACTION_RESUME);
  driver_.control(Control::ACTION_STOP);
  run = read_run(directory);
  EXPECT_EQ(run.target_reward, 0) << "a number of episodes ends a target";
  EXPECT_FALSE(run.paused);
  EXPECT_EQ(run.stage, "learn") << "an episode is open";
  EXPECT_EQ(run.episodes_wanted, 0);
  ASSERT_THAT(run.controls, SizeIs(4));
  EXPECT_EQ(run.controls[0].by, "ann");
  driver_.answer("w", result_of(running, 4));
  EXPECT_EQ(read_run(directory).stage, "verify");
  finish(&driver_, "w");
  EXPECT_EQ(read_run(directory).stage, "finished");
}

}  // namespace
}  // namespace allot::aggregator
