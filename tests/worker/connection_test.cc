#include "worker/connection.h"

#include <gmock/gmock.h>

#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "tests/names.h"
#include "tests/worker/scripted_connection.h"
#include "wire/codec.h"
#include "wire/endpoint.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;
using wire::Ack;
using wire::Envelope;
using namespace std::chrono_literals;

TEST_F(ConnectionTest, ALeaseIsRunAndItsResultDelivered) {
  start_worker(true);
  const Envelope hello = aggregator_->expect(Envelope::kHello);
  EXPECT_EQ(hello.hello().worker(), "w");
  EXPECT_EQ(hello.sender(), "w");
  aggregator_->welcome();
  EXPECT_EQ(aggregator_->expect(Envelope::kLeaseRequest).lease_request().count(), 2);
  aggregator_->grant({{11, 4}});
  const Envelope result = aggregator_->expect(Envelope::kResult);
  EXPECT_EQ(result.result().lease(), 11);
  EXPECT_EQ(result.result().episode(), 4);
  EXPECT_EQ(result.result().seconds(), 1.5);
  ASSERT_EQ(result.result().outcomes_size(), 2);
  EXPECT_EQ(result.result().outcomes(1).question(), 6u);
  EXPECT_TRUE(result.result().outcomes(1).correct());
  EXPECT_EQ(result.result().outcomes(1).finish(), wire::FINISH_REASON_LENGTH);
  EXPECT_EQ(result.result().outcomes(1).prompt_tokens(), 200);
  EXPECT_EQ(result.result().outcomes(1).output_tokens(), 50);
  EXPECT_THAT(result.leases(), ElementsAre(11)) << "a lease is held until its result is acked";
  aggregator_->ack(result);
  aggregator_->expect_holding({});
  aggregator_->wait(true);
  EXPECT_EQ(worker_.get(), 0);
  ASSERT_EQ(control_.started.size(), 1u);
  EXPECT_EQ(control_.started[0].split, Split::kHeldout);
  EXPECT_THAT(control_.started[0].samples, ElementsAre(33, 8));
  EXPECT_THAT(control_.started[0].questions, ElementsAre(5, 6));
  EXPECT_EQ(control_.started[0].sampling_seed, 77u);
}

TEST_F(ConnectionTest, AResultIsSentAgainUntilItIsAcked) {
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  const Envelope first = aggregator_->expect(Envelope::kResult);
  const Envelope second = aggregator_->expect(Envelope::kResult);
  EXPECT_EQ(first.result().SerializeAsString(), second.result().SerializeAsString());
  EXPECT_GT(second.number(), first.number());
  aggregator_->ack(second);
  aggregator_->expect_holding({});
}

TEST_F(ConnectionTest, AResultSaysNowAndThenWhatTheWorkerDid) {
  load_every_ = 100ms;
  start_introduced_worker();
  std::this_thread::sleep_for(load_every_);
  aggregator_->grant({{11, 4}});
  const Envelope first = aggregator_->expect(Envelope::kResult);
  ASSERT_TRUE(first.result().has_load());
  EXPECT_GE(first.result().load().seconds(), 0.1);
  EXPECT_EQ(first.result().load().output_tokens(), 100);
  EXPECT_EQ(first.result().load().prompt_tokens(), 400);
  EXPECT_EQ(first.result().load().memory_used_bytes(), 3);
  EXPECT_EQ(first.result().load().memory_total_bytes(), 8);
  aggregator_->ack(first);
  aggregator_->grant({{12, 5}, {13, 6}});
  const Envelope one = aggregator_->expect(Envelope::kResult);
  EXPECT_FALSE(one.result().has_load()) << "so soon after the first";
  aggregator_->ack(one);
  const Envelope other = aggregator_->expect(Envelope::kResult);
  aggregator_->ack(other);
  std::this_thread::sleep_for(load_every_);
  aggregator_->grant({{14, 7}});
  const Envelope last = aggregator_->expect(Envelope::kResult);
  ASSERT_TRUE(last.result().has_load());
  EXPECT_EQ(last.result().load().output_tokens(), 300) << "since the first";
}

TEST_F(ConnectionTest, WithoutExitWhenFinishedItKeepsAsking) {
  start_introduced_worker();
  aggregator_->wait(true);
  aggregator_->expect(Envelope::kLeaseRequest);
  aggregator_->wait(true);
  aggregator_->expect(Envelope::kLeaseRequest);
}

TEST_F(ConnectionTest, ARefusalEndsTheWorkerWithTheAggregatorsReason) {
  start_worker();
  aggregator_->expect(Envelope::kHello);
  aggregator_->reply([](Envelope* m) {
    m->mutable_refused()->set_reason(wire::Refused::REASON_MODEL);
    m->mutable_refused()->set_message("model 'a' is not 'b'");
  });
  EXPECT_THAT([&] { worker_.get(); }, ThrowsMessage<Mismatch>(Names("'a'", "'b'", aggregator_->endpoint())));
}

TEST_F(ConnectionTest, AnEpisodeThatCannotBeStartedIsReportedAndTheWorkerGoesOn) {
  control_.start_error = "schedule has 2 entries, the model 8 layers";
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  const Envelope result = aggregator_->expect(Envelope::kResult);
  EXPECT_EQ(result.result().error(), control_.start_error);
  EXPECT_EQ(result.result().outcomes_size(), 0);
  EXPECT_FALSE(result.result().crashed());
  aggregator_->ack(result, Ack::VERDICT_FAILED);
  aggregator_->expect(Envelope::kLeaseRequest);
}

TEST_F(ConnectionTest, ARunnerThatThrowsEndsTheWorkerAfterItsEpisodesAreReported) {
  control_.advance_error = "device lost";
  start_introduced_worker();
  aggregator_->grant({{11, 4}, {12, 5}});
  std::vector<int64_t> reported;
  while (reported.size() < 2 && !HasFailure()) {
    const Envelope result = aggregator_->expect(Envelope::kResult);
    EXPECT_EQ(result.result().error(), "device lost");
    EXPECT_TRUE(result.result().crashed());
    if (std::ranges::find(reported, result.result().episode()) == reported.end()) {
      reported.push_back(result.result().episode());
    }
    aggregator_->ack(result, Ack::VERDICT_FAILED);
  }
  EXPECT_THAT(reported, UnorderedElementsAre(4, 5));
  EXPECT_THAT([&] { worker_.get(); }, ThrowsMessage<Error>(Names("device lost")));
}

TEST_F(ConnectionTest, AStoppingWorkerGivesItsLeasesBackAndEndsWell) {
  drain_ = kDrainOfATest;
  control_.finish_episodes = false;
  start_introduced_worker();
  aggregator_->grant({{11, 4}, {12, 5}});
  aggregator_->expect_holding({11, 12});
  stop_ = true;
  const Envelope release = aggregator_->expect(Envelope::kRelease);
  EXPECT_THAT(release.release().leases(), UnorderedElementsAre(11, 12));
  aggregator_->reply(
      [&](Envelope* m) { *m->mutable_released()->mutable_leases() = release.release().leases(); });
  EXPECT_EQ(worker_.get(), 0);
}

// Else its leases would be kept for it until they expire.
TEST_F(ConnectionTest, AStoppingWorkerWithoutLeasesGivesThoseOfAGrantUnderWayBack) {
  drain_ = kDrainOfATest;
  start_introduced_worker();
  stop_ = true;
  ASSERT_EQ(worker_.wait_for(200ms), std::future_status::timeout);
  aggregator_->grant({{11, 4}, {12, 5}});
  const Envelope release = aggregator_->expect(Envelope::kRelease);
  EXPECT_THAT(release.release().leases(), UnorderedElementsAre(11, 12));
  aggregator_->reply(
      [&](Envelope* m) { *m->mutable_released()->mutable_leases() = release.release().leases(); });
  EXPECT_EQ(worker_.get(), 0);
  EXPECT_THAT(control_.started, IsEmpty());
}

TEST_F(ConnectionTest, AStoppingWorkerWithoutLeasesLeavesOnceThereIsNoneForIt) {
  drain_ = 4 * kDeadline;
  start_introduced_worker();
  stop_ = true;
  aggregator_->wait(false);
  ASSERT_EQ(worker_.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(worker_.get(), 0);
}

TEST_F(ConnectionTest, AStoppingWorkerGivesBackTheAnswersItHasAndSaysWhetherItsMachineIsTakenAway) {
  drain_ = kDrainOfATest;
  for (const bool preempted : {false, true}) {
    preempted_ = preempted;
    stop_ = false;
    control_.finish_episodes = false;
    control_.half_answered = 5;
    start_introduced_worker();
    aggregator_->grant({{11, 4}, {12, 5}});
    aggregator_->expect_holding({11, 12});
    stop_ = true;
    const Envelope message = aggregator_->expect(Envelope::kRelease);
    const wire::Release& release = message.release();
    EXPECT_EQ(release.reason(), preempted ? wire::Release::REASON_PREEMPTED : wire::Release::REASON_STOPPED);
    EXPECT_THAT(release.leases(), UnorderedElementsAre(11, 12));
    ASSERT_EQ(release.partial_size(), 1);
    EXPECT_EQ(release.partial(0).lease(), 12);
    EXPECT_EQ(release.partial(0).episode(), 5);
    EXPECT_EQ(release.partial(0).seconds(), 2.5);
    ASSERT_EQ(release.partial(0).outcomes_size(), 1);
    EXPECT_EQ(release.partial(0).outcomes(0).question(), 6u);
    EXPECT_TRUE(release.partial(0).outcomes(0).correct());
    aggregator_->reply([&](Envelope* m) { *m->mutable_released()->mutable_leases() = release.leases(); });
    EXPECT_EQ(worker_.get(), 0);
  }
}

TEST_F(ConnectionTest, MessagesNameTheEpochOfTheWelcomeTheyGoBy) {
  start_worker();
  EXPECT_EQ(aggregator_->expect(Envelope::kHello).epoch(), 0);
  aggregator_->welcome();
  EXPECT_EQ(aggregator_->expect(Envelope::kLeaseRequest).epoch(), 1);
  for (const int64_t epoch : {7, 3}) {  // a restart, and an older copy of the history
    aggregator_->reply(
        [](Envelope* m) { m->mutable_refused()->set_reason(wire::Refused::REASON_NOT_INTRODUCED); });
    aggregator_->expect(Envelope::kHello);
    aggregator_->welcome("run", 50ms, epoch);
    EXPECT_EQ(aggregator_->expect(Envelope::kLeaseRequest).epoch(), epoch);
  }
}

// As an outage of a minute, with all times short: episodes finish while nobody listens, for many retries.
TEST_F(ConnectionTest, WhatFinishedDuringALongOutageIsDeliveredAfterIt) {
  first_retry_ = patience_ = 50ms;
  start_introduced_worker();
  const std::string endpoint = aggregator_->endpoint();
  {
    const std::scoped_lock lock(control_.mutex);
    control_.finish_episodes = false;
  }
  aggregator_->grant({{11, 4}, {12, 5}});
  aggregator_->expect_holding({11, 12});
  aggregator_.reset();
  {
    const std::scoped_lock lock(control_.mutex);
    control_.finish_episodes = true;
  }
  std::this_thread::sleep_for(20 * patience_);  // the outage
  aggregator_.emplace(endpoint);
  EXPECT_THAT(aggregator_->expect(Envelope::kHello).leases(), UnorderedElementsAre(11, 12));
  aggregator_->welcome();
  std::set<int64_t> delivered;
  while (delivered.size() < 2 && !HasFailure()) {
    const Envelope result = aggregator_->expect(Envelope::kResult);
    EXPECT_EQ(result.result().outcomes_size(), 2);
    delivered.insert(result.result().lease());
    aggregator_->ack(result);
  }
  aggregator_->expect_holding({});
}

TEST_F(ConnectionTest, AStoppingWorkerDoesNotWaitForEverForADeadAggregator) {
  control_.finish_episodes = false;
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  aggregator_->expect_holding({11});
  aggregator_.reset();
  stop_ = true;
  ASSERT_EQ(worker_.wait_for(kDeadline), std::future_status::ready);
  EXPECT_EQ(worker_.get(), 0);
}

// The aggregator was killed with the Hello of a worker that is told to stop right afterwards.
TEST_F(ConnectionTest, AStoppingWorkerWhoseHelloWasLostIntroducesItselfAgainInTimeToGiveItsLeasesBack) {
  control_.finish_episodes = false;
  drain_ = kDrainOfATest;
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  aggregator_->expect_holding({11});
  aggregator_->reply(
      [](Envelope* m) { m->mutable_refused()->set_reason(wire::Refused::REASON_NOT_INTRODUCED); });
  aggregator_->expect(Envelope::kHello);  // and nobody answers it
  stop_ = true;
  EXPECT_THAT(aggregator_->expect(Envelope::kHello).leases(), ElementsAre(11));
  aggregator_->welcome();
  EXPECT_THAT(aggregator_->expect(Envelope::kRelease).release().leases(), ElementsAre(11));
  aggregator_->reply([](Envelope* m) { m->mutable_released()->add_leases(11); });
  EXPECT_EQ(worker_.get(), 0);
}

// A connection that takes messages and answers none: the machine of the aggregator is gone, another has its
// address.
TEST_F(ConnectionTest, AStoppingWorkerLeavesASilentConnectionInTimeToGiveItsLeasesBack) {
  control_.finish_episodes = false;
  drain_ = kDrainOfATest;
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  aggregator_->expect_holding({11});
  stop_ = true;
  aggregator_->expect(Envelope::kRelease);
  const std::string silent = aggregator_->peer();
  aggregator_->expect(Envelope::kHello);
  EXPECT_NE(aggregator_->peer(), silent);
  aggregator_->welcome();
  EXPECT_THAT(aggregator_->expect(Envelope::kRelease).release().leases(), ElementsAre(11));
  aggregator_->reply([](Envelope* m) { m->mutable_released()->add_leases(11); });
  EXPECT_EQ(worker_.get(), 0);
}

TEST_F(ConnectionTest, EpisodesWhoseLeaseIsGoneAreCancelled) {
  control_.finish_episodes = false;
  start_introduced_worker();
  aggregator_->grant({{11, 4}, {12, 5}});
  aggregator_->expect_holding({11, 12});
  aggregator_->reply([](Envelope* m) { m->mutable_heartbeat_reply()->add_unknown_leases(11); });
  const Envelope request = aggregator_->expect(Envelope::kLeaseRequest);
  EXPECT_EQ(request.lease_request().count(), 1);
  EXPECT_THAT(request.leases(), ElementsAre(12));
  EXPECT_THAT(control_.cancelled_now(), ElementsAre(4));
}

TEST_F(ConnectionTest, AnEpisodeThatComesBackUnderANewLeaseIsAnsweredUnderIt) {
  control_.finish_episodes = false;
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  aggregator_->expect_holding({11});
  aggregator_->grant({{12, 4}});
  aggregator_->expect_holding({12});
  {
    const std::scoped_lock lock(control_.mutex);
    EXPECT_EQ(control_.started.size(), 1u);
    control_.finish_episodes = true;
  }
  EXPECT_EQ(aggregator_->expect(Envelope::kResult).result().lease(), 12);
}

TEST_F(ConnectionTest, AnAggregatorThatWasStartedAgainHearsHelloWithTheLeasesHeld) {
  control_.finish_episodes = false;
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  aggregator_->expect_holding({11});
  const std::string endpoint = aggregator_->endpoint();
  aggregator_.reset();
  aggregator_.emplace(endpoint);
  aggregator_->expect_holding({11});
  aggregator_->reply(
      [](Envelope* m) { m->mutable_refused()->set_reason(wire::Refused::REASON_NOT_INTRODUCED); });
  EXPECT_THAT(aggregator_->expect(Envelope::kHello).leases(), ElementsAre(11));
  aggregator_->welcome();
  EXPECT_THAT(aggregator_->expect(Envelope::kLeaseRequest).leases(), ElementsAre(11));
}

TEST_F(ConnectionTest, ASilentAggregatorIsConnectedToAnew) {
  first_retry_ = patience_ = 200ms;
  start_worker();
  aggregator_->expect(Envelope::kHello);
  const std::string first = aggregator_->peer();
  aggregator_->expect(Envelope::kHello);
  EXPECT_NE(aggregator_->peer(), first) << "a new connection has a new routing id";
  aggregator_->welcome();
  aggregator_->expect(Envelope::kLeaseRequest);
  const std::string second = aggregator_->peer();
  aggregator_->expect(Envelope::kHello);
  EXPECT_NE(aggregator_->peer(), second);
}

TEST_F(ConnectionTest, AFrameWithoutAProtocolVersionIsPassedOver) {
  start_worker(true);
  aggregator_->expect(Envelope::kHello);
  aggregator_->reply_with_frame("");
  aggregator_->welcome();
  aggregator_->expect(Envelope::kLeaseRequest);
  aggregator_->reply_with_frame("");
  aggregator_->grant({{7, 70}});
  EXPECT_EQ(aggregator_->expect(Envelope::kResult).result().lease(), 7);
}

TEST_F(ConnectionTest, ASpecOfANewerFormEndsTheWorkerBeforeItIsRead) {
  start_worker();
  aggregator_->expect(Envelope::kHello);
  aggregator_->reply(
      [](Envelope* m) { m->mutable_welcome()->mutable_spec()->set_schema_version(wire::kSpecVersion + 1); });
  EXPECT_THAT([&] { worker_.get(); }, ThrowsMessage<Mismatch>(Names(wire::kSpecVersion + 1)));
}

TEST_F(ConnectionTest, AnAggregatorThatIsSilentForALeaseIsConnectedToAnewWhateverThePatience) {
  patience_ = 3 * kDeadline;
  start_worker();
  aggregator_->expect(Envelope::kHello);
  aggregator_->reply([](Envelope* m) {
    wire::RunSpec& spec = *m->mutable_welcome()->mutable_spec();
    spec.set_run_id("run");
    spec.set_lease_ms(100);
    m->mutable_welcome()->set_heartbeat_ms(50);
  });
  aggregator_->expect(Envelope::kLeaseRequest);
  const std::string first = aggregator_->peer();
  aggregator_->expect(Envelope::kHello);
  EXPECT_NE(aggregator_->peer(), first);
}

TEST_F(ConnectionTest, AfterManyMessagesItConnectsAnewWithTheLeasesHeld) {
  control_.finish_episodes = false;
  start_worker();
  aggregator_->expect(Envelope::kHello);
  aggregator_->welcome("run", 1ms);
  aggregator_->expect(Envelope::kLeaseRequest);
  aggregator_->grant({{7, 70}, {8, 80}});
  const std::string first = aggregator_->peer();
  int messages = 2;
  for (;; ++messages) {
    const Envelope message = aggregator_->expect_where("of any kind", [](const Envelope&) { return true; });
    ASSERT_LT(messages, 2 * wire::kMessagesOfAConnection);
    if (message.has_hello()) {
      EXPECT_THAT(message.leases(), UnorderedElementsAre(7, 8));
      break;
    }
    aggregator_->reply([](Envelope* m) { m->mutable_heartbeat_reply(); });
  }
  EXPECT_GE(messages, wire::kMessagesOfAConnection);
  EXPECT_NE(aggregator_->peer(), first);
  aggregator_->welcome();
  {
    const std::scoped_lock lock(control_.mutex);
    control_.finish_episodes = true;
  }
  EXPECT_EQ(aggregator_->expect(Envelope::kResult).result().episode(), 70);
  EXPECT_THAT(control_.cancelled_now(), IsEmpty());
}

TEST_F(ConnectionTest, ItKeepsAConnectionOnWhichAGrantMayBeUnderWay) {
  control_.finish_episodes = false;
  start_worker();
  aggregator_->expect(Envelope::kHello);
  aggregator_->welcome("run", 1ms);
  aggregator_->expect(Envelope::kLeaseRequest);
  aggregator_->grant({{7, 70}});  // it can run one more, and asks
  for (int heartbeats = 0; heartbeats < 2 * wire::kMessagesOfAConnection;) {
    const Envelope message = aggregator_->expect_where("of any kind", [](const Envelope&) { return true; });
    ASSERT_FALSE(message.has_hello()) << "after " << heartbeats << " heartbeats";
    if (!message.has_heartbeat()) continue;
    ++heartbeats;
    aggregator_->reply([](Envelope* m) { m->mutable_heartbeat_reply(); });
  }
  aggregator_->grant({{8, 80}});
  EXPECT_THAT(aggregator_->expect(Envelope::kHello).leases(), UnorderedElementsAre(7, 8));
}

TEST_F(ConnectionTest, AnAggregatorThatMovedIsFollowedWithTheLeasesHeld) {
  control_.finish_episodes = false;
  patience_ = 200ms;
  ScriptedAggregator elsewhere;
  std::atomic<bool> silent{false};  // a slow machine may ask before
  std::atomic<int> asked{0};
  moved_ = [&, there = elsewhere.endpoint()](const AggregatorPlace& known) -> std::optional<AggregatorPlace> {
    if (!silent) return std::nullopt;
    switch (++asked) {
      case 1:
        throw NotFound("no such file");
      case 2:
        return AggregatorPlace{"nowhere"};
      default:
        return known.endpoint == there ? std::nullopt : std::optional(AggregatorPlace{there});
    }
  };
  first_retry_ = 400ms;
  start_introduced_worker();
  aggregator_->grant({{11, 4}});
  aggregator_->expect_holding({11});
  silent = true;
  // A place that cannot be read, and one where none can connect, change nothing.
  for (int old_place = 0; old_place < 2; ++old_place) aggregator_->expect(Envelope::kHello);
  EXPECT_THAT(elsewhere.expect(Envelope::kHello).leases(), ElementsAre(11));
  elsewhere.welcome();
  EXPECT_THAT(elsewhere.expect(Envelope::kLeaseRequest).leases(), ElementsAre(11));
  EXPECT_EQ(control_.started.size(), 1u);
  elsewhere.expect(Envelope::kHello);  // silent, too, and it stays the place
  stop_ = true;
  worker_.wait();
}

TEST_F(ConnectionTest, AnotherRunAtTheSameAddressEndsTheWorker) {
  start_introduced_worker();
  aggregator_->reply(
      [](Envelope* m) { m->mutable_refused()->set_reason(wire::Refused::REASON_NOT_INTRODUCED); });
  aggregator_->expect(Envelope::kHello);
  aggregator_->welcome("another");
  EXPECT_THAT([&] { worker_.get(); }, ThrowsMessage<Mismatch>(Names("another", "run")));
}

TEST_F(ConnectionTest, MessagesThatCannotBeReadAreDropped) {
  start_introduced_worker();
  aggregator_->reply([](Envelope* m) { m->mutable_status_request(); });
  aggregator_->grant({{11, 4}});
  EXPECT_EQ(aggregator_->expect(Envelope::kResult).result().episode(), 4);
}

TEST(Connection, AnAddressThatIsNoneIsRefusedAtOnce) {
  EXPECT_THROW(Connection({.endpoint = "nowhere"}), InvalidArgument);
}

}  // namespace
}  // namespace allot::worker
