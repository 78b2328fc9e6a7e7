#include "evaluation/gsm8k/gsm8k.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/temporary_directory.h"
#include "tests/evaluation/gold_scores.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using testing::HasSubstr;

const std::filesystem::path kExcerpt =
    std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/gsm8k/excerpt.jsonl";
constexpr PromptStyle kStyles[] = {PromptStyle::kBoxed, PromptStyle::kLlamaChat, PromptStyle::kDeepseekChat,
                                   PromptStyle::kChat, PromptStyle::kPlain};

std::unique_ptr<Task> gsm8k_task(PromptStyle style) {
  return make_task("gsm8k", style);
}

Dataset load_text(const std::string& content) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "questions.jsonl";
  write_file_atomically(file, content);
  return gsm8k_task(PromptStyle::kPlain)->load(file);
}

std::string load_error(const std::string& content) {
  try {
    load_text(content);
  } catch (const CorruptFile& error) {
    return error.what();
  }
  return "no error";
}

TEST(Gsm8kData, AnExcerptIsReadLineByLine) {
  const Dataset dataset = gsm8k_task(PromptStyle::kPlain)->load(kExcerpt);
  ASSERT_EQ(dataset.questions.size(), 5u);
  EXPECT_EQ(dataset.sha256, sha256_file(kExcerpt));
  EXPECT_EQ(dataset.questions[1].id, 1u);
  EXPECT_EQ(dataset.questions[1].answer, "12,050");
  EXPECT_THAT(dataset.questions[1].text, testing::StartsWith("A town of 9,500 people"));
  EXPECT_THAT(dataset.questions[1].solution, testing::EndsWith("#### 12,050"));
  EXPECT_THAT(dataset.questions[4].text, HasSubstr("caf\u00E9"));
}

TEST(Gsm8kData, GoldSolutionsOfTheExcerptAreAllCorrect) {
  expect_gold_scores_full(kExcerpt, 5);
}

TEST(Gsm8kData, AFileThatIsNotThereIsNamedWithThePlaceToGetTheQuestions) {
  try {
    (void)gsm8k_task(PromptStyle::kPlain)->load("/does/not/exist.jsonl");
    ADD_FAILURE() << "no error";
  } catch (const NotFound& error) {
    EXPECT_THAT(error.what(), Names("/does/not/exist.jsonl", "openai/grade-school-math"));
  }
}

TEST(Gsm8kData, BrokenLinesAreNamedWithLineAndField) {
  const std::string good = "{\"question\": \"q\", \"answer\": \"a #### 1\"}\n";
  EXPECT_THAT(load_error(good + "not json\n"), Names("line 2", "JSON"));
  EXPECT_THAT(load_error(good + "\n" + good), Names("line 2", "JSON"));
  EXPECT_THAT(load_error("{\"answer\": \"#### 1\"}"), Names("line 1", "question"));
  EXPECT_THAT(load_error("{\"question\": \"q\", \"answer\": 5}"), Names("line 1", "answer", 5, "text"));
  EXPECT_THAT(load_error("{\"question\": \"\", \"answer\": \"#### 1\"}"), Names("question", "empty"));
  EXPECT_THAT(load_error("{\"question\": \"q\", \"answer\": \"1\"}"), Names("####"));
  EXPECT_THAT(load_error("{\"question\": \"q\", \"answer\": \"#### many\"}"), Names("#### many"));
  EXPECT_THAT(load_error(" \n"), Names("questions"));
}

TEST(Gsm8kData, WindowsLineEndsAndAMissingLastLineEndAreRead) {
  const std::string line = "{\"question\": \"q\", \"answer\": \"a #### 1\"}";
  EXPECT_EQ(load_text(line + "\r\n" + line).questions.size(), 2u);
}

TEST(Gsm8kPrompt, BoxedIsTableTwentyOne) {
  EXPECT_EQ(
      gsm8k_task(PromptStyle::kBoxed)->prompt({.id = 0, .text = "How many?", .solution = "", .answer = ""}),
      "How many?\n\nPlease reason step by step, and put your final numeric answer within \\boxed{}.");
}

TEST(Gsm8kPrompt, LlamaChatIsTableTwentyThreeAndLeavesTheFirstTokenToTheTokenizer) {
  EXPECT_EQ(gsm8k_task(PromptStyle::kLlamaChat)
                ->prompt({.id = 0, .text = "How many?", .solution = "", .answer = ""}),
            "<|start_header_id|>system<|end_header_id|>\n\nYou are a precise mathematician. Explain your "
            "reasoning step by "
            "step, then output ONLY the final number on a new "
            "line.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHow "
            "many?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
}

TEST(Gsm8kPrompt, DeepseekChatPutsTableTwentyOneInItsTemplateAndLeavesTheFirstTokenToTheTokenizer) {
  EXPECT_EQ(
      gsm8k_task(PromptStyle::kDeepseekChat)
          ->prompt({.id = 0, .text = "How many?", .solution = "", .answer = ""}),
      "<\uFF5CUser\uFF5C>How many?\n\nPlease reason step by step, and put your final numeric answer within "
      "\\boxed{}.<\uFF5CAssistant\uFF5C><think>\n");
}

TEST(Gsm8kPrompt, PlainIsTheQuestionAndALineEnd) {
  EXPECT_EQ(
      gsm8k_task(PromptStyle::kPlain)->prompt({.id = 0, .text = "How many?", .solution = "", .answer = ""}),
      "How many?\n");
}

TEST(Gsm8kGrade, ReportsWhatItFound) {
  const std::unique_ptr<Task> task = gsm8k_task(PromptStyle::kBoxed);
  const Question question = task->gold("18");
  const Grade right = task->grade(question, "So \\boxed{18 \\text{ dollars}}");
  EXPECT_TRUE(right.score == 1 && right.extracted);
  EXPECT_EQ(right.answer, "18 \\text{ dollars}");
  const Grade wrong = task->grade(question, "So \\boxed{19}");
  EXPECT_TRUE(wrong.score == 0 && wrong.extracted);
  const Grade blank = task->grade(question, "");
  EXPECT_TRUE(blank.score == 0 && !blank.extracted && !blank.answer);
  const Grade words = task->grade(question, "So \\boxed{eighteen}");
  EXPECT_TRUE(words.score == 0 && !words.extracted);
  EXPECT_EQ(words.answer, "eighteen");
}

TEST(Gsm8kGrade, EachStyleReadsItsOwnPlaceOnly) {
  const std::string reply = "\\boxed{1}\n#### 2\n3";
  for (const auto& [style, gold] :
       {std::pair{PromptStyle::kBoxed, "1"}, {PromptStyle::kPlain, "2"}, {PromptStyle::kLlamaChat, "3"}})
    for (const char* answer : {"1", "2", "3"}) {
      const std::unique_ptr<Task> task = gsm8k_task(style);
      EXPECT_EQ(task->grade(task->gold(answer), reply).score == 1, std::string_view(answer) == gold)
          << name(style) << " " << answer;
    }
}

TEST(Gsm8kGrade, APercentSignIsAcceptedOnlyWhereTheGoldAnswerHasOne) {
  const std::unique_ptr<Task> task = gsm8k_task(PromptStyle::kBoxed);
  EXPECT_FALSE(task->equal(task->gold("50"), "50\\%"));
  EXPECT_TRUE(task->equal(task->gold("50\\%"), "50%"));
  EXPECT_TRUE(task->equal(task->gold("50%"), "50"));
  EXPECT_FALSE(task->equal(task->gold("50%"), "0.5"));
  // The last line of the worked solution says so too.
  EXPECT_TRUE(task->equal(task->gold("Half of it is 1/2 * 100 = <<1/2*100=50>>50%\n#### 50"), "50\\%"));
  EXPECT_FALSE(task->equal(task->gold("He pays 50%\nwhich is 50 dollars\n#### 50"), "50\\%"));
  EXPECT_FALSE(task->equal(task->gold("He keeps 150%, so 50\n#### 50"), "50\\%"));
}

TEST(Gsm8kGrade, NearMissesAreWrong) {
  const std::unique_ptr<Task> task = gsm8k_task(PromptStyle::kBoxed);
  const Question question = task->gold("18");
  for (const char* wrong : {"-18", "180", "18.01", "17.999999999999999999999", "1 8", "18 19", "1,8", "18/2",
                            "\\frac{1}{18}", "8"})
    EXPECT_FALSE(task->equal(question, wrong)) << wrong;
}

TEST(Gsm8kGrade, AGoldAnswerThatIsNoNumberIsRefused) {
  const std::unique_ptr<Task> task = gsm8k_task(PromptStyle::kBoxed);
  EXPECT_THROW(task->gold("many"), InvalidArgument);
  EXPECT_THROW(task->gold(""), InvalidArgument);
}

TEST(Gsm8kComplete, BoxedStopsAtAClosedBoxWithANumber) {
  const std::unique_ptr<Task> task = gsm8k_task(PromptStyle::kBoxed);
  EXPECT_TRUE(task->complete("so \\boxed{18}"));
  EXPECT_FALSE(task->complete("so \\boxed{18"));
  EXPECT_FALSE(task->complete("so \\boxed{\\frac{1}{2}"));
  EXPECT_FALSE(task->complete("I will use \\boxed{}"));
  EXPECT_FALSE(task->complete("<think>maybe \\boxed{18}"));
  EXPECT_TRUE(task->complete("<think>maybe \\boxed{18}</think>"));
}

TEST(Gsm8kComplete, DeepseekChatThinksUntilItClosesTheBlockOfItsPrompt) {
  const std::unique_ptr<Task> task = gsm8k_task(PromptStyle::kDeepseekChat);
  EXPECT_FALSE(task->complete("maybe \\boxed{18}"));
  EXPECT_FALSE(task->complete("maybe 18</think>so"));
  EXPECT_TRUE(task->complete("maybe 18</think>so \\boxed{18}"));
  EXPECT_FALSE(task->complete("done</think><think>again \\boxed{18}"));
}

TEST(Gsm8kComplete, PlainStopsAtTheLineEndAfterTheMarkedAnswer) {
  const std::unique_ptr<Task> task = gsm8k_task(PromptStyle::kPlain);
  EXPECT_FALSE(task->complete("9 * 2 = 18\n####"));
  EXPECT_FALSE(task->complete("9 * 2 = 18\n#### 4"));
  EXPECT_TRUE(task->complete("9 * 2 = 18\n#### 42\n"));
  EXPECT_FALSE(task->complete("9 * 2 = 18\n####\n"));
}

TEST(Gsm8kComplete, LlamaChatNeverKnowsItsLastLine) {
  EXPECT_FALSE(gsm8k_task(PromptStyle::kLlamaChat)->complete("work\n18\n"));
  EXPECT_TRUE(gsm8k_task(PromptStyle::kLlamaChat)->completing_characters().empty());
}

TEST(Gsm8kComplete, TurnsTrueOnlyWithACompletingCharacter) {
  const std::string replies[] = {
      "<think>a {b} \\boxed{1}\n</think>\n so \\boxed{\\frac{1}{2}} x\n#### 4\nmore",
      "####\n#### 1\n\\boxed{7}"};
  for (const PromptStyle style : kStyles) {
    const std::unique_ptr<Task> task = gsm8k_task(style);
    for (const std::string& reply : replies)
      for (size_t length = 1; length <= reply.size(); ++length) {
        const bool turned =
            task->complete(reply.substr(0, length)) && !task->complete(reply.substr(0, length - 1));
        const bool may_turn = task->completing_characters().find(reply[length - 1]) != std::string_view::npos;
        EXPECT_TRUE(may_turn || !turned) << reply.substr(0, length);
      }
  }
}

TEST(TaskRegistry, UnknownNamesAreRefusedWithTheKnownOnes) {
  try {
    make_task("mmlu", PromptStyle::kBoxed);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), Names("mmlu", "gsm8k"));
  }
  EXPECT_THROW(parse_prompt_style("chats"), InvalidArgument);
  for (const PromptStyle style : kStyles) EXPECT_EQ(parse_prompt_style(name(style)), style);
}

TEST(PromptStyle, FollowsTheChatTemplate) {
  const auto style = [](const char* chat_template, const char* eos) {
    return prompt_style_for(chat_template, eos);
  };
  EXPECT_EQ(prompt_style_for(std::nullopt, "</s>"), PromptStyle::kPlain);
  EXPECT_EQ(style("<|start_header_id|>user<|end_header_id|><|eot_id|>", "<|eot_id|>"), PromptStyle::kChat);
  EXPECT_EQ(style("<|im_start|>user<|im_end|>", "<|im_end|>"), PromptStyle::kChat);
  EXPECT_EQ(style("<|im_start|>user<|im_end|>", "<|endoftext|>"), PromptStyle::kPlain) << "a base model";
  EXPECT_EQ(style("<\uFF5CUser\uFF5C>", "<\uFF5Cend\u2581of\u2581sentence\uFF5C>"), PromptStyle::kChat);
  EXPECT_EQ(style("[INST]{{ messages[0].content }}[/INST]{{ eos_token }}", "</s>"), PromptStyle::kChat);
}

TEST(PromptStyle, AChatIsTheBoxedQuestionAsAMessageAndEndsWithTheModelsEnd) {
  const auto chat = make_task("gsm8k", PromptStyle::kChat), boxed = make_task("gsm8k", PromptStyle::kBoxed);
  Question question = chat->gold("5");
  question.text = "What is 2 plus 3?";
  EXPECT_EQ(chat->prompt(question), boxed->prompt(question));
  EXPECT_EQ(chat->grade(question, "\\boxed{4} no, \\boxed{5}").score, 1);
  EXPECT_TRUE(boxed->complete("\\boxed{5}"));
  EXPECT_FALSE(chat->complete("\\boxed{5}"));
  EXPECT_EQ(chat->generation_defaults().stop, StopRule::kEos);
  for (const PromptStyle style : kStyles)
    EXPECT_EQ(asks_by_message(name(style)), style == PromptStyle::kChat);
  EXPECT_FALSE(asks_by_message("none"));
}

}  // namespace
}  // namespace allot::evaluation
