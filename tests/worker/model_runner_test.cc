#include "worker/model_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "evaluation/grader.h"
#include "tests/names.h"

namespace allot::worker {
namespace {

using evaluation::Prompt;
using evaluation::Question;
using evaluation::Reply;
using testing::ElementsAre;

// What the fake generator was asked and how it answers: a function from prompts to replies, one reply a step.
struct FakeState {
  std::function<Reply(const Prompt&)> answer;
  std::deque<Prompt> waiting;
  std::vector<Prompt> submitted;
  size_t replies_per_step = 1;
};

class FakeGenerator final : public evaluation::Generator {
 public:
  explicit FakeGenerator(FakeState* state) : state_(*state) {}
  int32_t max_prompts() const override { return 8; }
  void submit(const Prompt& prompt) override {
    if (prompt.samples.size() > 2) throw InvalidArgument("schedule has 3 layers, the model 2");
    state_.submitted.push_back(prompt);
    state_.waiting.push_back(prompt);
  }
  std::vector<Reply> step() override {
    std::vector<Reply> replies;
    for (size_t i = 0; i < state_.replies_per_step && !state_.waiting.empty(); ++i) {
      replies.push_back(state_.answer(state_.waiting.front()));
      replies.back().id = state_.waiting.front().id;
      state_.waiting.pop_front();
    }
    return replies;
  }
  void cancel(uint64_t id) override {
    std::erase_if(state_.waiting, [&](const Prompt& prompt) { return prompt.id == id; });
  }

 private:
  FakeState& state_;
};

std::vector<Question> sums(uint32_t count, uint32_t added) {
  std::vector<Question> questions;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string answer = std::to_string(i + added);
    questions.push_back({.id = i,
                         .text = std::to_string(i) + "+" + std::to_string(added),
                         .solution = "#### " + answer,
                         .answer = answer});
  }
  return questions;
}

// Adds correctly, "i+n\n" to "#### i+n".
Reply add(const Prompt& prompt) {
  const int sum = std::stoi(prompt.text) + std::stoi(prompt.text.substr(prompt.text.find('+') + 1));
  return {.id = 0,
          .text = "#### " + std::to_string(sum),
          .finish = Finish::kEos,
          .prompt_tokens = 4,
          .output_tokens = 7};
}

Episode episode(int64_t number, std::vector<uint32_t> questions, std::vector<int32_t> samples = {4, 4}) {
  return {.id = {number},
          .split = Split::kTrain,
          .samples = std::move(samples),
          .questions = std::move(questions),
          .sampling_seed = static_cast<uint32_t>(10 * number)};
}

class ModelRunnerTest : public testing::Test {
 protected:
  std::vector<EpisodeResult> run_all() {
    std::vector<EpisodeResult> results;
    for (int step = 0; step < 1000; ++step)
      for (EpisodeResult& result : runner_.advance()) results.push_back(std::move(result));
    return results;
  }

  FakeState fake_{.answer = add, .waiting = {}, .submitted = {}};
  ManualClock clock_;
  ModelRunner runner_{std::make_unique<FakeGenerator>(&fake_),
                      evaluation::make_task("gsm8k", evaluation::PromptStyle::kPlain),
                      {.train = sums(20, 1), .heldout = sums(5, 1000)},
                      {.run_seed = 42, .questions_per_episode = 3},
                      clock_};
};

// Grades no reply that says so.
class HangingGrader final : public evaluation::Grader {
 public:
  evaluation::Grade grade(const evaluation::Question&, std::string_view reply,
                          const std::optional<std::string>&) override {
    if (reply == "hang") throw evaluation::GradingFailure("the grader hangs");
    return {.score = 0.25, .extracted = true, .answer = std::nullopt};
  }
};

TEST_F(ModelRunnerTest, AReplyThatNobodyGradesIsTheErrorOfItsEpisodeAndOfNoOther) {
  fake_.answer = [](const Prompt& prompt) {
    Reply reply = add(prompt);
    if (prompt.question == 2) reply.text = "hang";
    return reply;
  };
  const std::string definition = R"({"allot_task": 1, "name": "mine", "version": 1, "prompt": "{question}\n",
                                     "grade": {"by": "program"}})";
  ModelRunner runner(std::make_unique<FakeGenerator>(&fake_),
                     evaluation::make_graded_task({"", "", definition}, std::make_unique<HangingGrader>()),
                     {.train = sums(20, 1), .heldout = {}}, {.run_seed = 42, .questions_per_episode = 3},
                     clock_);
  runner.start(episode(1, {7, 2, 9}));
  runner.start(episode(2, {1, 3}));
  std::vector<EpisodeResult> results;
  for (int step = 0; step < 1000; ++step)
    for (EpisodeResult& result : runner.advance()) results.push_back(std::move(result));
  ASSERT_EQ(results.size(), 2u);
  for (const EpisodeResult& result : results) {
    if (result.episode.value == 1) {
      EXPECT_THAT(result.error, testing::HasSubstr("question 2"));
      EXPECT_THAT(result.error, testing::HasSubstr("the grader hangs"));
      EXPECT_TRUE(result.results.empty());
    } else {
      EXPECT_EQ(result.error, "");
      ASSERT_EQ(result.results.size(), 2u);
      EXPECT_EQ(result.results[0].score, 0.25);
    }
  }
}

TEST_F(ModelRunnerTest, GradesEachQuestionAndKeepsTheirOrder) {
  fake_.answer = [](const Prompt& prompt) {
    Reply reply = add(prompt);
    if (prompt.question == 7) reply.text = "#### 5", reply.finish = Finish::kLength;
    if (prompt.question == 2) reply.finish = Finish::kStop;
    if (prompt.question == 4) reply.text = "I do not know";
    return reply;
  };
  runner_.start(episode(1, {7, 2, 9, 4}));
  const std::vector<EpisodeResult> results = run_all();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].episode.value, 1);
  EXPECT_EQ(results[0].error, "");
  ASSERT_EQ(results[0].results.size(), 4u);
  EXPECT_FALSE(results[0].results[0].no_answer) << "a wrong answer is one";
  EXPECT_FALSE(results[0].results[1].no_answer);
  EXPECT_TRUE(results[0].results[3].no_answer);
  EXPECT_EQ(results[0].results[0].question, 7u);
  EXPECT_EQ(results[0].results[0].score, 0);
  EXPECT_EQ(results[0].results[0].finish, Finish::kLength);
  EXPECT_EQ(results[0].results[1].score, 1);
  EXPECT_EQ(results[0].results[1].finish, Finish::kStop);
  EXPECT_EQ(results[0].results[2].score, 1);
  EXPECT_EQ(results[0].results[2].finish, Finish::kEos);
  EXPECT_EQ(results[0].results[2].prompt_tokens, 4);
  EXPECT_EQ(results[0].results[2].output_tokens, 7);
}

TEST_F(ModelRunnerTest, TheAnswersOfARunningEpisodeCanBeHadBeforeItIsDone) {
  runner_.start(episode(1, {7, 2, 9}));
  EXPECT_TRUE(runner_.answered_so_far({1}).results.empty());
  fake_.waiting.push_back(fake_.waiting.front());  // question 7 is answered after the others
  fake_.waiting.pop_front();
  clock_.advance(Duration{1500});
  for (size_t answered = 1; answered <= 2; ++answered) {
    EXPECT_TRUE(runner_.advance().empty());
    const EpisodeResult so_far = runner_.answered_so_far({1});
    EXPECT_EQ(so_far.episode.value, 1);
    EXPECT_EQ(so_far.seconds, 1.5);
    ASSERT_EQ(so_far.results.size(), answered);
    EXPECT_EQ(so_far.results[0].question, 2u);
    EXPECT_EQ(so_far.results.back().score, 1);
  }
  EXPECT_EQ(runner_.answered_so_far({1}).results[1].question, 9u);
  EXPECT_TRUE(runner_.answered_so_far({2}).results.empty());
  EXPECT_EQ(runner_.advance().size(), 1u);
  EXPECT_TRUE(runner_.answered_so_far({1}).results.empty());
}

TEST_F(ModelRunnerTest, CountsTheTokensAndTheTimeOfItsWork) {
  fake_.answer = [&](const Prompt& prompt) {
    clock_.advance(Duration{500});
    return add(prompt);
  };
  EXPECT_EQ(runner_.work_done().busy_seconds, 0);
  runner_.start(episode(1, {7, 2}));
  clock_.advance(Duration{3000});
  EXPECT_TRUE(runner_.advance().empty());
  EXPECT_EQ(runner_.work_done().output_tokens, 7);
  EXPECT_EQ(runner_.advance().size(), 1u);
  clock_.advance(Duration{3000});
  EXPECT_TRUE(runner_.advance().empty());
  const WorkDone done = runner_.work_done();
  EXPECT_EQ(done.prompt_tokens, 8);
  EXPECT_EQ(done.output_tokens, 14);
  EXPECT_EQ(done.busy_seconds, 1.0);
  const double slots = FakeGenerator(&fake_).max_prompts();
  EXPECT_DOUBLE_EQ(done.slot_seconds, 0.5 * 2 / slots + 0.5 * 1 / slots);
}

// What a lease that asks only the missing questions gives is what the whole episode would have given there.
TEST_F(ModelRunnerTest, APartOfAnEpisodeIsAskedWithThePromptsOfTheWhole) {
  Episode part_of_it = episode(1, {2, 9});
  part_of_it.id = {2};  // so that both run at once
  runner_.start(episode(1, {7, 2, 9}));
  runner_.start(std::move(part_of_it));
  ASSERT_EQ(fake_.submitted.size(), 5u);
  for (const size_t place : {1u, 2u}) {
    const Prompt &whole = fake_.submitted[place], &part = fake_.submitted[place + 2];
    EXPECT_EQ(part.text, whole.text);
    EXPECT_EQ(part.question, whole.question);
    EXPECT_EQ(part.samples, whole.samples);
    EXPECT_EQ(part.key.run_seed, whole.key.run_seed);
    EXPECT_EQ(part.key.sampling_seed, whole.key.sampling_seed);
  }
}

TEST_F(ModelRunnerTest, PromptsCarryScheduleSeedsAndQuestion) {
  runner_.start(episode(3, {5}, {9, 1}));
  ASSERT_EQ(fake_.submitted.size(), 1u);
  EXPECT_EQ(fake_.submitted[0].text, "5+1\n");
  EXPECT_THAT(fake_.submitted[0].samples, ElementsAre(9, 1));
  EXPECT_EQ(fake_.submitted[0].key.run_seed, 42u);
  EXPECT_EQ(fake_.submitted[0].key.sampling_seed, 30u);
  EXPECT_EQ(fake_.submitted[0].question, 5u);
  EXPECT_EQ(fake_.submitted[0].completing, "\n");
  EXPECT_TRUE(fake_.submitted[0].complete("#### 6\n"));
  EXPECT_FALSE(fake_.submitted[0].complete("#### 6"));
}

TEST_F(ModelRunnerTest, EpisodesInFlightShareTheGeneratorAndFinishApart) {
  runner_.start(episode(1, {0, 1, 2}));
  runner_.start(episode(2, {3}));
  std::rotate(fake_.waiting.begin(), fake_.waiting.begin() + 3,
              fake_.waiting.end());  // the second is answered first
  std::vector<int64_t> order;
  for (int step = 0; step < 4; ++step)
    for (const EpisodeResult& result : runner_.advance()) order.push_back(result.episode.value);
  EXPECT_THAT(order, ElementsAre(2, 1));
}

TEST_F(ModelRunnerTest, TheHeldoutSplitHasItsOwnQuestions) {
  Episode task = episode(1, {4});
  task.split = Split::kHeldout;
  runner_.start(task);
  EXPECT_EQ(fake_.submitted.at(0).text, "4+1000\n");
  const std::vector<EpisodeResult> results = run_all();
  EXPECT_EQ(results.at(0).results.at(0).score, 1);
}

TEST_F(ModelRunnerTest, SecondsRunFromTheStartToTheLastAnswer) {
  runner_.start(episode(1, {0, 1}));
  clock_.advance(Duration(1500));
  EXPECT_TRUE(runner_.advance().empty());
  clock_.advance(Duration(500));
  const std::vector<EpisodeResult> results = runner_.advance();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_DOUBLE_EQ(results[0].seconds, 2.0);
}

TEST_F(ModelRunnerTest, AnEpisodeThatCannotRunComesBackWithItsReason) {
  runner_.start(episode(1, {0, 20}));
  runner_.start(episode(2, {}));
  runner_.start(episode(3, {0}, {1, 2, 3}));
  runner_.start(episode(4, {0}));
  const std::vector<EpisodeResult> results = run_all();
  ASSERT_EQ(results.size(), 4u);
  EXPECT_THAT(results[0].error, Names("question 20", "train", 20));
  EXPECT_EQ(results[0].episode.value, 1);
  EXPECT_TRUE(results[0].results.empty());
  EXPECT_THAT(results[1].error, Names("episode 2", "questions"));
  EXPECT_THAT(results[2].error, Names("3 layers"));
  EXPECT_EQ(results[3].error, "");
  EXPECT_EQ(fake_.submitted.size(), 2u);  // question 0 of episode 1, withdrawn, and of episode 4
}

TEST_F(ModelRunnerTest, ACancelledEpisodeIsForgotten) {
  runner_.start(episode(1, {0, 1}));
  runner_.start(episode(2, {2}));
  EXPECT_TRUE(runner_.advance().empty());  // question 0 of episode 1
  runner_.cancel(EpisodeId{1});
  runner_.cancel(EpisodeId{99});
  EXPECT_EQ(fake_.waiting.size(), 1u);
  const std::vector<EpisodeResult> results = run_all();
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].episode.value, 2);
}

TEST_F(ModelRunnerTest, AnEpisodeStartedAgainRunsOnceWithItsNewQuestions) {
  runner_.start(episode(1, {0, 1}));
  EXPECT_TRUE(runner_.advance().empty());
  runner_.start(episode(1, {3, 4}));
  const std::vector<EpisodeResult> results = run_all();
  ASSERT_EQ(results.size(), 1u);
  ASSERT_EQ(results[0].results.size(), 2u);
  EXPECT_EQ(results[0].results[0].question, 3u);
}

TEST_F(ModelRunnerTest, CapacityIsTheEpisodesThatFillTheGenerator) {
  EXPECT_EQ(runner_.capacity(), 3);  // 8 prompts at a time, 3 an episode
}

TEST_F(ModelRunnerTest, CapacityGrowsWithSmallEpisodesAndShrinksWithLargeOnes) {
  for (int number = 1; number <= 3; ++number) {
    runner_.start(episode(number, {0, 1, 2}));
    EXPECT_EQ(runner_.capacity(), 3) << "of usual size";
  }
  for (int number = 1; number <= 3; ++number) runner_.start(episode(number, {0}));
  EXPECT_EQ(runner_.capacity(), 3 + 2);  // 5 of 8 prompts are free
  runner_.start(episode(1, {0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(runner_.capacity(), 3) << "never fewer than run";
  run_all();
  EXPECT_EQ(runner_.capacity(), 3);
}

TEST_F(ModelRunnerTest, AnIdleRunnerReturnsNothingAtOnce) {
  EXPECT_TRUE(runner_.advance().empty());
}

TEST_F(ModelRunnerTest, TheObserverSeesEachGradedReply) {
  std::vector<std::string> seen;
  runner_.observe([&](const Episode& task, size_t place, const Reply& reply, const evaluation::Grade& grade) {
    seen.push_back(std::to_string(task.questions[place]) + ": " + reply.text +
                   (grade.score == 1 ? " right" : " wrong"));
  });
  runner_.start(episode(1, {3, 4}));
  run_all();
  EXPECT_THAT(seen, ElementsAre("3: #### 4 right", "4: #### 5 right"));
}

TEST_F(ModelRunnerTest, RepliesOfSeveralEpisodesInOneStepAreAllTaken) {
  fake_.replies_per_step = 10;
  runner_.start(episode(1, {0, 1}));
  runner_.start(episode(2, {2}));
  EXPECT_EQ(runner_.advance().size(), 2u);
}

// Learners need no words, so only who asks for them gets them.
TEST_F(ModelRunnerTest, RepliesAreGivenToWhoAsksForThem) {
  Episode asking = episode(1, {4, 2}), silent = episode(2, {4});
  asking.replies = true;
  fake_.answer = [](const Prompt& prompt) {
    return prompt.question == 2 ? Reply{.id = 0, .text = "no idea", .finish = Finish::kLength} : add(prompt);
  };
  runner_.start(asking);
  runner_.start(silent);
  EXPECT_THAT(runner_.advance(), testing::IsEmpty());
  EXPECT_THAT(runner_.answered_so_far({1}).texts, ElementsAre(ReplyText{.reply = "#### 5", .answer = "5"}));
  const std::vector<EpisodeResult> results = run_all();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_THAT(results[0].texts, ElementsAre(ReplyText{.reply = "#### 5", .answer = "5"},
                                            ReplyText{.reply = "no idea", .answer = std::nullopt}));
  EXPECT_TRUE(results[0].results[1].no_answer);
  EXPECT_THAT(results[1].texts, testing::IsEmpty());
}

}  // namespace
}  // namespace allot::worker
