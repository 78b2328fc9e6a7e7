#include "wire/episode_codec.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "episode/samples.h"
#include "tests/names.h"
#include "wire/messages.pb.h"

namespace allot::wire {
namespace {

using testing::ElementsAre;
using testing::ThrowsMessage;

allot::Episode example_episode(RewardKind kind, allot::Split split) {
  return {.id = {7},
          .kind = kind,
          .split = split,
          .samples = {33, kExactLayer, 0},
          .questions = {4'000'000'000u, 0, 17},
          .sampling_seed = 0xFFFFFFFFu,
          .replies = split == allot::Split::kTrain,
          .task = split == allot::Split::kTrain ? 3u : 0u};
}

TEST(EpisodeCodec, ALeaseGivesItsEpisodeBack) {
  for (const RewardKind kind : {RewardKind::kAnswers, RewardKind::kDivergence}) {
    for (const allot::Split split : {allot::Split::kTrain, allot::Split::kHeldout}) {
      Lease lease;
      lease.add_samples(99);  // of what was there before
      fill(example_episode(kind, split), &lease);
      EXPECT_EQ(episode_of(lease), example_episode(kind, split));
    }
  }
}

TEST(EpisodeCodec, EveryKindOfRewardHasItsKindOfLease) {
  for (const RewardKindRow& row : reward_kinds()) EXPECT_EQ(kind_of(to_wire(row.kind)), row.kind) << row.name;
  EXPECT_EQ(kind_of(LEASE_KIND_UNSPECIFIED), std::nullopt);
  EXPECT_EQ(kind_of(static_cast<LeaseKind>(9)), std::nullopt) << "of a later release";
}

TEST(EpisodeCodec, ALeaseOfAKindOrSplitOfALaterReleaseIsRefused) {
  Lease lease;
  fill(example_episode(RewardKind::kAnswers, allot::Split::kTrain), &lease);
  lease.set_kind(static_cast<LeaseKind>(9));
  EXPECT_THAT([&] { (void)episode_of(lease); }, ThrowsMessage<InvalidArgument>(Names("kind", 9)));
  lease.set_kind(LEASE_KIND_ANSWERS);
  lease.set_split(static_cast<allot::wire::Split>(5));
  EXPECT_THAT([&] { (void)episode_of(lease); }, ThrowsMessage<InvalidArgument>(Names("split", 5)));
}

TEST(EpisodeCodec, ResultsWithAnyScoreComeBackBitForBit) {
  const std::vector<QuestionResult> results = {{1, 1, Finish::kEos, 10, 20},
                                               {2, 0, Finish::kStop, 11, 21},
                                               {3, 1.0 / 3, Finish::kLength, 12, 22},
                                               {4, 17.25, Finish::kEos, 0, 0},
                                               {5, 0, Finish::kEos, 13, 23, true}};
  EpisodeResult whole;
  wire::fill(results, {}, &whole);
  EpisodeResult arrived;
  ASSERT_TRUE(arrived.ParseFromString(whole.SerializeAsString()));
  std::vector<QuestionResult> read;
  EXPECT_EQ(read_results(arrived, &read), "");
  EXPECT_EQ(read, results);
  PartialResult part;
  wire::fill(results, {}, &part);
  EXPECT_EQ(read_results(part, &read), "");
  EXPECT_EQ(read, results);
}

// What an aggregator of the release before sees of a graded answer, and what a worker of it reports.
TEST(EpisodeCodec, AScoreGoesBesideWhatTheReleaseBeforeReads) {
  const std::vector<QuestionResult> results = {{1, 1}, {2, 0}, {3, 0.5}};
  EpisodeResult message;
  wire::fill(results, {}, &message);
  EXPECT_TRUE(message.outcomes(0).correct());
  EXPECT_FALSE(message.outcomes(1).correct());
  EXPECT_FALSE(message.outcomes(2).correct());
  EXPECT_FALSE(message.outcomes(0).has_score()) << "what `correct` says takes no room";
  EXPECT_FALSE(message.outcomes(1).has_score());
  EXPECT_EQ(message.outcomes(2).score(), 0.5);

  EpisodeResult older;
  for (const bool correct : {true, false}) {
    QuestionOutcome& outcome = *older.add_outcomes();
    outcome.set_correct(correct);
    outcome.set_finish(FINISH_REASON_STOP);
  }
  std::vector<QuestionResult> read;
  EXPECT_EQ(read_results(older, &read), "");
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].score, 1);
  EXPECT_EQ(read[1].score, 0);
}

TEST(EpisodeCodec, OutcomesThatAreNoResultsAreNamed) {
  using Change = void (*)(QuestionOutcome*);
  const std::vector<std::tuple<Change, const char*, int>> changes{
      {[](QuestionOutcome* o) { o->set_finish(FINISH_REASON_UNSPECIFIED); }, "finish", 0},
      {[](QuestionOutcome* o) { o->set_finish(static_cast<FinishReason>(4)); }, "finish", 4},
      {[](QuestionOutcome* o) { o->set_prompt_tokens(-3); }, "prompt", -3},
      {[](QuestionOutcome* o) { o->set_output_tokens(-4); }, "output", -4},
  };
  for (const auto& [change, field, value] : changes) {
    const std::vector<QuestionResult> results = {{1, 1}, {2, 0}};
    EpisodeResult message;
    wire::fill(results, {}, &message);
    change(message.mutable_outcomes(1));
    std::vector<QuestionResult> read;
    EXPECT_THAT(read_results(message, &read), Names("outcome 1", field, value));
  }
}

TEST(EpisodeCodec, RepliesComeBackByteForByteWhereTheyAreAskedFor) {
  const std::vector<QuestionResult> results = {{1, 1}, {2, 0, Finish::kLength, 1, 1, true}, {3, 1}};
  const std::vector<ReplyText> texts = {{.reply = std::string("a\0b\n", 4), .answer = "12"},
                                        {.reply = "ends within \xe2\x82", .answer = std::nullopt},
                                        {.reply = "", .answer = ""}};
  EpisodeResult whole;
  PartialResult part;
  wire::fill(results, texts, &whole);
  wire::fill(results, texts, &part);
  EpisodeResult arrived;
  ASSERT_TRUE(arrived.ParseFromString(whole.SerializeAsString()));
  std::vector<ReplyText> read;
  EXPECT_EQ(read_replies(arrived, &read), "");
  EXPECT_EQ(read, texts);
  EXPECT_EQ(read_replies(part, &read), "");
  EXPECT_EQ(read, texts);
  arrived.mutable_outcomes(1)->clear_reply();
  EXPECT_THAT(read_replies(arrived, &read), Names("outcome 1", "reply"));
  wire::fill(results, {}, &whole);
  EXPECT_FALSE(whole.outcomes(0).has_reply());
  EXPECT_FALSE(whole.outcomes(0).has_answer());
}

}  // namespace
}  // namespace allot::wire
