#include "evaluation/overlap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "evaluation/file_task.h"
#include "evaluation/gsm8k/gsm8k.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const gsm8k::Gsm8k kGsm8k{PromptStyle::kPlain};

Dataset dataset(const char* path, const std::vector<std::string>& texts) {
  Dataset data{.path = path, .sha256 = path, .questions = {}};
  for (const std::string& text : texts)
    data.questions.push_back(
        {.id = static_cast<uint32_t>(data.questions.size()), .text = text, .solution = "", .answer = "1"});
  return data;
}

TEST(Overlap, PairsTheRowsOfAQuestionThatIsInBothFiles) {
  const Dataset train = dataset("train", {"a", "b", "c", "b"});
  EXPECT_THAT(repeated_questions(kGsm8k, train, dataset("heldout", {"x", "c", "y", "b"})),
              ElementsAre(RepeatedQuestion{3, 2}, RepeatedQuestion{2, 4}));
  EXPECT_THAT(repeated_questions(kGsm8k, train, dataset("heldout", {"x", "y"})), IsEmpty());
}

TEST(Overlap, WhiteSpaceAtTheEndsOfAQuestionDoesNotHideIt) {
  EXPECT_THAT(
      repeated_questions(kGsm8k, dataset("train", {" How many?\n"}), dataset("heldout", {"How many?\t"})),
      ElementsAre(RepeatedQuestion{1, 1}));
  EXPECT_THAT(repeated_questions(kGsm8k, dataset("train", {"How  many?"}), dataset("heldout", {"How many?"})),
              IsEmpty());
}

// As in LongBench v2, where many questions are "Which of these is right?".
TEST(Overlap, QuestionsOnDifferentTextsDiffer) {
  const FileTask task(R"({"allot_task": 1, "name": "mine", "version": 1, "prompt": "{context} {question}",
                          "grade": {"by": "exact"}})",
                      nullptr);
  const auto of_contexts = [](const std::vector<std::string>& contexts) {
    Dataset data = dataset("a", std::vector<std::string>(contexts.size(), "Which?"));
    for (size_t i = 0; i < contexts.size(); ++i) {
      data.questions[i].fields = {{"context", contexts[i]}, {"id", std::to_string(i)}};
    }
    return data;
  };
  EXPECT_THAT(repeated_questions(task, of_contexts({"one", "two"}), of_contexts({"three", " two\n", "four"})),
              ElementsAre(RepeatedQuestion{2, 2}));
}

// Its message, or nothing when the files are fine.
std::string refusal(const Dataset& train, const Dataset& heldout) {
  try {
    check_held_out(kGsm8k, train, heldout);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Overlap, RefusalCountsAllAndNamesTheFirstTenRowsOfBothFiles) {
  std::vector<std::string> train = {"only learned on"}, heldout;
  for (int i = 0; i < 12; ++i) {
    train.push_back("question " + std::to_string(i));
    heldout.push_back("question " + std::to_string(i));
  }
  heldout.push_back("only held out");
  const std::string message = refusal(dataset("t.jsonl", train), dataset("h.jsonl", heldout));
  EXPECT_THAT(message,
              Names(12, 13, "--heldout", "h.jsonl", "--data", "t.jsonl", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10",
                    "2, 3, 4, 5, 6, 7, 8, 9, 10, 11", "2 more", "2 more"));
  EXPECT_THAT(refusal(dataset("t", {"a", "b"}), dataset("h", {"b"})),
              AllOf(Names("rows 1", "rows 2"), Not(HasSubstr("more"))));
  EXPECT_EQ(refusal(dataset("t", {"a"}), dataset("h", {"b"})), "");
}

// The data that the repository carries, which its quick start and its tests verify on.
TEST(Overlap, EmbeddedHeldOutQuestionsAreNotLearnedOn) {
  const std::filesystem::path folder = std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm";
  const auto task = make_task("gsm8k", PromptStyle::kPlain);
  const Dataset train = task->load(folder / "train.jsonl");
  EXPECT_THAT(repeated_questions(*task, train, task->load(folder / "heldout.jsonl")), IsEmpty());
  EXPECT_EQ(repeated_questions(*task, train, train).size(), train.questions.size());
}

}  // namespace
}  // namespace allot::evaluation
