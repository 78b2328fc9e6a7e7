// The texts of replies on their way to an aggregator that asks for them, within what a message holds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/names.h"
#include "tests/worker/scripted_connection.h"

namespace allot::worker {
namespace {

using testing::ElementsAre;
using wire::Envelope;

class ConnectionReplies : public ConnectionTest {};

TEST_F(ConnectionReplies, ALeaseThatAsksForRepliesGetsThemAndNoOther) {
  control_.reply = "ends within a character \xe2\x82";
  start_introduced_worker();
  aggregator_->grant({{11, 4}}, /*replies=*/true);
  const Envelope with = aggregator_->expect(Envelope::kResult);
  ASSERT_EQ(with.result().outcomes_size(), 2);
  for (const wire::QuestionOutcome& outcome : with.result().outcomes()) {
    EXPECT_EQ(outcome.reply(), control_.reply);
    EXPECT_FALSE(outcome.has_answer());
  }
  aggregator_->ack(with);
  aggregator_->expect(Envelope::kLeaseRequest);
  aggregator_->grant({{12, 5}});
  const Envelope without =
      aggregator_->expect_where("of lease 12", [](const Envelope& m) { return m.result().lease() == 12; });
  ASSERT_EQ(without.result().outcomes_size(), 2);
  EXPECT_FALSE(without.result().outcomes(0).has_reply());
}

TEST_F(ConnectionReplies, AResultThatNoMessageHoldsIsReportedAsFailed) {
  control_.reply = std::string(wire::kMaxRequestBytes / 2, 'a');
  start_introduced_worker();
  aggregator_->grant({{11, 4}}, /*replies=*/true);
  const Envelope result = aggregator_->expect(Envelope::kResult);
  EXPECT_EQ(result.result().outcomes_size(), 0);
  EXPECT_THAT(result.result().error(), Names("2 replies", wire::kMaxRequestBytes / 4 * 3));
}

TEST_F(ConnectionReplies, AnswersThatOneMessageCannotHoldAreGivenBackInSeveral) {
  control_.reply = std::string(wire::kMaxRequestBytes / 2, 'a');
  control_.finish_episodes = false;
  control_.all_half_answered = true;
  start_introduced_worker();
  aggregator_->grant({{11, 4}, {12, 5}}, /*replies=*/true);
  aggregator_->expect_holding({11, 12});
  stop_ = true;
  for (const int64_t lease : {11, 12}) {
    const wire::Release release = aggregator_->expect(Envelope::kRelease).release();
    EXPECT_THAT(release.leases(), ElementsAre(lease));
    ASSERT_EQ(release.partial_size(), 1);
    EXPECT_EQ(release.partial(0).lease(), lease);
    EXPECT_EQ(release.partial(0).outcomes(0).reply(), control_.reply);
    EXPECT_EQ(release.partial(0).outcomes(0).answer(), "42");
  }
}

TEST_F(ConnectionReplies, AnswersThatNoMessageHoldsAreLeftOutOfARelease) {
  control_.reply = std::string(wire::kMaxRequestBytes, 'a');
  control_.finish_episodes = false;
  control_.half_answered = 4;
  start_introduced_worker();
  aggregator_->grant({{11, 4}, {12, 5}}, /*replies=*/true);
  aggregator_->expect_holding({11, 12});
  stop_ = true;
  const wire::Release release = aggregator_->expect(Envelope::kRelease).release();
  EXPECT_THAT(release.leases(), ElementsAre(11, 12));
  EXPECT_EQ(release.partial_size(), 0);
}

}  // namespace
}  // namespace allot::worker
