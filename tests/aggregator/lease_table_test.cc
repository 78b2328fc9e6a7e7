#include "aggregator/lease_table.h"

#include <gmock/gmock.h>

#include <array>
#include <random>
#include <stdexcept>

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::chrono_literals;

constexpr EpisodeId kFirst{0}, kSecond{1};
constexpr LeaseId kLease1{1}, kLease2{2}, kLease3{3};

class LeaseTableTest : public testing::Test {
 protected:
  LeaseTableTest() {
    table_.offer(kFirst);
    table_.offer(kSecond);
  }
  ~LeaseTableTest() override { EXPECT_THAT(table_.broken_invariants(), IsEmpty()); }

  Timestamp now() const { return clock_.now(); }
  void expire_due() {
    for (const LeaseId lease : table_.due(now())) table_.end(lease, LeaseEnd::kExpired);
  }

  ManualClock clock_;
  LeaseTable table_{10s, 2};
};

TEST_F(LeaseTableTest, TheOldestEpisodeIsOfferedFirst) {
  EXPECT_EQ(table_.next_waiting(), kFirst);
  table_.grant(kLease1, kFirst, "a", now());
  EXPECT_EQ(table_.next_waiting(), kSecond);
}

TEST_F(LeaseTableTest, LeaseExpiresAtItsDeadlineAndIsOfferedOnceMore) {
  table_.grant(kLease1, kFirst, "a", now());
  EXPECT_EQ(table_.attempt(kFirst), 1);
  EXPECT_EQ(table_.next_deadline(), now() + 10s);
  clock_.advance(9'999ms);
  EXPECT_THAT(table_.due(now()), IsEmpty());
  clock_.advance(1ms);
  EXPECT_THAT(table_.due(now()), ElementsAre(kLease1));
  expire_due();
  EXPECT_EQ(table_.next_waiting(), kFirst);
  EXPECT_EQ(table_.attempt(kFirst), 2);
  EXPECT_EQ(table_.next_deadline(), std::nullopt);
}

TEST_F(LeaseTableTest, RenewalMovesTheDeadlineAndTellsWhichLeasesAreNotHeld) {
  table_.grant(kLease1, kFirst, "a", now());
  table_.grant(kLease2, kSecond, "b", now());
  clock_.advance(6s);
  const std::vector<int64_t> listed{1, 2, 99};
  EXPECT_THAT(table_.renew("a", listed, now()), ElementsAre(2, 99));
  clock_.advance(6s);
  EXPECT_THAT(table_.due(now()), ElementsAre(kLease2));
}

TEST_F(LeaseTableTest, AnEpisodeWithoutAttemptsLeftIsExhaustedAndThenGivenUp) {
  table_.grant(kLease1, kFirst, "a", now());
  table_.end(kLease1, LeaseEnd::kFailed);
  EXPECT_THAT(table_.exhausted(), IsEmpty());
  table_.grant(kLease2, kFirst, "a", now());
  table_.end(kLease2, LeaseEnd::kExpired);
  EXPECT_THAT(table_.exhausted(), ElementsAre(kFirst));
  EXPECT_EQ(table_.next_waiting(), kSecond);
  table_.give_up(kFirst);
  EXPECT_THAT(table_.exhausted(), IsEmpty());
  EXPECT_EQ(table_.judge(kLease2, kFirst).standing, Standing::kGivenUp);
}

TEST_F(LeaseTableTest, AReleasedLeaseUsesUpNoAttempt) {
  for (int64_t lease = 1; lease <= 6; ++lease) {
    table_.grant({lease}, kFirst, "a", now());
    table_.end({lease}, lease % 2 == 0 ? LeaseEnd::kReleased : LeaseEnd::kPreempted);
  }
  EXPECT_EQ(table_.next_waiting(), kFirst);
  EXPECT_EQ(table_.attempt(kFirst), 1);
}

TEST_F(LeaseTableTest, AnEpisodeThatNobodyWantsIsWithdrawnOnceItIsNotLeased) {
  table_.grant(kLease1, kFirst, "a", now());
  EXPECT_THROW(table_.withdraw(kFirst), std::logic_error) << "it is leased";
  table_.end(kLease1, LeaseEnd::kWithdrawn);
  EXPECT_EQ(table_.attempt(kFirst), 1);
  table_.withdraw(kFirst);
  EXPECT_EQ(table_.next_waiting(), kSecond);
  EXPECT_EQ(table_.judge(kLease1, kFirst).standing, Standing::kGivenUp);
  EXPECT_THROW(table_.withdraw(kFirst), std::logic_error) << "it is not open";
  for (const LeaseId lease : {kLease2, LeaseId{3}}) {
    table_.grant(lease, kSecond, "a", now());
    table_.end(lease, LeaseEnd::kFailed);
  }
  ASSERT_THAT(table_.exhausted(), ElementsAre(kSecond));
  table_.withdraw(kSecond);
  EXPECT_THAT(table_.exhausted(), IsEmpty());
  EXPECT_EQ(table_.num_open(), 0u);
}

TEST_F(LeaseTableTest, ACrashUsesUpAnAttemptAndALateResultOfItCounts) {
  table_.grant(kLease1, kFirst, "a", now());
  table_.end(kLease1, LeaseEnd::kCrashed);
  EXPECT_EQ(table_.attempt(kFirst), 2);
  EXPECT_EQ(table_.judge(kLease1, kFirst).standing, Standing::kLate);
}

TEST_F(LeaseTableTest, ALateResultCountsWhileItsEpisodeIsNotDone) {
  table_.grant(kLease1, kFirst, "a", now());
  clock_.advance(10s);
  expire_due();
  EXPECT_EQ(table_.judge(kLease1, kFirst).standing, Standing::kLate);
  EXPECT_EQ(table_.done(kFirst, kLease1, AckVerdict::kLate), std::nullopt);
  EXPECT_EQ(table_.next_waiting(), kSecond) << "an episode that is done is offered no more";
}

TEST_F(LeaseTableTest, ALateResultSupersedesTheLeaseOfTheNextWorker) {
  table_.grant(kLease1, kFirst, "a", now());
  clock_.advance(10s);
  expire_due();
  table_.grant(kLease2, kFirst, "b", now());
  EXPECT_EQ(table_.done(kFirst, kLease1, AckVerdict::kLate), kLease2);
  EXPECT_THAT(table_.renew("b", std::vector<int64_t>{2}, now()), ElementsAre(2)) << "b is told to stop";
  const Judgement second = table_.judge(kLease2, kFirst);
  EXPECT_EQ(second.standing, Standing::kDuplicate);
  EXPECT_EQ(second.stored, AckVerdict::kLate);
}

TEST_F(LeaseTableTest, ARepeatedResultFindsTheVerdictThatWasStored) {
  table_.grant(kLease1, kFirst, "a", now());
  EXPECT_EQ(table_.judge(kLease1, kFirst).standing, Standing::kLive);
  table_.done(kFirst, kLease1, AckVerdict::kStale);
  EXPECT_EQ(table_.judge(kLease1, kFirst).standing, Standing::kDuplicate);
  EXPECT_EQ(table_.judge(kLease1, kFirst).stored, AckVerdict::kStale);

  table_.grant(kLease2, kSecond, "a", now());
  table_.end(kLease2, LeaseEnd::kFailed);
  EXPECT_EQ(table_.judge(kLease2, kSecond).stored, AckVerdict::kFailed);
}

TEST_F(LeaseTableTest, LeasesThatWereNeverGrantedAreUnknown) {
  table_.grant(kLease1, kFirst, "a", now());
  EXPECT_EQ(table_.judge(kLease1, kSecond).standing, Standing::kUnknown);
  for (const int64_t lease : {int64_t{0}, int64_t{-1}, int64_t{2}, INT64_MAX, INT64_MIN}) {
    EXPECT_EQ(table_.judge({lease}, kFirst).standing, Standing::kUnknown) << lease;
  }
  EXPECT_EQ(table_.judge(kLease1, {INT64_MIN}).standing, Standing::kUnknown);
}

TEST_F(LeaseTableTest, EventsThatDoNotFitTheStateChangeNothing) {
  EXPECT_THROW(table_.offer({7}), std::logic_error);
  EXPECT_THROW(table_.grant(kLease2, kFirst, "a", now()), std::logic_error);
  EXPECT_THROW(table_.end(kLease1, LeaseEnd::kExpired), std::logic_error);
  EXPECT_THROW(table_.give_up(kFirst), std::logic_error);
  EXPECT_THROW(table_.done(kFirst, kLease1, AckVerdict::kAccepted), std::logic_error);
  table_.grant(kLease1, kFirst, "a", now());
  EXPECT_THROW(table_.grant(kLease2, kFirst, "b", now()), std::logic_error);
  EXPECT_THROW(table_.end(kLease1, LeaseEnd::kSuperseded), std::logic_error);
  EXPECT_EQ(table_.num_live(), 1u);
}

TEST_F(LeaseTableTest, RenewingAllGivesEveryLeaseTheWholeTime) {
  table_.grant(kLease1, kFirst, "a", now());
  clock_.advance(100s);
  table_.renew_all(now());
  EXPECT_EQ(table_.next_deadline(), now() + 10s);
}

// What the table should answer, kept in the most obvious way: everything about every episode and lease.
struct Model {
  struct Lease {
    int64_t episode;
    std::string worker;
    Timestamp deadline;
    enum { kLive, kOver, kAnswered } state = kLive;
  };
  struct Episode {
    int attempts = 0;
    bool closed = false;
  };
  std::vector<Episode> episodes;
  std::vector<Lease> leases;  // [lease - 1]
};

TEST(LeaseTable, RandomEventsNeverBreakAnInvariantAndAgreeWithAPlainModel) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    ManualClock clock;
    LeaseTable table(10s, 3);
    Model model;
    const auto any_lease = [&] {
      return LeaseId{static_cast<int64_t>(random() % (model.leases.size() + 2))};
    };
    for (int step = 0; step < 300; ++step) {
      switch (random() % 8) {
        case 0:
          table.offer({static_cast<int64_t>(model.episodes.size())});
          model.episodes.emplace_back();
          break;
        case 1:
        case 2:
          if (const auto episode = table.next_waiting()) {
            const std::string worker(1, static_cast<char>('a' + random() % 3));
            table.grant(table.next_lease(), *episode, worker, clock.now());
            model.leases.push_back({episode->value, worker, clock.now() + 10s});
          }
          break;
        case 3: {
          clock.advance(Duration{random() % 4000});
          for (const LeaseId lease : table.due(clock.now())) {
            Model::Lease& mine = model.leases[static_cast<size_t>(lease.value - 1)];
            ASSERT_LE(mine.deadline, clock.now());
            table.end(lease, LeaseEnd::kExpired);
            mine.state = Model::Lease::kOver;
            ++model.episodes[static_cast<size_t>(mine.episode)].attempts;
          }
          break;
        }
        case 4: {
          const LeaseId lease = any_lease();
          const std::string worker(1, static_cast<char>('a' + random() % 3));
          const bool unknown = !table.renew(worker, std::vector<int64_t>{lease.value}, clock.now()).empty();
          const bool held = lease.value >= 1 && static_cast<size_t>(lease.value) <= model.leases.size() &&
                            model.leases[static_cast<size_t>(lease.value - 1)].state == Model::Lease::kLive &&
                            model.leases[static_cast<size_t>(lease.value - 1)].worker == worker;
          ASSERT_EQ(unknown, !held);
          if (held) model.leases[static_cast<size_t>(lease.value - 1)].deadline = clock.now() + 10s;
          break;
        }
        case 5:
        case 6: {
          const LeaseId lease = any_lease();
          if (lease.value < 1 || static_cast<size_t>(lease.value) > model.leases.size()) break;
          Model::Lease& mine = model.leases[static_cast<size_t>(lease.value - 1)];
          Model::Episode& episode = model.episodes[static_cast<size_t>(mine.episode)];
          const Standing standing = table.judge(lease, {mine.episode}).standing;
          ASSERT_EQ(standing == Standing::kLive, mine.state == Model::Lease::kLive);
          if (standing != Standing::kLive && standing != Standing::kLate) {
            ASSERT_TRUE(episode.closed || mine.state == Model::Lease::kAnswered);
            break;
          }
          ASSERT_FALSE(episode.closed);
          if (random() % 3 == 0 && standing == Standing::kLive) {
            constexpr std::array kEnds = {LeaseEnd::kReleased, LeaseEnd::kPreempted, LeaseEnd::kCrashed};
            const LeaseEnd how = kEnds[random() % kEnds.size()];
            table.end(lease, how);
            mine.state = Model::Lease::kOver;
            if (how == LeaseEnd::kCrashed) ++episode.attempts;
            break;
          }
          table.done({mine.episode}, lease, AckVerdict::kAccepted);
          episode.closed = true;
          for (Model::Lease& other : model.leases) {
            if (other.episode == mine.episode) other.state = Model::Lease::kAnswered;
          }
          break;
        }
        case 7:
          for (const EpisodeId episode : table.exhausted()) {
            ASSERT_EQ(model.episodes[static_cast<size_t>(episode.value)].attempts, 3);
            table.give_up(episode);
            model.episodes[static_cast<size_t>(episode.value)].closed = true;
          }
          break;
      }
      ASSERT_THAT(table.broken_invariants(), IsEmpty());
      ASSERT_EQ(table.num_live(), static_cast<size_t>(std::ranges::count(model.leases, Model::Lease::kLive,
                                                                         &Model::Lease::state)));
      ASSERT_EQ(table.num_open(),
                static_cast<size_t>(std::ranges::count(model.episodes, false, &Model::Episode::closed)));
    }
  }
}

}  // namespace
}  // namespace allot::aggregator
