#include "worker/schedule_score.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "base/error.h"
#include "tests/names.h"

namespace allot::worker {
namespace {

using testing::ElementsAre;

// Finishes the newest episode first. A question is right when its number is below the schedule's first
// sample.
class BackwardRunner final : public EpisodeRunner {
 public:
  int capacity() const override { return 2; }
  void start(Episode episode) override {
    in_flight_.push_back(std::move(episode));
    most_in_flight_ = std::max(most_in_flight_, in_flight_.size());
  }
  std::vector<EpisodeResult> advance() override {
    if (in_flight_.empty()) return {};
    const Episode episode = in_flight_.back();
    in_flight_.pop_back();
    EpisodeResult result{.episode = episode.id, .results = {}, .seconds = 1, .error = fail_with_};
    for (const uint32_t question : episode.questions) {
      const bool correct = episode.samples.empty() || question < static_cast<uint32_t>(episode.samples[0]);
      result.results.push_back({.question = question,
                                .score = correct ? 1.0 : credit_,
                                .finish = correct ? Finish::kEos : Finish::kLength,
                                .prompt_tokens = 10,
                                .output_tokens = 3});
      ++asked_[episode.samples][question];
      seeds_.insert(episode.sampling_seed);
    }
    return {result};
  }
  void cancel(EpisodeId) override {}

  std::vector<Episode> in_flight_;
  size_t most_in_flight_ = 0;
  double credit_ = 0;  // of a wrong answer
  std::string fail_with_;
  std::map<std::vector<int32_t>, std::map<uint32_t, int>> asked_;
  std::set<uint32_t> seeds_;
};

// Questions 0 to `count` under each schedule.
std::vector<Sitting> sittings_of(const std::vector<std::vector<int32_t>>& schedules, uint32_t count) {
  std::vector<uint32_t> questions(count);
  std::iota(questions.begin(), questions.end(), 0u);
  std::vector<Sitting> sittings;
  for (const auto& samples : schedules)
    sittings.push_back(
        {.label = "schedule " + std::to_string(sittings.size()), .samples = samples, .questions = questions});
  return sittings;
}

const ScoringControl kQuiet = {.progress = [](int64_t, int64_t) {}, .stop_asked = [] { return false; }};

TEST(ScoreSittings, EachScheduleAnswersEachQuestionOnceWithTheSameSeed) {
  BackwardRunner runner;
  const auto schedules = std::vector<std::vector<int32_t>>{{}, {20, 1}, {33, 1}};
  const std::vector<SittingScore> scores = score_sittings(&runner, sittings_of(schedules, 40), kQuiet);
  ASSERT_EQ(scores.size(), 3u);
  for (const auto& samples : schedules) {
    EXPECT_EQ(runner.asked_[samples].size(), 40u);
    for (const auto& [question, times] : runner.asked_[samples]) EXPECT_EQ(times, 1) << question;
  }
  EXPECT_THAT(runner.seeds_, ElementsAre(0u));
  EXPECT_EQ(std::ranges::count(scores[0].scores, 1.0), 40);
  EXPECT_EQ(std::ranges::count(scores[1].scores, 1.0), 20);
  EXPECT_EQ(std::ranges::count(scores[2].scores, 1.0), 33);
  EXPECT_EQ(scores[1].scores[19], 1);
  EXPECT_EQ(scores[1].scores[20], 0);
  EXPECT_EQ(scores[1].cut_off, 20);
  EXPECT_EQ(scores[1].prompt_tokens, 400);
  EXPECT_EQ(scores[1].output_tokens, 120);
}

TEST(ScoreSittings, AskWhatIsLeftWithTheSeedOfEach) {
  BackwardRunner runner;
  const std::vector<Sitting> sittings = {
      {.label = "first", .samples = {6}, .questions = {9, 4, 2}},
      {.label = "nothing left", .samples = {7}, .questions = {}},
      {.label = "again", .samples = {8}, .questions = {7, 11}, .sampling_seed = 3}};
  const std::vector<SittingScore> scores = score_sittings(&runner, sittings, kQuiet);
  EXPECT_THAT(scores[0].scores, ElementsAre(0, 1, 1));
  EXPECT_THAT(scores[1].scores, ElementsAre());
  EXPECT_THAT(scores[2].scores, ElementsAre(1, 0));
  EXPECT_EQ(scores[2].output_tokens, 6);
  EXPECT_THAT(runner.seeds_, ElementsAre(0u, 3u));
  EXPECT_EQ(scored_sitting({0}, sittings), 0u);
  EXPECT_EQ(scored_sitting({1}, sittings), 2u);
  EXPECT_THROW((void)scored_sitting({2}, sittings), InvalidArgument);
  EXPECT_THAT(score_sittings(&runner, {}, kQuiet), testing::IsEmpty());
}

TEST(ScoreSittings, KeepsTheRunnerFullAndNoMore) {
  BackwardRunner runner;
  const auto schedules = std::vector<std::vector<int32_t>>{{1}, {2}};
  (void)score_sittings(&runner, sittings_of(schedules, 100), kQuiet);
  EXPECT_EQ(runner.most_in_flight_, 3u);  // capacity 2 and one to follow
}

TEST(ScoreSittings, TellsHowFarItIs) {
  BackwardRunner runner;
  std::vector<int64_t> answered;
  const auto schedules = std::vector<std::vector<int32_t>>{{1}, {2}};
  (void)score_sittings(&runner, sittings_of(schedules, 20),
                       {.progress =
                            [&](int64_t done, int64_t wanted) {
                              EXPECT_EQ(wanted, 40);
                              answered.push_back(done);
                            },
                        .stop_asked = [] { return false; }});
  EXPECT_TRUE(std::ranges::is_sorted(answered));
  EXPECT_EQ(answered.back(), 40);
}

TEST(ScoreSittings, AnEpisodeThatCannotRunEndsItWithTheReason) {
  BackwardRunner runner;
  runner.fail_with_ = "the prompt is too long";
  const auto schedules = std::vector<std::vector<int32_t>>{{1}};
  try {
    (void)score_sittings(&runner, sittings_of(schedules, 20), kQuiet);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Names("schedule", 0, "the prompt is too long"));
  }
}

TEST(ScoreSittings, StopsWhenAsked) {
  BackwardRunner runner;
  int steps = 0;
  const auto schedules = std::vector<std::vector<int32_t>>{{1}};
  try {
    (void)score_sittings(&runner, sittings_of(schedules, 64),
                         {.progress = [](int64_t, int64_t) {}, .stop_asked = [&] { return ++steps > 2; }});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Names("answers", 32, 64));
  }
}

TEST(ScoreSittings, PartialCreditIsKept) {
  BackwardRunner runner;
  runner.credit_ = 0.25;
  const auto schedules = std::vector<std::vector<int32_t>>{{3}};
  const std::vector<SittingScore> scores = score_sittings(&runner, sittings_of(schedules, 5), kQuiet);
  EXPECT_THAT(scores[0].scores, ElementsAre(1, 1, 1, 0.25, 0.25));
}

}  // namespace
}  // namespace allot::worker
