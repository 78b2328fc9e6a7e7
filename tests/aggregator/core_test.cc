#include "aggregator/core.h"

#include <gmock/gmock.h>

#include <array>
#include <limits>
#include <random>

#include "base/error.h"
#include "policy/learner.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/replay.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;
using wire::Ack;
using wire::Refused;
using namespace std::chrono_literals;

class CoreTest : public CoreDriverTest {};
INSTANTIATE_TEST_SUITE_P(Histories, CoreTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(CoreTest, AWorkerIsWelcomedWithTheSpecAndTheEpoch) {
  const wire::Envelope reply = driver_.hello("w");
  ASSERT_TRUE(reply.has_welcome()) << reply.ShortDebugString();
  EXPECT_EQ(reply.welcome().epoch(), 1);
  EXPECT_EQ(reply.welcome().spec().run_id(), "example");
  EXPECT_EQ(reply.welcome().heartbeat_ms(), 10'000);
  driver_.crash();
  EXPECT_EQ(driver_.hello("w").welcome().epoch(), 2);
}

TEST_P(CoreTest, AnotherModelOrDatasetIsRefusedWithBothValues) {
  wire::Envelope message;
  *message.mutable_hello() = example_hello(driver_.spec(), "w");
  message.mutable_hello()->mutable_model()->set_weights_fingerprint("ff");
  wire::Refused refused = driver_.send("w", message).refused();
  EXPECT_EQ(refused.reason(), Refused::REASON_MODEL);
  EXPECT_THAT(refused.message(), Names("weights_fingerprint", "3e", "ff"));

  *message.mutable_hello() = example_hello(driver_.spec(), "w");
  message.mutable_hello()->mutable_train()->set_sha256("00");
  refused = driver_.send("w", message).refused();
  EXPECT_EQ(refused.reason(), Refused::REASON_DATASET);
  EXPECT_THAT(refused.message(), Names("7a", "00"));
  EXPECT_EQ(driver_.request("w", 1).refused().reason(), Refused::REASON_NOT_INTRODUCED);
}

TEST_P(CoreTest, WhoeverDidNotSayHelloIsAskedTo) {
  EXPECT_EQ(driver_.request("w", 1).refused().reason(), Refused::REASON_NOT_INTRODUCED);
  driver_.hello("w");
  EXPECT_TRUE(driver_.request("w", 1).has_grant());
  driver_.crash();
  EXPECT_EQ(driver_.request("w", 1).refused().reason(), Refused::REASON_NOT_INTRODUCED);
}

TEST_P(CoreTest, AClientMaySeeTheStatusAndNothingElse) {
  wire::Envelope hello;
  hello.mutable_hello()->set_client(true);
  EXPECT_TRUE(driver_.send("c", hello).has_welcome());
  wire::Envelope question;
  question.mutable_status_request();
  EXPECT_EQ(driver_.send("c", question).status().stage(), "learn");
  EXPECT_EQ(driver_.request("c", 1).refused().reason(), Refused::REASON_NOT_INTRODUCED);
  EXPECT_THAT(driver_.status().workers(), IsEmpty());
}

TEST_P(CoreTest, ALeaseIsInTheHistoryBeforeItIsGranted) {
  driver_.hello("w");
  driver_.core().receive(
      {"peer of w"},
      [] {
        wire::Envelope message;
        message.mutable_lease_request()->set_count(1);
        return wire::encode(message);
      }(),
      driver_.clock().now());
  const Outputs outputs = driver_.core().take();
  ASSERT_THAT(outputs.records, SizeIs(2));
  EXPECT_TRUE(std::holds_alternative<EpisodeAsked>(outputs.records[0]));
  EXPECT_TRUE(std::holds_alternative<LeaseGranted>(outputs.records[1]));
  ASSERT_THAT(outputs.replies, SizeIs(1));
  EXPECT_TRUE(outputs.replies[0].envelope.has_grant());
}

TEST_P(CoreTest, AResultIsAcceptedOnceAndARepeatedOneGetsTheStoredVerdict) {
  driver_.hello("w");
  const wire::Lease lease = driver_.leases("w", 1).at(0);
  const Ack first = driver_.answer("w", result_of(lease, 2));
  EXPECT_EQ(first.verdict(), Ack::VERDICT_ACCEPTED);
  for (int crashes = 0; crashes < 2; ++crashes) {
    const Ack again = driver_.answer("w", result_of(lease, 4));
    EXPECT_EQ(again.verdict(), Ack::VERDICT_DUPLICATE);
    EXPECT_EQ(again.stored(), Ack::VERDICT_ACCEPTED);
    driver_.crash();
    driver_.hello("w");
  }
  EXPECT_EQ(driver_.status().counters().accepted(), 1);
  EXPECT_EQ(driver_.status().counters().duplicate(), 2);
  EXPECT_EQ(driver_.status().episodes_done(), 1);
  EXPECT_DOUBLE_EQ(driver_.status().mean_reward_recent(), 0.5);
}

TEST_P(CoreTest, AWorkerThatIsHeardOfKeepsItsLeasesAndASilentOneLosesThem) {
  driver_.hello("a");
  driver_.hello("b");
  const wire::Lease kept = driver_.leases("a", 1).at(0);
  const wire::Lease lost = driver_.leases("b", 1).at(0);
  for (int i = 0; i < 4; ++i) {
    driver_.clock().advance(20s);
    EXPECT_THAT(driver_.heartbeat("a", {kept.lease()}), IsEmpty());
    driver_.tick();
  }
  EXPECT_EQ(driver_.status().counters().expired(), 1);
  const wire::Lease again = driver_.leases("a", 1).at(0);
  EXPECT_EQ(again.episode(), lost.episode());
  EXPECT_EQ(again.attempt(), 2);
  EXPECT_NE(again.lease(), lost.lease());
  EXPECT_THAT(driver_.heartbeat("b", {lost.lease()}), ElementsAre(lost.lease()));
}

TEST_P(CoreTest, ALeaseWhoseGrantWasLostIsNotRenewedByItsWorker) {
  driver_.hello("w");
  const std::vector<wire::Lease> leases = driver_.leases("w", 2);
  driver_.clock().advance(40s);
  driver_.heartbeat("w", {leases[0].lease()});
  driver_.clock().advance(40s);
  driver_.tick();
  EXPECT_EQ(driver_.status().counters().expired(), 1);
  EXPECT_EQ(driver_.leases("w", 1).at(0).episode(), leases[1].episode());
}

TEST_P(CoreTest, AWorkerThatDiedAndCameBackUnderItsNameFreesItsOldLeasesAtOnce) {
  driver_.hello("w");
  const std::vector<wire::Lease> leases = driver_.leases("w", 2);
  driver_.hello("w", {leases[0].lease()});
  EXPECT_EQ(driver_.status().counters().expired(), 1);
  EXPECT_EQ(driver_.leases("w", 1).at(0).episode(), leases[1].episode());
}

TEST_P(CoreTest, ALateResultIsUsedAndTheOtherWorkerIsToldToStop) {
  driver_.hello("a");
  driver_.hello("b");
  const wire::Lease slow = driver_.leases("a", 1).at(0);
  driver_.clock().advance(60s);
  driver_.tick();
  const wire::Lease second = driver_.leases("b", 1).at(0);
  ASSERT_EQ(second.episode(), slow.episode());
  EXPECT_EQ(driver_.answer("a", result_of(slow, 4)).verdict(), Ack::VERDICT_LATE);
  EXPECT_THAT(driver_.heartbeat("b", {second.lease()}), ElementsAre(second.lease()));
  const Ack duplicate = driver_.answer("b", result_of(second, 4));
  EXPECT_EQ(duplicate.verdict(), Ack::VERDICT_DUPLICATE);
  EXPECT_EQ(duplicate.stored(), Ack::VERDICT_LATE);
  const wire::Counters counters = driver_.status().counters();
  EXPECT_EQ(counters.late(), 1);
  EXPECT_EQ(counters.accepted(), 0);
  EXPECT_EQ(driver_.status().episodes_done(), 1);
}

TEST_P(CoreTest, AReleasedLeaseGoesToTheNextWorkerWithoutCostingAnAttempt) {
  driver_.hello("a");
  driver_.hello("b");
  const wire::Lease lease = driver_.leases("a", 1).at(0);
  wire::Envelope release;
  release.mutable_release()->add_leases(lease.lease());
  release.mutable_release()->add_leases(999);
  EXPECT_THAT(driver_.send("a", release).released().leases(), ElementsAre(lease.lease(), 999));
  const wire::Lease next = driver_.leases("b", 1).at(0);
  EXPECT_EQ(next.episode(), lease.episode());
  EXPECT_EQ(next.attempt(), 1);
  EXPECT_EQ(driver_.status().counters().released(), 1);
}

TEST_P(CoreTest, AWorkerCannotAnswerOrReleaseTheLeaseOfAnother) {
  driver_.hello("a");
  driver_.hello("b");
  const wire::Lease lease = driver_.leases("a", 1).at(0);
  EXPECT_EQ(driver_.answer("b", result_of(lease, 1)).verdict(), Ack::VERDICT_REJECTED);
  wire::Envelope release;
  release.mutable_release()->add_leases(lease.lease());
  driver_.send("b", release);
  EXPECT_EQ(driver_.status().counters().released(), 0);
  EXPECT_EQ(driver_.answer("a", result_of(lease, 1)).verdict(), Ack::VERDICT_ACCEPTED);
}

TEST_P(CoreTest, ResultsThatDoNotFitAreRejectedWithTheReasonAndNeverLearnedFrom) {
  driver_.hello("w");
  using Change = void (*)(wire::EpisodeResult*);
  const std::vector<std::pair<Change, NamesMatcher>> changes{
      {[](wire::EpisodeResult* r) { r->mutable_outcomes()->RemoveLast(); }, Names(3, 4, "questions")},
      {[](wire::EpisodeResult* r) { r->mutable_outcomes(1)->set_question(49'999); },
       Names("question", 49'999)},
      {[](wire::EpisodeResult* r) { r->mutable_outcomes(0)->set_finish(wire::FINISH_REASON_UNSPECIFIED); },
       Names("finish")},
      {[](wire::EpisodeResult* r) { r->mutable_outcomes(0)->set_output_tokens(-1); }, Names("output", -1)},
      {[](wire::EpisodeResult* r) { r->set_seconds(std::numeric_limits<double>::quiet_NaN()); },
       Names("seconds")},
  };
  for (const auto& [change, names] : changes) {
    wire::EpisodeResult result = result_of(driver_.leases("w", 1).at(0), 4);
    change(&result);
    const Ack ack = driver_.answer("w", result);
    EXPECT_EQ(ack.verdict(), Ack::VERDICT_REJECTED);
    EXPECT_THAT(ack.message(), names);
  }
  wire::EpisodeResult invented = result_of(driver_.leases("w", 1).at(0), 4);
  invented.set_lease(999);
  EXPECT_EQ(driver_.answer("w", invented).verdict(), Ack::VERDICT_REJECTED);
  EXPECT_EQ(driver_.status().episodes_done(), 0);
  EXPECT_EQ(driver_.status().counters().rejected(), static_cast<int64_t>(changes.size()) + 1);
}

TEST_P(CoreTest, AResultAfterItsEpisodeWasGivenUpIsStale) {
  driver_.hello("w");
  wire::Lease lease;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    lease = driver_.leases("w", 1).at(0);
    driver_.clock().advance(60s);
    driver_.tick();
  }
  EXPECT_EQ(driver_.status().counters().set_aside(), 1);
  EXPECT_EQ(driver_.answer("w", result_of(lease, 4)).verdict(), Ack::VERDICT_STALE);
  EXPECT_EQ(driver_.status().episodes_done(), 0);
}

TEST_P(CoreTest, AStatusFitsIntoAFrameHoweverManyNamesSaidHello) {
  driver_.hello("zz works");
  ASSERT_EQ(driver_.leases("zz works", 1).size(), 1u);
  constexpr int kNames = 9'000;
  for (int i = 0; i < kNames; ++i) {
    wire::Envelope message;
    *message.mutable_hello() = example_hello(driver_.spec(), fmt::format("{:0>190}", i));
    message.mutable_hello()->set_device(std::string(190, 'd'));
    message.mutable_hello()->set_build(std::string(190, 'b'));
    driver_.send(message.hello().worker(), message);
  }
  const wire::Status status = driver_.status();
  EXPECT_GT(status.workers_unlisted(), 0);
  EXPECT_EQ(status.workers_size() + status.workers_unlisted(), kNames + 1);
  EXPECT_EQ(status.workers(0).worker(), "zz works") << "who holds a lease is listed before the others";
}

TEST_P(CoreTest, WhileNothingIsLeftToAskAWorkerWaitsAndInTheEndHearsThatTheRunIsFinished) {
  driver_.hello("a");
  driver_.hello("b");
  std::vector<wire::Lease> leases = driver_.leases("a", 64);
  EXPECT_THAT(leases, SizeIs(10));
  wire::Envelope reply = driver_.request("b", 1);
  ASSERT_TRUE(reply.has_wait());
  EXPECT_FALSE(reply.wait().finished());
  EXPECT_GT(reply.wait().retry_after_ms(), 0);
  for (const wire::Lease& lease : leases) driver_.answer("a", result_of(lease, 1));
  finish(&driver_, "a");
  EXPECT_FALSE(driver_.core().everyone_heard_finished());
  EXPECT_TRUE(driver_.request("b", 1).wait().finished());
  EXPECT_TRUE(driver_.core().everyone_heard_finished());
  EXPECT_EQ(driver_.status().eta_s(), 0);
}

TEST_P(CoreTest, RequestsForNothingOrForTooMuchAreHarmless) {
  driver_.hello("w");
  for (const int count : {0, -5, std::numeric_limits<int>::min()})
    EXPECT_TRUE(driver_.request("w", count).has_wait());
  EXPECT_EQ(driver_.request("w", std::numeric_limits<int>::max()).grant().leases_size(), 10);
}

TEST(Core, RequestsBeyondWhatARoundGrantsAreToldToComeBackOneAfterTheOther) {
  wire::RunSpec spec = example_spec();
  spec.set_episodes(10'000);
  spec.mutable_policy()->set_max_policy_lag(policy::kNoPolicyLagLimit);
  CoreDriver driver(Storage::kMemory, spec);
  const auto peer = [](int worker) { return fmt::format("peer of w{}", worker); };
  for (int worker = 0; worker < 13; ++worker) driver.hello(fmt::format("w{}", worker));
  wire::Envelope message;
  message.mutable_lease_request()->set_count(60);
  const std::string frame = wire::encode(message);
  for (int i = 0; i < 12; ++i) driver.core().receive({peer(i)}, frame, driver.clock().now());
  const Outputs outputs = driver.core().take();
  ASSERT_THAT(outputs.replies, SizeIs(12));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(outputs.replies[i].envelope.grant().leases_size(), 60) << i;
  EXPECT_EQ(outputs.replies[8].envelope.grant().leases_size(), Core::kMaxLeasesPerRound - 480);
  for (int i = 9; i < 12; ++i) {
    const wire::Wait& wait = outputs.replies[i].envelope.wait();
    EXPECT_EQ(wait.retry_after_ms(), 100 + 2 * (i - 9));
    EXPECT_FALSE(wait.finished());
  }
  driver.core().receive({peer(12)}, frame, driver.clock().now());
  EXPECT_EQ(driver.core().take().replies.at(0).envelope.grant().leases_size(), 60) << "a new round";
}

TEST_P(CoreTest, UnreadableMessagesAreCountedAndAnsweredAndChangeNothing) {
  driver_.hello("w");
  const std::vector<Record> before = driver_.records();
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string frame(random() % 100, '\0');
    for (char& byte : frame) byte = static_cast<char>(random());
    const auto replies = driver_.send_frame({"stranger"}, frame);
    ASSERT_THAT(replies, SizeIs(1));
    EXPECT_TRUE(replies[0].has_refused());
  }
  wire::Envelope old;
  old.set_protocol_version(2);
  old.mutable_heartbeat();
  EXPECT_EQ(driver_.send_frame({"stranger"}, old.SerializeAsString()).at(0).refused().reason(),
            Refused::REASON_PROTOCOL_VERSION);
  wire::Envelope nonsense;
  nonsense.mutable_welcome();
  EXPECT_EQ(driver_.send("w", nonsense).refused().reason(), Refused::REASON_MALFORMED);
  EXPECT_EQ(driver_.records().size(), before.size());
  EXPECT_GE(driver_.status().counters().malformed(), 190);
}

TEST_P(CoreTest, NamesThatWouldGarbleALogAreRefused) {
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string(201, 'x')}) {
    wire::Envelope message;
    *message.mutable_hello() = example_hello(driver_.spec(), name);
    EXPECT_EQ(driver_.send("w", message).refused().reason(), Refused::REASON_MALFORMED);
  }
}

TEST_P(CoreTest, StatusCountsWorkersRatesAndTimeOverAllStarts) {
  driver_.hello("w");
  driver_.clock().advance(1s);
  for (int i = 0; i < 4; ++i) {
    const wire::Lease lease = driver_.leases("w", 1).at(0);
    driver_.clock().advance(2s);
    driver_.answer("w", result_of(lease, 3));
  }
  const wire::Lease open = driver_.leases("w", 1).at(0);
  wire::Status status = driver_.status();
  EXPECT_DOUBLE_EQ(status.elapsed_s(), 9);
  EXPECT_DOUBLE_EQ(status.episodes_per_second(), 0.5);
  EXPECT_DOUBLE_EQ(status.eta_s(), (6 + 6) / 0.5);
  EXPECT_EQ(status.episodes_running(), 1);
  EXPECT_EQ(status.policy_version(), 1);
  EXPECT_EQ(status.shares_size(), 8);
  ASSERT_EQ(status.workers_size(), 1);
  EXPECT_EQ(status.workers(0).worker(), "w");
  EXPECT_EQ(status.workers(0).leases(), 1);
  EXPECT_EQ(status.workers(0).episodes_done(), 4);

  driver_.clock().advance(100s);  // dead: counts for nothing
  driver_.crash();
  driver_.clock().advance(5s);
  status = driver_.status();
  EXPECT_DOUBLE_EQ(status.elapsed_s(), 14);
  EXPECT_EQ(status.eta_s(), -1);
  EXPECT_EQ(status.epoch(), 2);
  EXPECT_EQ(status.episodes_running(), 1) << "its worker may still be at work: " << open.lease();
}

TEST_P(CoreTest, ARestartGivesLiveLeasesTheWholeLeaseTimeToBeHeardOfAgain) {
  driver_.hello("w");
  const wire::Lease lease = driver_.leases("w", 1).at(0);
  driver_.clock().advance(3600s);
  driver_.crash();
  driver_.tick();
  driver_.clock().advance(59s);
  driver_.tick();
  EXPECT_TRUE(driver_.hello("w", {lease.lease()}).has_welcome());
  EXPECT_EQ(driver_.answer("w", result_of(lease, 1)).verdict(), Ack::VERDICT_ACCEPTED);
}

// The heart of the matter: a run that is killed after every single commit, with results repeated and lost at
// random, ends with the very state of a replay, and its episodes are those of a run that was never killed.
TEST_P(CoreTest, KilledAfterAnyCommitTheRunGoesOnWithTheSamePolicyBitForBit) {
  std::mt19937 random(5);
  const auto policy_state = [&] { return driver_.core().policy().save(); };
  int64_t crashes = 0;
  while (driver_.core().stage() != Stage::kFinished) {
    driver_.hello("w");
    const std::string before = policy_state();
    driver_.crash();
    ++crashes;
    ASSERT_EQ(policy_state(), before);
    driver_.hello("w");
    const std::vector<wire::Lease> leases = driver_.leases("w", 2);
    driver_.crash();
    driver_.hello("w", leases.empty() ? std::vector<int64_t>{} : std::vector<int64_t>{leases[0].lease()});
    for (const wire::Lease& lease : leases) {
      const wire::EpisodeResult result =
          result_of(lease, lease.samples_size() == 0 ? 4 : lease.samples(0) / 4);
      const Ack::Verdict verdict = driver_.answer("w", result).verdict();
      EXPECT_TRUE(verdict == Ack::VERDICT_ACCEPTED || verdict == Ack::VERDICT_LATE);
      const std::string after = policy_state();
      if (random() % 2 == 0) {
        driver_.crash();
        driver_.hello("w");
        ASSERT_EQ(policy_state(), after);
        EXPECT_EQ(driver_.answer("w", result).verdict(), Ack::VERDICT_DUPLICATE);
      }
    }
  }
  EXPECT_GT(crashes, 7);
  EXPECT_EQ(driver_.status().episodes_done(), 10);
  EXPECT_EQ(driver_.status().counters().accepted() + driver_.status().counters().late(), 16);

  EXPECT_EQ(replay_by_hand(driver_.history(), driver_.spec())->save(), policy_state());
}

TEST(Core, RandomMessagesOfThreeWorkersNeverBreakTheRun) {
  int64_t answers_kept = 0, given_up = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    CoreDriver driver(Storage::kMemory, example_spec());
    std::map<std::string, std::vector<wire::Lease>> held;
    std::vector<std::pair<std::string, wire::EpisodeResult>> answered;
    for (int step = 0; step < 400; ++step) {
      const std::string worker(1, static_cast<char>('a' + random() % 3));
      std::vector<wire::Lease>& mine = held[worker];
      const auto listed = [&] {
        std::vector<int64_t> leases;
        for (const wire::Lease& lease : mine) leases.push_back(lease.lease());
        return leases;
      };
      switch (random() % 11) {
        case 0:
          driver.hello(worker, listed());
          break;
        case 8:  // the machine is taken away, with some answers ready
          if (!mine.empty()) {
            driver.hello(worker, listed());
            std::vector<int> places;
            for (int place = 0; place < mine.back().questions_size(); ++place) {
              if (random() % 2 == 0) places.push_back(place);
            }
            driver.release(worker, mine.back(), places);
            if (random() % 3 != 0) mine.pop_back();  // else it says so again, or answers after all
          }
          break;
        case 9:
          if (!mine.empty() && random() % 4 == 0) {
            driver.hello(worker, listed());
            driver.fail(worker, mine.back(), "no");
            mine.pop_back();
          }
          break;
        case 10: {
          constexpr std::array kControls = {wire::Control::ACTION_PAUSE, wire::Control::ACTION_RESUME,
                                            wire::Control::ACTION_RESUME, wire::Control::ACTION_EPISODES,
                                            wire::Control::ACTION_TARGET};
          if (random() % 4 == 0)
            driver.control(kControls[random() % kControls.size()], 5 + static_cast<int64_t>(random() % 10),
                           0.9);
          break;
        }
        case 1:
          mine.clear();
          break;  // the worker dies
        case 2:
          driver.heartbeat(worker, listed());
          break;
        case 3:
          driver.clock().advance(Duration{random() % 40'000});
          driver.tick();
          break;
        case 4:
          if (random() % 4 == 0) driver.crash();
          break;
        case 5:
          if (!answered.empty()) {
            const auto& [name, result] = answered[random() % answered.size()];
            EXPECT_NE(driver.answer(name, result).verdict(), Ack::VERDICT_ACCEPTED);
          }
          break;
        default:
          if (mine.empty()) {
            driver.hello(worker);
            mine = driver.leases(worker, 1 + static_cast<int>(random() % 3));
          } else {
            wire::EpisodeResult result = result_of(mine.back(), static_cast<int>(random() % 5));
            mine.pop_back();
            driver.hello(worker, listed());
            driver.answer(worker, result);
            answered.emplace_back(worker, result);
          }
      }
    }
    held.clear();
    driver.clock().advance(60s);
    driver.tick();
    driver.hello("last");
    driver.control(wire::Control::ACTION_RESUME);
    finish(&driver, "last");
    EXPECT_EQ(driver.status().stage(), "finished");
    EXPECT_GE(driver.status().episodes_done(), driver.status().episodes_wanted());
    EXPECT_EQ(replay_by_hand(driver.history(), driver.spec())->save(), driver.core().policy().save());
    answers_kept += driver.status().counters().answers_kept();
    given_up += driver.status().counters().set_aside();
  }
  EXPECT_GT(answers_kept, 50);
  EXPECT_GT(given_up, 5);
}

TEST_P(CoreTest, AHistoryThatTheSpecDoesNotGiveIsCorrupt) {
  driver_.hello("w");
  (void)driver_.leases("w", 2);
  wire::RunSpec other = driver_.spec();
  other.set_seed(8);
  const auto history = driver_.open_history();
  EXPECT_THAT(
      [&] { Core(other, policy::make_policy(policy_config(other)), *history, driver_.clock().now()); },
      ThrowsMessage<CorruptFile>(Names("episode 0")));
}

TEST_P(CoreTest, ARecordThatDoesNotFitTheStateIsCorrupt) {
  const std::vector<Record> lost{LeaseEnded{{5}, LeaseEnd::kExpired, "", driver_.clock().now()}};
  driver_.history().commit(lost, {}, driver_.clock().now());
  EXPECT_THROW(driver_.crash(), CorruptFile);
}

TEST(RunSpecTest, ARunOfAKindThatIsNotKnownIsRefusedBeforeItStarts) {
  wire::RunSpec spec = example_spec();
  EXPECT_NO_THROW(validate(spec));
  for (const char* kind : {"answers", "divergence"}) {
    spec.set_reward_kind(kind);
    EXPECT_NO_THROW(validate(spec));
  }
  spec.set_reward_kind("speed");
  EXPECT_THAT([&] { validate(spec); }, testing::ThrowsMessage<InvalidArgument>(Names("speed")));
}

TEST(RunSpecTest, ATotalThatTheLearnerDoesNotTakeIsRefusedBeforeItStarts) {
  wire::RunSpec spec = example_spec();
  spec.mutable_policy()->set_total(65'536);
  EXPECT_NO_THROW(validate(spec));
  spec.mutable_policy()->set_name("auto");
  spec.mutable_policy()->clear_parameters();
  EXPECT_THAT([&] { validate(spec); },
              testing::ThrowsMessage<InvalidArgument>(Names("total", 65'536, 65'535, "auto", "pairs")));
}

TEST(RunSpecTest, OnlyLearnersThatMixKindsMayLearnFromTwo) {
  for (const policy::Learner* learner : policy::learners()) {
    wire::RunSpec spec = example_spec();
    spec.mutable_policy()->set_name(std::string(learner->name));
    spec.mutable_policy()->clear_parameters();
    for (const policy::Parameter& parameter : learner->parameters)
      (*spec.mutable_policy()->mutable_parameters())[std::string(parameter.name)] = parameter.initial;
    EXPECT_NO_THROW(validate(spec)) << learner->name;
    spec.set_divergence_episodes(5);
    if (learner->mixes_kinds) {
      EXPECT_NO_THROW(validate(spec)) << learner->name;
    } else {
      EXPECT_THAT([&] { validate(spec); },
                  testing::ThrowsMessage<InvalidArgument>(Names(learner->name, 5, "pairs")));
    }
  }
  wire::RunSpec spec = example_spec();
  spec.set_divergence_episodes(spec.episodes() + 1);
  EXPECT_THAT([&] { validate(spec); },
              testing::ThrowsMessage<InvalidArgument>(Names("divergence_episodes", spec.episodes())));
}

}  // namespace
}  // namespace allot::aggregator
