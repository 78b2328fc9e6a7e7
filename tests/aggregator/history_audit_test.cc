#include "aggregator/history_audit.h"

#include <gmock/gmock.h>

#include "aggregator/history_memory.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

constexpr Timestamp at(int64_t second) {
  return Timestamp{std::chrono::seconds(1'700'000'000 + second)};
}

EpisodeTold told(int64_t episode, int64_t lease, AckVerdict verdict, const std::string& worker,
                 double seconds, int64_t second) {
  return {.episode = EpisodeId{episode},
          .lease = LeaseId{lease},
          .verdict = verdict,
          .results = {},
          .worker = worker,
          .seconds = seconds,
          .at = at(second)};
}

LeaseGranted granted(int64_t lease, int64_t episode, const std::string& worker, int64_t second) {
  return {.lease = LeaseId{lease}, .episode = EpisodeId{episode}, .worker = worker, .at = at(second)};
}

LeaseEnded ended(int64_t lease, LeaseEnd how, int64_t second) {
  return {.lease = LeaseId{lease}, .how = how, .reason = {}, .at = at(second)};
}

class HistoryAuditTest : public testing::Test {
 protected:
  Audit audit_of(const std::vector<Record>& records) {
    const auto history = open_memory_history(&store_, at(0));
    history->commit(records, {}, at(100));
    return audit(*history);
  }

  MemoryStore store_;
};

TEST_F(HistoryAuditTest, TheWorkersOfAKeyAreCountedTogether) {
  const Audit found =
      audit_of({granted(1, 1, "ann/a", 1), granted(2, 2, "ann/b", 2), granted(3, 3, "bo/a", 3),
                granted(4, 4, "bo/a", 4), told(1, 1, AckVerdict::kAccepted, "ann/a", 5, 6),
                told(2, 2, AckVerdict::kStale, "ann/b", 7, 9), ended(3, LeaseEnd::kFailed, 11)});
  ASSERT_EQ(found.holders.size(), 2u);
  const HolderAudit& ann = found.holders.at("ann");
  EXPECT_THAT(ann.workers, ElementsAre("ann/a", "ann/b"));
  EXPECT_EQ(ann.granted, 2);
  EXPECT_EQ(ann.held, 0);
  EXPECT_THAT(ann.results, ElementsAre(Pair(AckVerdict::kAccepted, 1), Pair(AckVerdict::kStale, 1)));
  EXPECT_THAT(ann.ended, IsEmpty());
  EXPECT_EQ(ann.seconds, 12);
  EXPECT_EQ(ann.first, at(1));
  EXPECT_EQ(ann.last, at(9));
  const HolderAudit& bo = found.holders.at("bo");
  EXPECT_EQ(bo.granted, 2);
  EXPECT_EQ(bo.held, 1);
  EXPECT_THAT(bo.results, IsEmpty());
  EXPECT_THAT(bo.ended, ElementsAre(Pair(LeaseEnd::kFailed, 1)));
  EXPECT_EQ(bo.last, at(11));
}

TEST_F(HistoryAuditTest, ALateResultCountsForWhoSentItThoughAnotherHeldTheEpisode) {
  const Audit found =
      audit_of({granted(1, 1, "ann/a", 1), ended(1, LeaseEnd::kExpired, 5), granted(2, 1, "bo/a", 6),
                told(1, 1, AckVerdict::kLate, "ann/a", 8, 9), ended(2, LeaseEnd::kSuperseded, 9)});
  EXPECT_THAT(found.holders.at("ann").results, ElementsAre(Pair(AckVerdict::kLate, 1)));
  EXPECT_THAT(found.holders.at("ann").ended, ElementsAre(Pair(LeaseEnd::kExpired, 1)));
  EXPECT_EQ(found.holders.at("bo").held, 0);
  EXPECT_THAT(found.holders.at("bo").ended, ElementsAre(Pair(LeaseEnd::kSuperseded, 1)));
  EXPECT_THAT(found.holders.at("bo").results, IsEmpty());
}

TEST_F(HistoryAuditTest, TheTimeOfAnswersThatWereKeptBelongsToWhoGaveThem) {
  const Audit found = audit_of({granted(1, 1, "ann/a", 1),
                                AnswersKept{.episode = EpisodeId{1},
                                            .lease = LeaseId{1},
                                            .results = std::vector<QuestionResult>(3),
                                            .worker = "ann/a",
                                            .seconds = 4,
                                            .at = at(5)},
                                ended(1, LeaseEnd::kReleased, 5), granted(2, 1, "bo/a", 6),
                                told(1, 2, AckVerdict::kAccepted, "bo/a", 10, 9)});
  EXPECT_EQ(found.holders.at("ann").answers_kept, 3);
  EXPECT_EQ(found.holders.at("ann").seconds, 4);
  EXPECT_EQ(found.holders.at("bo").seconds, 6);
}

TEST_F(HistoryAuditTest, EveryControlIsListedInItsOrder) {
  const RunControlled pause{.action = ControlAction::kPause, .by = "ann@desk", .at = at(3)};
  const RunControlled stop{
      .action = ControlAction::kStop, .episodes = 40, .by = std::string(kBySettled), .at = at(4)};
  EXPECT_THAT(audit_of({pause, stop}).controls, ElementsAre(pause, stop));
}

}  // namespace
}  // namespace allot::aggregator
