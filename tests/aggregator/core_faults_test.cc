// Whose fault it is: episodes that fail, workers that have to wait, and what one holder of a key can do to
// the others.
#include <gmock/gmock.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::ThrowsMessage;
using wire::Ack;
using namespace std::chrono_literals;

class CoreFaultsTest : public CoreDriverTest {
 protected:
  // Says hello as `worker` and fails up to `count` leases.
  void fail_some(const std::string& worker, int count) {
    driver_.hello(worker);
    for (const wire::Lease& lease : driver_.leases(worker, count)) driver_.fail(worker, lease, "false");
  }
};
INSTANTIATE_TEST_SUITE_P(Histories, CoreFaultsTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(CoreFaultsTest, AnEpisodeThatFailsOnDifferentWorkersIsPoisonedAndTheReasonsAreShown) {
  for (const char* worker : {"a", "b", "c"}) driver_.hello(worker);
  for (const char* worker : {"a", "b", "c"}) {
    const wire::Lease held = lease(worker);
    EXPECT_EQ(held.episode(), 0);
    driver_.fail(worker, held, std::string("too long on ") + worker);
  }
  driver_.crash();
  const wire::Status status = driver_.status();
  EXPECT_EQ(status.counters().poisoned(), 1);
  EXPECT_EQ(status.counters().set_aside(), 1);
  ASSERT_EQ(status.given_up_size(), 1);
  EXPECT_EQ(status.given_up(0).episode(), 0);
  EXPECT_TRUE(status.given_up(0).poisoned());
  EXPECT_THAT(status.given_up(0).reason(), Names("too long on a", "too long on b", "too long on c"));
}

TEST_P(CoreFaultsTest, WhatOneWorkerAloneFailsIsGivenUpButNotCalledPoisoned) {
  driver_.hello("w");
  for (int attempt = 0; attempt < 3; ++attempt) driver_.fail("w", lease("w"), "no");
  EXPECT_EQ(driver_.status().counters().set_aside(), 1);
  EXPECT_EQ(driver_.status().counters().poisoned(), 0);
  EXPECT_FALSE(driver_.status().given_up(0).poisoned());
}

TEST_P(CoreFaultsTest, LostLeasesPoisonNothing) {
  for (const char* worker : {"a", "b", "c"}) {
    driver_.hello(worker);
    EXPECT_EQ(lease(worker).episode(), 0);
    driver_.clock().advance(60s);
    driver_.tick();
  }
  EXPECT_EQ(driver_.status().counters().set_aside(), 1);
  EXPECT_EQ(driver_.status().counters().poisoned(), 0);
  EXPECT_THAT(driver_.status().given_up(0).reason(), Names("b"));
}

TEST_P(CoreFaultsTest, AnEpisodeThatFailedIsKeptForAnotherWorkerForFiveLeaseTimes) {
  driver_.hello("broken");
  driver_.hello("busy");
  const wire::Lease failed = lease("broken");
  driver_.fail("broken", failed, "no");
  const wire::Lease other = lease("broken");
  EXPECT_NE(other.episode(), failed.episode());
  for (int minute = 0; minute < 5; ++minute) {
    driver_.clock().advance(59s);
    alive("busy");
    driver_.heartbeat("broken", {other.lease()});
    driver_.tick();
    const std::vector<wire::Lease> more = driver_.leases("broken", 1);
    ASSERT_EQ(more.size(), 1u);
    EXPECT_NE(more[0].episode(), failed.episode()) << "minute " << minute;
    driver_.release("broken", more[0], {});
  }
  driver_.clock().advance(6s);
  EXPECT_EQ(lease("broken").episode(), failed.episode()) << "busy did not come for it";
}

TEST_P(CoreFaultsTest, AnEpisodeThatFailedGoesToAnotherWorkerThatAsks) {
  driver_.hello("broken");
  driver_.hello("sound");
  const wire::Lease failed = lease("broken");
  driver_.fail("broken", failed, "no");
  EXPECT_EQ(lease("sound").episode(), failed.episode());
}

TEST_P(CoreFaultsTest, AWorkerThatFailsAgainAndAgainWaitsWhileOthersGoOn) {
  driver_.hello("broken");
  driver_.hello("sound");
  for (int failure = 0; failure < 3; ++failure) driver_.fail("broken", lease("broken"), "no kernel image");
  const wire::Wait wait = driver_.request("broken", 1).wait();
  EXPECT_EQ(wait.retry_after_ms(), 60'000);
  EXPECT_THAT(wait.message(), Names(3, "no kernel image"));
  EXPECT_EQ(driver_.status().workers(0).failures_in_a_row(), 3);
  EXPECT_EQ(driver_.status().workers(0).quarantined_ms(), 60'000);
  EXPECT_THAT(driver_.status().workers(0).last_failure(), Names("no kernel image"));
  for (int episode = 0; episode < 3; ++episode)
    EXPECT_EQ(driver_.answer("sound", result_of(lease("sound"), 1)).verdict(), Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(driver_.status().counters().set_aside(), 0);

  driver_.clock().advance(60s);
  alive("sound");
  driver_.fail("broken", lease("broken"), "no kernel image");
  EXPECT_EQ(driver_.request("broken", 1).wait().retry_after_ms(), 120'000) << "twice as long the second time";
  driver_.clock().advance(120s);
  alive("sound");
  EXPECT_EQ(driver_.answer("broken", result_of(lease("broken"), 1)).verdict(), Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(driver_.status().workers(0).failures_in_a_row(), 0);
  driver_.fail("broken", lease("broken"), "once");
  EXPECT_TRUE(driver_.request("broken", 1).has_grant());
}

TEST_P(CoreFaultsTest, AWorkerThatDiesAgainAndAgainWaitsToo) {
  driver_.hello("sound");
  driver_.hello("dying");
  for (int death = 1; death <= 3; ++death) {
    EXPECT_EQ(driver_.leases("dying", 2).size(), 2u) << "before death " << death;
    driver_.hello("dying");
    EXPECT_EQ(driver_.status().workers(0).failures_in_a_row(), death) << "one death, however many leases";
  }
  EXPECT_EQ(driver_.status().counters().crashed(), 6);
  const wire::Wait wait = driver_.request("dying", 1).wait();
  EXPECT_EQ(wait.retry_after_ms(), 60'000);
  EXPECT_THAT(wait.message(), Names("dying", "lease"));
  EXPECT_TRUE(driver_.request("sound", 1).has_grant());
}

TEST_P(CoreFaultsTest, NoWorkerWaitsWhenNobodyElseCouldGoOn) {
  driver_.hello("broken");
  driver_.hello("leaving");
  driver_.hello("silent");
  driver_.clock().advance(61s);
  for (const char* worker : {"broken", "leaving"}) alive(worker);
  const wire::Lease given_back = lease("leaving");
  for (int failure = 0; failure < 3; ++failure) driver_.fail("broken", lease("broken"), "no");
  EXPECT_TRUE(driver_.request("broken", 1).has_wait());
  driver_.release("leaving", given_back, {});
  EXPECT_TRUE(driver_.request("broken", 1).has_grant());
}

TEST_P(CoreFaultsTest, AFailingEpisodeIsTriedAgainThenGivenUpAndReplaced) {
  driver_.hello("w");
  wire::EpisodeResult error;
  error.set_error("out of memory\nsecond line");
  for (int attempt = 1; attempt <= 3; ++attempt) {
    const wire::Lease lease = driver_.leases("w", 1).at(0);
    EXPECT_EQ(lease.episode(), 0);
    EXPECT_EQ(lease.attempt(), attempt);
    error.set_lease(lease.lease());
    error.set_episode(lease.episode());
    EXPECT_EQ(driver_.answer("w", error).verdict(), Ack::VERDICT_FAILED);
    EXPECT_EQ(driver_.answer("w", error).stored(), Ack::VERDICT_FAILED);
  }
  EXPECT_EQ(driver_.status().counters().failed(), 3);
  EXPECT_EQ(driver_.status().counters().set_aside(), 1);
  finish(&driver_, "w");
  EXPECT_EQ(driver_.status().stage(), "finished");
  EXPECT_EQ(driver_.status().episodes_done(), 10);
  wire::EpisodeResult late;
  late.set_lease(1);
  late.set_episode(0);
  EXPECT_EQ(driver_.answer("w", late).verdict(), Ack::VERDICT_DUPLICATE) << "lease 1 was answered: failed";
}

// Names cost nothing, so one key could stop the work of all others with failures under ever new ones.
TEST_P(CoreFaultsTest, FailuresUnderManyNamesDoNotEndARunInWhichOthersWork) {
  const auto fail = [&](const std::string& name) {
    driver_.hello(name);
    for (const wire::Lease& lease : driver_.leases(name, 3)) {
      wire::EpisodeResult error;
      error.set_lease(lease.lease());
      error.set_episode(lease.episode());
      error.set_error("false");
      driver_.answer(name, error);
    }
  };
  const auto takes_it = testing::AnyOf(Ack::VERDICT_ACCEPTED, Ack::VERDICT_STALE);
  driver_.hello("honest");
  wire::Lease held = driver_.leases("honest", 1).at(0);
  for (int i = 0; i < 40; ++i) {
    fail("first " + std::to_string(i));
    EXPECT_NO_THROW(driver_.tick()) << "the honest worker may yet succeed";
  }
  // It may be stale, since the other half of its pair may have been given up.
  EXPECT_THAT(driver_.answer("honest", result_of(held, 4)).verdict(), takes_it);
  held = driver_.leases("honest", 1).at(0);
  for (int i = 0; i < 40; ++i) {
    fail("second " + std::to_string(i));
    EXPECT_NO_THROW(driver_.tick());
  }
  EXPECT_THAT(driver_.answer("honest", result_of(held, 4)).verdict(), takes_it);
}

TEST_P(CoreFaultsTest, ARunInWhichEverythingFailsStopsWithTheLastReason) {
  driver_.hello("w");
  for (int i = 0; i < 15; ++i) {
    EXPECT_NO_THROW(driver_.tick());
    const wire::Lease lease = driver_.leases("w", 1).at(0);
    wire::EpisodeResult error;
    error.set_lease(lease.lease());
    error.set_episode(lease.episode());
    error.set_error("no kernel image");
    driver_.answer("w", error);
  }
  EXPECT_THAT([&] { driver_.tick(); }, ThrowsMessage<Error>(Names(5, "no kernel image")));
  driver_.crash();
  EXPECT_NO_THROW(driver_.tick()) << "started again, it tries again";
}

// ---- Holders of keys

// The other half of the same attack: no episode is lost to failures that one key makes up.
TEST_P(CoreFaultsTest, FailuresUnderManyNamesOfOneKeyGiveNoEpisodeUp) {
  driver_.use_keys();
  driver_.hello("ann/w");
  std::set<int64_t> failed;
  for (int turn = 0; driver_.status().stage() == "learn"; ++turn) {
    ASSERT_LT(turn, 100);
    for (int i = 0; i < 5; ++i) {
      const std::string name = fmt::format("mallory/{} in turn {}", i, turn);
      driver_.hello(name);
      for (const wire::Lease& lease : driver_.leases(name, 3)) {
        EXPECT_TRUE(failed.insert(lease.episode()).second) << "episode " << lease.episode() << " again";
        driver_.fail(name, lease, "false");
      }
    }
    EXPECT_NO_THROW(driver_.tick());
    EXPECT_EQ(driver_.answer("ann/w", result_of(lease("ann/w"), 2)).verdict(), Ack::VERDICT_ACCEPTED);
  }
  EXPECT_GE(failed.size(), 9u);
  EXPECT_EQ(driver_.status().counters().set_aside(), 0);
}

TEST_P(CoreFaultsTest, LeasesThatOneHolderLetsExpireGoToAnother) {
  driver_.use_keys();
  driver_.hello("mallory/1");
  driver_.hello("mallory/2");
  const wire::Lease held = lease("mallory/1");
  driver_.clock().advance(60s);
  for (const char* worker : {"mallory/1", "mallory/2"}) alive(worker);
  driver_.tick();
  driver_.hello("ann/w");
  EXPECT_NE(lease("mallory/2").episode(), held.episode());
  EXPECT_EQ(lease("ann/w").episode(), held.episode());
}

TEST_P(CoreFaultsTest, WorkersOfAHolderThatFailAgainAndAgainWaitTogether) {
  driver_.use_keys();
  driver_.hello("ann/w");
  for (int i = 0; i < 4; ++i) fail_some(fmt::format("bob/{}", i), 2);
  driver_.hello("bob/fresh");
  EXPECT_TRUE(driver_.request("bob/fresh", 1).has_grant()) << "8 failures are bearable";
  fail_some("bob/last", 1);
  driver_.hello("bob/another");
  const wire::Wait wait = driver_.request("bob/another", 1).wait();
  EXPECT_EQ(wait.retry_after_ms(), 60'000);
  EXPECT_THAT(wait.message(), Names("bob", 9, "false"));
  EXPECT_TRUE(driver_.request("ann/w", 1).has_grant());
  const wire::Status status = driver_.status();
  for (const wire::WorkerStatus& worker : status.workers())
    EXPECT_EQ(worker.quarantined_ms(), holder_of(worker.worker()) == "bob" ? 60'000 : 0) << worker.worker();
}

TEST(CoreFaults, AResultOfOneOfItsWorkersEndsTheWaitOfAHolder) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(100);
  CoreDriver driver(Storage::kMemory, spec);
  driver.use_keys();
  driver.hello("ann/w");
  driver.hello("bob/sound");
  const wire::Lease held = driver.leases("bob/sound", 1).at(0);
  for (int i = 0; i < 5; ++i) {
    const std::string name = fmt::format("bob/{}", i);
    driver.hello(name);
    for (const wire::Lease& lease : driver.leases(name, 2)) driver.fail(name, lease, "no");
  }
  EXPECT_TRUE(driver.request("bob/sound", 1).has_wait());
  EXPECT_EQ(driver.answer("bob/sound", result_of(held, 1)).verdict(), Ack::VERDICT_ACCEPTED);
  EXPECT_TRUE(driver.request("bob/sound", 1).has_grant());
}

TEST_P(CoreFaultsTest, WhereOneHolderHasAllWorkersItsWorkersAreToldApart) {
  driver_.use_keys();
  for (const char* worker : {"ann/a", "ann/b", "ann/c"}) driver_.hello(worker);
  for (const char* worker : {"ann/a", "ann/b", "ann/c"}) {
    const wire::Lease held = lease(worker);
    EXPECT_EQ(held.episode(), 0);
    driver_.fail(worker, held, "too long");
  }
  EXPECT_EQ(driver_.status().counters().poisoned(), 1);
}

TEST_P(CoreFaultsTest, FailuresForOneHolderPoisonNothingWhileAnotherIsPresent) {
  driver_.use_keys();
  driver_.hello("ann/w");
  for (int i = 0; i < 3; ++i) driver_.hello(fmt::format("bob/{}", i));
  const int64_t episode = lease("bob/0").episode();
  driver_.hello("bob/0");  // it died
  for (const char* worker : {"bob/1", "bob/2"}) {
    driver_.clock().advance(301s);  // ann did not come for it
    alive("ann/w");
    const wire::Lease held = lease(worker);
    EXPECT_EQ(held.episode(), episode);
    driver_.fail(worker, held, "no");
  }
  EXPECT_EQ(driver_.status().counters().set_aside(), 1);
  EXPECT_EQ(driver_.status().counters().poisoned(), 0);
}

TEST_P(CoreFaultsTest, AnExpiredLeaseIsAnsweredByNobodyButWhoHeldIt) {
  driver_.use_keys();
  driver_.hello("ann/w");
  driver_.hello("mallory/w");
  const wire::Lease held = lease("ann/w");
  driver_.clock().advance(60s);
  driver_.tick();
  EXPECT_EQ(driver_.answer("mallory/w", result_of(held, 0)).verdict(), Ack::VERDICT_REJECTED);
  driver_.release("mallory/w", held, {0, 1});
  EXPECT_EQ(driver_.status().counters().answers_kept(), 0);
  driver_.crash();
  driver_.hello("mallory/w");
  EXPECT_EQ(driver_.answer("mallory/w", result_of(held, 0)).verdict(), Ack::VERDICT_REJECTED);
  driver_.hello("ann/w");
  EXPECT_EQ(driver_.answer("ann/w", result_of(held, 4)).verdict(), Ack::VERDICT_LATE);
}

// ---- How much is held at once

TEST_P(CoreFaultsTest, AWorkerHoldsNoMoreThanItRunsAtOnce) {
  driver_.hello("w");
  const wire::Envelope first = driver_.request("w", 5, {}, 2);
  ASSERT_EQ(first.grant().leases_size(), 2);
  const wire::Wait repeated = driver_.request("w", 5, {}, 2).wait();
  EXPECT_EQ(repeated.message(), "") << "it has not seen the Grant yet";
  const std::vector<int64_t> held = {first.grant().leases(0).lease(), first.grant().leases(1).lease()};
  EXPECT_THAT(driver_.request("w", 5, held, 2).wait().message(), Names("w", 2));
  driver_.answer("w", result_of(first.grant().leases(0), 1));
  EXPECT_EQ(driver_.request("w", 5, {held[1]}, 2).grant().leases_size(), 1);
}

TEST(CoreFaults, AWorkerThatDoesNotSayHowMuchItRunsHoldsSixtyFour) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(1'000);
  CoreDriver driver(Storage::kMemory, spec);
  driver.hello("w");
  int64_t held = 0;
  for (int i = 0; i < 4; ++i) held += driver.request("w", 40).grant().leases_size();
  EXPECT_EQ(held, Core::kMaxLeasesOfAWorker);
}

TEST(CoreFaults, NoMoreEpisodesAreOpenThanTheLearnerCanUse) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(1'000);
  *spec.mutable_policy() = policy_spec(
      {.name = "reinforce", .total = 64, .max_policy_lag = 3, .parameters = {{"episodes_per_update", 2}}});
  CoreDriver driver(Storage::kMemory, spec);
  for (const char* worker : {"a", "b"}) driver.hello(worker);
  const std::vector<wire::Lease> held = driver.leases("a", 40);
  EXPECT_EQ(held.size(), 8u) << "the last of them is told 3 updates after it was asked";
  EXPECT_TRUE(driver.request("b", 1).has_wait());
  driver.answer("a", result_of(held[0], 1));
  EXPECT_EQ(driver.request("b", 5).grant().leases_size(), 1);
}

TEST(CoreFaults, HoldersShareWhatIsLeftAndKeepFreeWhatOthersCanRun) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(40);
  spec.mutable_task()->set_heldout_questions(0);
  CoreDriver driver(Storage::kMemory, spec);
  driver.use_keys();
  driver.hello("ann/w");
  (void)driver.request("ann/w", 0, {}, 6);
  for (int i = 0; i < 10; ++i) {
    driver.hello(fmt::format("bob/{}", i));
    driver.tick();
  }
  int64_t of_bob = 0;
  std::string reason;
  for (int i = 0; i < 10; ++i) {
    const wire::Envelope reply = driver.request(fmt::format("bob/{}", i), 64);
    of_bob += reply.grant().leases_size();
    if (reply.has_wait()) reason = reply.wait().message();
  }
  EXPECT_EQ(of_bob, 34) << "6 are kept free for ann";
  EXPECT_THAT(reason, Names("bob", 34));
  EXPECT_EQ(driver.request("ann/w", 6, {}, 6).grant().leases_size(), 6);
}

TEST_P(CoreFaultsTest, RequestsThatWaitedWhileTheAggregatorStoodStillAreGrantedNothing) {
  driver_.hello("w");
  driver_.core().fell_behind();
  for (int copy = 0; copy < 5; ++copy) {
    const wire::Wait wait = driver_.request("w", 1, {}, 2).wait();
    EXPECT_EQ(wait.retry_after_ms(), 100);
    EXPECT_FALSE(wait.finished());
  }
  EXPECT_EQ(driver_.core().leases().num_live(), 0u);
  driver_.core().caught_up();
  EXPECT_TRUE(driver_.request("w", 1, {}, 2).has_grant());
}

// ---- What leaves a trace

TEST_P(CoreFaultsTest, RefusalsAndForeignResultsAreCountedAndOutliveACrash) {
  driver_.use_keys();
  driver_.hello("ann/w");
  driver_.hello("bob/w");
  const wire::Lease held = lease("ann/w");
  EXPECT_EQ(driver_.answer("bob/w", result_of(held, 4)).verdict(), Ack::VERDICT_REJECTED);
  wire::EpisodeResult unknown = result_of(held, 4);
  unknown.set_lease(99);
  EXPECT_EQ(driver_.answer("bob/w", unknown).verdict(), Ack::VERDICT_REJECTED);
  wire::Envelope other_model;
  *other_model.mutable_hello() = example_hello(driver_.spec(), "w");
  other_model.mutable_hello()->mutable_model()->set_weights_fingerprint("ff");
  EXPECT_TRUE(driver_.send("carl/w", other_model).has_refused());
  EXPECT_FALSE(driver_.control(wire::Control::ACTION_STOP).done());
  driver_.core().count_refused_connections(3);
  driver_.tick();
  driver_.answer("ann/w", result_of(held, 4));
  driver_.crash();
  const wire::Counters counters = driver_.status().counters();
  EXPECT_EQ(counters.foreign(), 2);
  EXPECT_EQ(counters.rejected(), 2);
  EXPECT_EQ(counters.mismatched(), 1);
  EXPECT_EQ(counters.not_allowed(), 1);
  EXPECT_EQ(counters.refused_connections(), 3);
}

TEST_P(CoreFaultsTest, NumbersThatNoEpisodeHasAreRejected) {
  driver_.hello("w");
  for (const double seconds : {1e300, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    wire::EpisodeResult result = result_of(lease("w"), 1);
    result.set_seconds(seconds);
    EXPECT_EQ(driver_.answer("w", result).verdict(), Ack::VERDICT_REJECTED) << seconds;
  }
  wire::EpisodeResult result = result_of(lease("w"), 1);
  result.mutable_outcomes(0)->set_output_tokens(std::numeric_limits<int32_t>::max());
  EXPECT_EQ(driver_.answer("w", result).verdict(), Ack::VERDICT_REJECTED);
}

}  // namespace
}  // namespace allot::aggregator
