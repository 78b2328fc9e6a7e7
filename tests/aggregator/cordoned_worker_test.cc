// Workers that an operator has cordoned: what they get, what becomes of what they hold, and what a restart
// knows of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using wire::Control;
using namespace std::chrono_literals;

class CordonedWorkerTest : public testing::TestWithParam<Storage> {
 protected:
  wire::ControlReply control(Control::Action action, const std::string& worker) {
    Control control;
    control.set_action(action);
    control.set_worker(worker);
    return driver_.control(std::move(control));
  }
  wire::ControlReply cordon(const std::string& worker) { return control(Control::ACTION_CORDON, worker); }
  wire::ControlReply uncordon(const std::string& worker) { return control(Control::ACTION_UNCORDON, worker); }
  std::vector<std::string> cordoned() {
    std::vector<std::string> names;
    const wire::Status status = driver_.status();
    for (const wire::WorkerStatus& worker : status.workers())
      if (worker.cordoned()) names.push_back(worker.worker());
    return names;
  }
  void fail_three_times(const std::string& name) {
    for (int i = 0; i < 3; ++i) driver_.fail(name, driver_.leases(name, 1).at(0), "no GPU");
  }

  static wire::RunSpec long_spec() {
    wire::RunSpec spec = example_spec();
    spec.set_episodes(100);
    return spec;
  }
  CoreDriver driver_{GetParam(), long_spec()};
};
INSTANTIATE_TEST_SUITE_P(Histories, CordonedWorkerTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(CordonedWorkerTest, GetsNoLeasesWhileOthersDoAndWhatItHoldsCounts) {
  for (const char* name : {"a", "b"}) driver_.hello(name);
  const std::vector<wire::Lease> running = driver_.leases("a", 2);
  const wire::ControlReply reply = cordon("a");
  EXPECT_TRUE(reply.done());
  EXPECT_THAT(reply.message(), Names("a", 2));
  EXPECT_THAT(cordoned(), testing::ElementsAre("a"));
  const wire::Wait wait = driver_.request("a", 1).wait();
  EXPECT_THAT(wait.message(), Names("cordoned", "a"));
  EXPECT_GE(wait.retry_after_ms(), 1000);
  EXPECT_FALSE(wait.paused());
  EXPECT_THAT(driver_.leases("b", 1), SizeIs(1));
  for (const wire::Lease& lease : running)
    EXPECT_EQ(driver_.answer("a", result_of(lease, 1)).verdict(), wire::Ack::VERDICT_ACCEPTED);
  EXPECT_EQ(driver_.status().episodes_done(), 2);
  EXPECT_THAT(driver_.leases("a", 1), IsEmpty());
  EXPECT_TRUE(uncordon("a").done());
  EXPECT_THAT(driver_.leases("a", 1), SizeIs(1));
  EXPECT_THAT(cordoned(), IsEmpty());
}

TEST_P(CordonedWorkerTest, IsSoAfterARestartToo) {
  EXPECT_TRUE(cordon("a").done()) << "it need not be there yet";
  driver_.hello("a");
  EXPECT_THAT(driver_.leases("a", 1), IsEmpty());
  driver_.crash();
  driver_.hello("a");
  EXPECT_THAT(driver_.leases("a", 1), IsEmpty());
  EXPECT_TRUE(uncordon("a").done());
  driver_.crash();
  driver_.hello("a");
  EXPECT_THAT(driver_.leases("a", 1), SizeIs(1));
  const std::vector<RunControlled> controlled = driver_.records_of<RunControlled>();
  ASSERT_THAT(controlled, SizeIs(2));
  EXPECT_EQ(controlled[0].action, ControlAction::kCordon);
  EXPECT_EQ(controlled[0].worker, "a");
  EXPECT_EQ(controlled[1].action, ControlAction::kUncordon);
  EXPECT_EQ(controlled[1].worker, "a");
  EXPECT_EQ(driver_.status().steering(0).worker(), "a");
}

TEST_P(CordonedWorkerTest, AHolderStandsForAllItsWorkersAndForNobodyElse) {
  for (const char* name : {"ann/1", "ann/2", "anna/1"}) driver_.hello(name);
  EXPECT_TRUE(cordon("ann").done());
  EXPECT_THAT(cordoned(), testing::ElementsAre("ann/1", "ann/2"));
  EXPECT_THAT(driver_.leases("ann/1", 1), IsEmpty());
  EXPECT_THAT(driver_.leases("anna/1", 1), SizeIs(1));
  EXPECT_FALSE(uncordon("ann/1").done()) << "its holder is cordoned";
  EXPECT_TRUE(uncordon("ann").done());
  EXPECT_TRUE(cordon("ann/2").done());
  EXPECT_THAT(driver_.leases("ann/1", 1), SizeIs(1));
  EXPECT_THAT(driver_.leases("ann/2", 1), IsEmpty());
}

TEST_P(CordonedWorkerTest, DoesNotMakeOthersWait) {
  for (const char* name : {"a", "b"}) driver_.hello(name);
  fail_three_times("a");
  ASSERT_THAT(driver_.leases("a", 1), IsEmpty()) << "it waits while b is there";
  EXPECT_TRUE(cordon("b").done());
  EXPECT_THAT(driver_.leases("a", 1), SizeIs(1)) << "nobody else may work";
}

TEST_P(CordonedWorkerTest, NothingIsKeptFreeForACordonedHolder) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(40);
  spec.mutable_task()->set_heldout_questions(0);
  for (const bool ann_is_cordoned : {false, true}) {
    CoreDriver driver(GetParam(), spec);
    Control control;
    control.set_action(Control::ACTION_CORDON);
    control.set_worker("ann");
    if (ann_is_cordoned) {
      EXPECT_TRUE(driver.control(std::move(control)).done());
    }
    driver.use_keys();
    driver.hello("ann/w");
    (void)driver.request("ann/w", 0, {}, 6);
    driver.hello("bob/w");
    driver.tick();
    EXPECT_EQ(driver.request("bob/w", 64).grant().leases_size(), ann_is_cordoned ? 40 : 34);
  }
}

TEST_P(CordonedWorkerTest, WhatCannotBeCordonedOrUncordonedIsRefusedWithTheReason) {
  for (const std::string& name : {std::string(), std::string(201, 'x'), std::string("a\nb")}) {
    const wire::ControlReply reply = cordon(name);
    EXPECT_FALSE(reply.done());
    EXPECT_THAT(reply.message(), Names("name", 200));
  }
  EXPECT_TRUE(cordon("a").done());
  EXPECT_THAT(cordon("a").message(), Names("a", "already"));
  EXPECT_THAT(uncordon("b").message(), Names("b", "not cordoned", "a"));
  for (int i = 1; i < 256; ++i) ASSERT_TRUE(cordon(fmt::format("w{}", i)).done());
  const wire::ControlReply full = cordon("one more");
  EXPECT_FALSE(full.done());
  EXPECT_THAT(full.message(), Names(256));
  EXPECT_THAT(driver_.records_of<RunControlled>(), SizeIs(256));
}

}  // namespace
}  // namespace allot::aggregator
