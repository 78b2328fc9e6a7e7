// Runs whose episodes are of another kind of reward than answers, or of two: who is leased what, and what a
// restart gives.
#include <gmock/gmock.h>

#include "aggregator/core.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::AllOf;
using testing::Each;
using testing::IsEmpty;
using testing::Property;
using testing::SizeIs;
using wire::LEASE_KIND_ANSWERS;
using wire::LEASE_KIND_DIVERGENCE;
using namespace std::chrono_literals;

wire::RunSpec divergence_spec() {
  wire::RunSpec spec = example_spec();
  spec.set_reward_kind("divergence");
  return spec;
}

wire::RunSpec mixed_spec() {
  wire::RunSpec spec = example_spec();
  spec.set_divergence_episodes(4);
  return spec;
}

// The answer to a lease of a divergence: the fewer samples the first layer has, the farther away.
wire::EpisodeResult divergence_of(const wire::Lease& lease) {
  wire::EpisodeResult result = result_of(lease, 0);
  for (wire::QuestionOutcome& outcome : *result.mutable_outcomes())
    outcome.set_score(2.5 / (1 + lease.samples(0)));
  return result;
}

wire::EpisodeResult outcome_of(const wire::Lease& lease) {
  return lease.kind() == LEASE_KIND_DIVERGENCE ? divergence_of(lease) : result_of(lease, 2);
}

auto kind_is(wire::LeaseKind kind) {
  return Property("kind", &wire::Lease::kind, kind);
}

class KindsTest : public testing::TestWithParam<Storage> {
 protected:
  // Answers all leases until `worker` gets none; the kinds that it was leased.
  std::vector<wire::LeaseKind> work(CoreDriver* driver, const std::string& worker) {
    std::vector<wire::LeaseKind> kinds;
    while (true) {
      const std::vector<wire::Lease> leases = driver->leases(worker, 3);
      if (leases.empty()) return kinds;
      for (const wire::Lease& lease : leases) {
        kinds.push_back(lease.kind());
        EXPECT_EQ(driver->answer(worker, outcome_of(lease)).verdict(), wire::Ack::VERDICT_ACCEPTED);
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Histories, KindsTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(KindsTest, ADivergenceRunLearnsFromDivergencesAndIsVerifiedOnAnswers) {
  CoreDriver driver(GetParam(), divergence_spec());
  driver.hello_with_kinds("w", {LEASE_KIND_ANSWERS, LEASE_KIND_DIVERGENCE});
  const std::vector<wire::LeaseKind> kinds = work(&driver, "w");
  ASSERT_THAT(kinds, SizeIs(10 + 6));
  EXPECT_THAT(std::vector(kinds.begin(), kinds.begin() + 10), Each(LEASE_KIND_DIVERGENCE));
  EXPECT_THAT(std::vector(kinds.begin() + 10, kinds.end()), Each(LEASE_KIND_ANSWERS));
  EXPECT_EQ(driver.core().stage(), Stage::kFinished);
  EXPECT_EQ(driver.status().reward_kind(), "divergence");
  EXPECT_GT(driver.status().mean_reward_recent(), 0);
  // More samples in the first layer lower the divergence.
  EXPECT_GT(driver.core().policy().recommend().samples[0], 8);
}

TEST_P(KindsTest, AWorkerOfThePreviousReleaseIsLeasedAnswersOnlyAndToldWhy) {
  CoreDriver driver(GetParam(), divergence_spec());
  driver.hello("old");
  const wire::Envelope reply = driver.request("old", 4);
  ASSERT_TRUE(reply.has_wait()) << reply.ShortDebugString();
  EXPECT_THAT(reply.wait().message(), Names("divergence", "old"));
  EXPECT_THAT(driver.records_of<EpisodeAsked>(), IsEmpty()) << "nothing is asked that it could not run";

  driver.hello_with_kinds("new", {LEASE_KIND_DIVERGENCE});
  EXPECT_THAT(work(&driver, "new"), AllOf(SizeIs(10), Each(LEASE_KIND_DIVERGENCE)));
  EXPECT_THAT(driver.request("new", 1).wait().message(), Names("answers", "new"));
  EXPECT_THAT(work(&driver, "old"), AllOf(SizeIs(6), Each(LEASE_KIND_ANSWERS)));
  EXPECT_EQ(driver.core().stage(), Stage::kFinished);
  EXPECT_EQ(driver.request("new", 1).wait().message(), "");
}

TEST_P(KindsTest, AnEpisodeThatWaitsAgainIsLeasedOnlyToAWorkerOfItsKind) {
  CoreDriver driver(GetParam(), mixed_spec());
  driver.hello_with_kinds("new", {LEASE_KIND_ANSWERS, LEASE_KIND_DIVERGENCE});
  driver.hello("old");
  const std::vector<wire::Lease> leases = driver.leases("new", 5);
  ASSERT_THAT(leases, SizeIs(5));
  EXPECT_THAT(std::vector(leases.begin(), leases.begin() + 4), Each(kind_is(LEASE_KIND_DIVERGENCE)));
  EXPECT_EQ(leases[4].kind(), LEASE_KIND_ANSWERS);
  EXPECT_THAT(driver.leases("old", 1), AllOf(SizeIs(1), Each(kind_is(LEASE_KIND_ANSWERS))));
  driver.release("new", leases[1], {});
  EXPECT_THAT(driver.request("old", 1).wait().message(), Names("divergence"));
  const std::vector<wire::Lease> again = driver.leases("new", 1);
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].episode(), leases[1].episode());
}

// A worker on which an episode failed leaves it to others, but not to those that cannot run it.
TEST_P(KindsTest, AFailedEpisodeIsNotReservedForWorkersThatCannotRunIt) {
  CoreDriver driver(GetParam(), divergence_spec());
  driver.hello_with_kinds("new", {LEASE_KIND_DIVERGENCE});
  driver.hello("old");
  const wire::Lease lease = driver.leases("new", 1).at(0);
  driver.fail("new", lease, "out of memory");
  const std::vector<wire::Lease> next = driver.leases("new", 1);
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_EQ(next[0].episode(), lease.episode());
}

TEST_P(KindsTest, AWorkerThatFailsGoesOnWhereNobodyElseRunsItsKinds) {
  CoreDriver driver(GetParam(), divergence_spec());
  driver.hello_with_kinds("new", {LEASE_KIND_DIVERGENCE});
  driver.hello("old");
  for (int i = 0; i < 3; ++i) driver.fail("new", driver.leases("new", 1).at(0), "out of memory");
  EXPECT_THAT(driver.leases("new", 1), SizeIs(1));
}

TEST_P(KindsTest, ADivergenceIsInNatsWithoutAnUpperBoundAndNeverNegative) {
  CoreDriver driver(GetParam(), divergence_spec());
  driver.hello_with_kinds("w", {LEASE_KIND_DIVERGENCE});
  const std::vector<wire::Lease> leases = driver.leases("w", 2);
  wire::EpisodeResult result = divergence_of(leases[0]);
  result.mutable_outcomes(1)->set_score(-0.25);
  const wire::Ack ack = driver.answer("w", result);
  EXPECT_EQ(ack.verdict(), wire::Ack::VERDICT_REJECTED);
  EXPECT_THAT(ack.message(), Names(-0.25, "divergence"));
  result = divergence_of(leases[1]);
  result.mutable_outcomes(1)->set_score(17.5);
  EXPECT_EQ(driver.answer("w", result).verdict(), wire::Ack::VERDICT_ACCEPTED);
}

TEST_P(KindsTest, AMixedRunThatIsKilledAtAnyMomentGoesOnTheSame) {
  const auto kinds = {LEASE_KIND_ANSWERS, LEASE_KIND_DIVERGENCE};
  for (const int64_t kill_after : {1, 3, 4, 5, 7}) {
    CoreDriver driver(GetParam(), mixed_spec());
    driver.hello_with_kinds("w", kinds);
    for (int64_t told = 0; told < kill_after; ++told) {
      const wire::Lease lease = driver.leases("w", 1).at(0);
      EXPECT_EQ(lease.kind(), told < 4 ? LEASE_KIND_DIVERGENCE : LEASE_KIND_ANSWERS);
      driver.answer("w", outcome_of(lease));
    }
    const std::string before = driver.core().policy().save();
    driver.crash();
    EXPECT_EQ(driver.core().policy().save(), before);
    EXPECT_TRUE(driver.core().replayed_exactly());
    driver.hello_with_kinds("w", kinds);
    const std::vector<wire::Lease> next = driver.leases("w", 1);
    ASSERT_THAT(next, SizeIs(1));
    EXPECT_EQ(next[0].kind(), kill_after < 4 ? LEASE_KIND_DIVERGENCE : LEASE_KIND_ANSWERS);
  }
}

TEST_P(KindsTest, TheCurveOfAMixedRunHoldsItsAnswersOnly) {
  CoreDriver driver(GetParam(), mixed_spec());
  driver.hello_with_kinds("w", {LEASE_KIND_ANSWERS, LEASE_KIND_DIVERGENCE});
  for (const wire::Lease& lease : driver.leases("w", 4)) driver.answer("w", divergence_of(lease));
  EXPECT_EQ(driver.status().episodes_done(), 4);
  EXPECT_EQ(driver.status().curve().episodes_size(), 0);
  for (const wire::Lease& lease : driver.leases("w", 3)) driver.answer("w", result_of(lease, 2));
  EXPECT_THAT(driver.status().curve().reward(), AllOf(SizeIs(3), Each(0.5)));
  EXPECT_EQ(driver.status().mean_reward_recent(), 0.5);
}

}  // namespace
}  // namespace allot::aggregator
