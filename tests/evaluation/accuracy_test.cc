#include "evaluation/accuracy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "evaluation/json_fields.h"
#include "evaluation/task.h"

namespace allot::evaluation {
namespace {

using Json = nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<double> kScores = {1, 1, 0, 1};
const std::vector<double> kGraded = {1, 0.5, 0, 0.75};

struct ReadAccuracy {
  Accuracy accuracy;
  std::vector<std::string> faults;
};
ReadAccuracy read(const Json& json) {
  ReadAccuracy read;
  JsonFields fields(json, "uniform", &read.faults);
  read.accuracy = read_accuracy(fields);
  return read;
}

TEST(Accuracy, IsGivenForTheQuestionsOfEachValueOfAField) {
  std::vector<Question> questions(6);
  for (const size_t i : {0, 2, 5}) questions[i].fields["level"] = "hard";
  questions[1].fields["level"] = "easy";
  questions[3].fields["topic"] = "hard";
  const std::vector<double> scores = {1, 0.5, 0, 1, 1};  // the last question was not asked
  const auto found = accuracy_by("level", questions, scores);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.at("hard"), accuracy_of(std::vector<double>{1, 0}));
  EXPECT_EQ(found.at("easy"), accuracy_of(std::vector<double>{0.5}));
  EXPECT_TRUE(accuracy_by("other", questions, scores).empty());
}

TEST(Accuracy, CountsFullMarksAndTakesTheMeanOfTheScores) {
  const Accuracy binary = accuracy_of(kScores);
  EXPECT_EQ(binary.questions, 4);
  EXPECT_EQ(binary.correct, 3);
  EXPECT_EQ(binary.value, 0.75);
  EXPECT_EQ(binary.interval, wilson_interval(3, 4));
  const Accuracy graded = accuracy_of(kGraded);
  EXPECT_EQ(graded.correct, 1);
  EXPECT_EQ(graded.value, 0.5625);
  EXPECT_EQ(graded.interval, mean_of_scores(kGraded).interval);
}

TEST(Accuracy, HasOneJsonFormThatIsReadBack) {
  for (const auto& scores : {kScores, kGraded}) {
    const Json json = to_json(accuracy_of(scores));
    std::vector<std::string> names;
    for (const auto& [name, value] : json.items()) names.push_back(name);
    EXPECT_THAT(names, ElementsAre("n", "correct", "accuracy", "interval_95"));
    const ReadAccuracy back = read(json);
    EXPECT_THAT(back.faults, IsEmpty());
    EXPECT_EQ(back.accuracy, accuracy_of(scores));
  }
}

TEST(Accuracy, OfAFileFromBeforePartialCreditIsTheShareOfRightAnswers) {
  const ReadAccuracy old = read({{"n", 4}, {"correct", 3}, {"interval_95", {0.3, 0.95}}});
  EXPECT_THAT(old.faults, IsEmpty());
  EXPECT_EQ(old.accuracy.value, 0.75);
}

TEST(Accuracy, ContradictionsAreFaults) {
  Json json = to_json(accuracy_of(kScores));
  json["accuracy"] = 0.5;  // less than three of four full marks
  EXPECT_THAT(read(json).faults, ElementsAre(HasSubstr("'uniform.accuracy'")));
  json = to_json(accuracy_of(kScores));
  json["interval_95"] = {0.1, 0.2};
  EXPECT_THAT(read(json).faults, ElementsAre(HasSubstr("'uniform.interval_95'")));
  json.erase("n");
  EXPECT_THAT(read(json).faults, testing::Contains("'uniform.n' is missing"));
}

TEST(PairedTestJson, NamesTheSchedulesAndIsReadBack) {
  for (const auto& [first, second] :
       {std::pair(kScores, std::vector<double>{0, 0, 0, 1}), std::pair(kGraded, kScores)}) {
    const PairedTest test = compare_scores(first, second);
    const Json json = to_json(test, "learned", "uniform");
    EXPECT_EQ(json.at("only_learned"), test.pairs.only_first);
    EXPECT_EQ(json.at("only_uniform"), test.pairs.only_second);
    std::vector<std::string> faults;
    {
      JsonFields fields(json, "paired", &faults);
      EXPECT_EQ(read_paired_test(fields, "learned", "uniform", 4), test);
    }
    EXPECT_THAT(faults, IsEmpty());
  }
}

TEST(PairedTestJson, AnUnknownTestAndADifferenceOutsideItsIntervalAreFaults) {
  Json json = to_json(compare_scores(kScores, std::vector<double>{0, 0, 0, 1}), "first", "second");
  json["test"] = "guess";
  json["difference"] = -0.9;
  std::vector<std::string> faults;
  {
    JsonFields fields(json, "paired", &faults);
    read_paired_test(fields, "first", "second", 4);
  }
  EXPECT_THAT(faults, ElementsAre(HasSubstr("'paired.test'"), HasSubstr("'paired.interval_95'")));
}

TEST(AccuracyText, HasTheIntervalBehindTheValue) {
  const Accuracy accuracy{.questions = 200, .correct = 190, .value = 0.95, .interval = {0.91, 0.973}};
  EXPECT_EQ(text(accuracy), "95.0% (91.0 to 97.3)");
  PairedTest test;
  test.difference = 0.031;
  test.interval = {0.01, 0.052};
  test.p_value = 0.032;
  EXPECT_EQ(text(test), "+3.1 points (+1.0 to +5.2), p = 0.032");
}

}  // namespace
}  // namespace allot::evaluation
