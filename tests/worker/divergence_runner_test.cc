#include "worker/divergence_runner.h"

#include <gmock/gmock.h>

#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "tests/names.h"

namespace allot::worker {
namespace {

using evaluation::MeteredDivergence;
using evaluation::MeteredPair;
using evaluation::MeteredText;
using evaluation::Question;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// What the fake meter was asked, and what it refuses or breaks at.
struct MeterState {
  struct Call {
    std::vector<MeteredText> texts;
    std::vector<MeteredPair> pairs;
  };
  std::vector<Call> calls;
  int64_t tokens_at_once = 1;
  bool broken = false;
};

// Every text has 100 tokens; a schedule diverges by question + 1 divided by the samples of its first layer.
class FakeMeter final : public evaluation::DivergenceMeter {
 public:
  explicit FakeMeter(MeterState* state) : state_(*state) {}
  int64_t tokens_at_once() const override { return state_.tokens_at_once; }
  int64_t tokens(const MeteredText& text) override {
    if (text.question == 19) throw InvalidArgument("question 19 is too long");
    return 100;
  }
  std::vector<MeteredDivergence> measure(std::span<const MeteredText> texts,
                                         std::span<const MeteredPair> pairs) override {
    if (state_.broken) throw Error("the device is lost");
    for (const MeteredPair& pair : pairs)
      if (pair.samples.size() != 2) throw InvalidArgument("the schedule has another length than 2 layers");
    state_.calls.push_back({{texts.begin(), texts.end()}, {pairs.begin(), pairs.end()}});
    std::vector<MeteredDivergence> measured;
    for (const MeteredPair& pair : pairs)
      measured.push_back({.divergence = (texts[pair.text].question + 1.0) / pair.samples[0],
                          .finish = texts[pair.text].question == 3 ? Finish::kLength : Finish::kEos,
                          .prompt_tokens = 60,
                          .reply_tokens = 40});
    return measured;
  }

 private:
  MeterState& state_;
};

std::vector<Question> published(uint32_t count, const std::string& split) {
  std::vector<Question> made;
  for (uint32_t i = 0; i < count; ++i)
    made.push_back({.id = i,
                    .text = split + " question " + std::to_string(i),
                    .solution = split + " solution " + std::to_string(i),
                    .answer = "1"});
  return made;
}

Episode measured_episode(int64_t number, std::vector<uint32_t> asked, std::vector<int32_t> samples = {4, 4},
                         uint32_t sampling_seed = 77) {
  return {.id = {number},
          .kind = RewardKind::kDivergence,
          .split = Split::kTrain,
          .samples = std::move(samples),
          .questions = std::move(asked),
          .sampling_seed = sampling_seed};
}

class DivergenceRunnerTest : public testing::Test {
 protected:
  std::vector<EpisodeResult> run_all() {
    std::vector<EpisodeResult> results;
    for (int step = 0; step < 100; ++step)
      for (EpisodeResult& result : runner_.advance()) results.push_back(std::move(result));
    return results;
  }

  MeterState fake_;
  ManualClock clock_;
  std::vector<Question> train_ = published(20, "train"), heldout_ = published(5, "heldout");
  DivergenceRunner runner_{
      std::make_unique<FakeMeter>(&fake_), evaluation::make_task("gsm8k", evaluation::PromptStyle::kPlain),
      [this](Split split, uint32_t id) -> const Question& {
        const std::vector<Question>& of_split = split == Split::kTrain ? train_ : heldout_;
        if (id >= of_split.size()) throw InvalidArgument("question " + std::to_string(id) + " is not there");
        return of_split[id];
      },
      42, clock_};
};

TEST_F(DivergenceRunnerTest, TheScoreOfAQuestionIsTheDivergenceOfItsSolution) {
  runner_.start(measured_episode(1, {7, 3, 9}, {2, 6}));
  clock_.advance(Duration{1500});
  const std::vector<EpisodeResult> results = run_all();
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].error, "");
  EXPECT_EQ(results[0].seconds, 1.5);
  EXPECT_THAT(results[0].results, ElementsAre(QuestionResult{7, 4.0, Finish::kEos, 60, 40},
                                              QuestionResult{3, 2.0, Finish::kLength, 60, 40},
                                              QuestionResult{9, 5.0, Finish::kEos, 60, 40}));
  ASSERT_FALSE(fake_.calls.empty());
  const MeteredText& text = fake_.calls[0].texts.at(0);
  EXPECT_EQ(text.prompt, "train question 7\n");
  EXPECT_EQ(text.reply, "train solution 7");
  EXPECT_EQ(text.key.run_seed, 42u);
  EXPECT_EQ(text.key.sampling_seed, 77u);
  EXPECT_EQ(text.question, 7u);
}

TEST_F(DivergenceRunnerTest, SchedulesOfOneGroupShareEachTextsExactPass) {
  for (int64_t number = 0; number < 4; ++number)
    runner_.start(measured_episode(number, {7, 2}, {static_cast<int32_t>(number) + 1, 8}));
  EXPECT_THAT(run_all(), SizeIs(4));
  ASSERT_THAT(fake_.calls, SizeIs(2)) << "one for each text";
  for (const MeterState::Call& call : fake_.calls) {
    EXPECT_THAT(call.texts, SizeIs(1));
    EXPECT_THAT(call.pairs, SizeIs(4));
  }
}

TEST_F(DivergenceRunnerTest, TextsWithOtherDrawsOrOfTheOtherSplitAreOthers) {
  runner_.start(measured_episode(1, {2}));
  runner_.start(measured_episode(2, {2}, {4, 4}, 78));
  Episode held_out = measured_episode(3, {2});
  held_out.split = Split::kHeldout;
  runner_.start(held_out);
  EXPECT_THAT(run_all(), SizeIs(3));
  ASSERT_THAT(fake_.calls, SizeIs(3));
  std::set<std::pair<std::string, uint32_t>> measured;
  for (const MeterState::Call& call : fake_.calls) {
    EXPECT_THAT(call.pairs, SizeIs(1));
    measured.emplace(call.texts[0].reply, call.texts[0].key.sampling_seed);
  }
  EXPECT_THAT(measured, SizeIs(3));
}

TEST_F(DivergenceRunnerTest, ACallHasTextsUntilItIsWorthItsWhile) {
  fake_.tokens_at_once = 500;  // five of 100 tokens each
  runner_.start(measured_episode(1, {0, 1, 2, 3}, {1, 1}));
  runner_.start(measured_episode(2, {0, 1, 2, 3}, {2, 1}));
  EXPECT_THAT(runner_.advance(), IsEmpty());
  ASSERT_THAT(fake_.calls, SizeIs(1));
  EXPECT_THAT(fake_.calls[0].texts, SizeIs(3)) << "two schedules on each";
  EXPECT_THAT(fake_.calls[0].pairs, SizeIs(6));
  const std::vector<EpisodeResult> results = runner_.advance();
  EXPECT_THAT(results, SizeIs(2));
  EXPECT_THAT(fake_.calls[1].pairs, SizeIs(2));
  EXPECT_THAT(runner_.advance(), IsEmpty());
  EXPECT_THAT(fake_.calls, SizeIs(2)) << "nothing is left to measure";
}

TEST_F(DivergenceRunnerTest, WhatIsMeasuredCanBeHadBeforeTheEpisodeIsDone) {
  runner_.start(measured_episode(1, {7, 2, 9}, {2, 2}));
  EXPECT_THAT(runner_.answered_so_far({1}).results, IsEmpty());
  runner_.advance();
  clock_.advance(Duration{500});
  const EpisodeResult so_far = runner_.answered_so_far({1});
  ASSERT_THAT(so_far.results, SizeIs(1));
  EXPECT_EQ(so_far.results[0].question, 7u);
  EXPECT_EQ(so_far.results[0].score, 4.0);
  EXPECT_EQ(so_far.seconds, 0.5);
  EXPECT_THAT(runner_.answered_so_far({5}).results, IsEmpty());
}

TEST_F(DivergenceRunnerTest, ACancelledEpisodeIsForgottenAndTheOthersGoOn) {
  runner_.start(measured_episode(1, {7, 2}));
  runner_.start(measured_episode(2, {7, 2}));
  runner_.advance();
  runner_.cancel({1});
  runner_.cancel({9});
  const std::vector<EpisodeResult> results = run_all();
  ASSERT_THAT(results, SizeIs(1));
  EXPECT_EQ(results[0].episode.value, 2);
}

TEST_F(DivergenceRunnerTest, AnEpisodeThatCannotBeMeasuredFailsAloneWithTheReason) {
  fake_.tokens_at_once = 1000;
  runner_.start(measured_episode(1, {}));
  runner_.start(measured_episode(2, {7, 20}));
  runner_.start(measured_episode(3, {19}));
  runner_.start(measured_episode(4, {7}, {4, 4, 4}));
  runner_.start(measured_episode(5, {7}));
  std::map<int64_t, std::string> errors;
  for (const EpisodeResult& result : run_all()) {
    errors[result.episode.value] = result.error;
    EXPECT_EQ(result.results.empty(), !result.error.empty());
  }
  ASSERT_THAT(errors, SizeIs(5));
  EXPECT_THAT(errors[1], Names(1, "questions"));
  EXPECT_THAT(errors[2], Names(20));
  EXPECT_THAT(errors[3], Names(19));
  EXPECT_THAT(errors[4], Names("layers"));
  EXPECT_EQ(errors[5], "");
}

TEST_F(DivergenceRunnerTest, ABrokenModelIsNotTakenForABadEpisode) {
  runner_.start(measured_episode(1, {7}));
  fake_.broken = true;
  EXPECT_THROW(runner_.advance(), Error);
}

}  // namespace
}  // namespace allot::worker
