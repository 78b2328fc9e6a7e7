#include "evaluation/graded_replies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

class GradedRepliesTest : public testing::Test {
 protected:
  GradedReplies read(const std::string& content, const std::string& schedule = "") {
    const auto file = directory_.path() / "replies.jsonl";
    write_file_atomically(file, content);
    return read_graded_replies(file, schedule);
  }
  template <class Fault>
  std::string refusal(const std::string& content, const std::string& schedule = "") {
    return message_of<Fault>([&] { (void)read(content, schedule); });
  }

  TemporaryDirectory directory_;
};

TEST_F(GradedRepliesTest, AreThoseOfEvalAndOfGradeInTheOrderOfTheirQuestions) {
  const GradedReplies eval = read(
      R"({"schedule":"dense","question":1,"gold":"5","answer":"4","correct":false,"score":0.25,"reply":"b"})"
      "\n\n"
      R"({"schedule":"dense","question":0,"gold":"7","answer":"7","correct":true,"score":1,"reply":"a"})");
  ASSERT_EQ(eval.replies.size(), 2U);
  EXPECT_EQ(eval.replies[0].question, 0U);
  EXPECT_EQ(eval.replies[0].gold, "7");
  EXPECT_EQ(eval.replies[1].score, 0.25);
  EXPECT_EQ(eval.replies[1].reply, "b");
  const GradedReplies bare =
      read("{\"correct\":0}\n{\"correct\":1}\n{\"correct\":true, \"question\": \"text\"}\n");
  ASSERT_EQ(bare.replies.size(), 3U);
  EXPECT_EQ(bare.replies[2].question, 2U) << "numbered by lines, since no line has a question's number";
  EXPECT_EQ(bare.replies[0].score + bare.replies[1].score * 10, 10);
  EXPECT_FALSE(bare.replies[0].reply);
  EXPECT_EQ(read(R"({"question":3,"prediction":"p","correct":1})").replies[0].reply, "p");
}

TEST_F(GradedRepliesTest, OfRepeatsHaveTheMeanOfTheirScores) {
  const GradedReplies repeats = read(R"({"repeat":0,"question":4,"score":1,"reply":"a"})"
                                     "\n"
                                     R"({"repeat":1,"question":4,"score":0,"reply":"b"})"
                                     "\n"
                                     R"({"repeat":2,"question":4,"score":0.5,"reply":"c"})"
                                     "\n"
                                     R"({"repeat":0,"question":2,"score":1,"reply":"d"})");
  ASSERT_EQ(repeats.replies.size(), 2U);
  EXPECT_EQ(repeats.replies[0].question, 2U);
  EXPECT_EQ(repeats.replies[0].reply, "d");
  EXPECT_EQ(repeats.replies[1].score, 0.5);
  EXPECT_FALSE(repeats.replies[1].reply);
  const std::string line = R"({"repeat":1,"question":4,"score":1})";
  EXPECT_THAT(refusal<CorruptFile>(line + "\n" + line), Names("line 2", "question", 4, "repeat", 1));
  EXPECT_THAT(refusal<CorruptFile>(R"({"repeat":-1,"question":4,"score":1})"),
              Names("line 1", "repeat", "-1"));
}

TEST_F(GradedRepliesTest, AreThoseOfOneSchedule) {
  const std::string two = R"({"schedule":"dense","question":0,"score":1})"
                          "\n"
                          R"({"schedule":"uniform:8","question":0,"score":0})"
                          "\n";
  EXPECT_EQ(read(two, "uniform:8").replies[0].score, 0);
  EXPECT_THAT(read(two, "dense").label, Names("replies.jsonl", "dense"));
  EXPECT_THAT(refusal<UsageError>(two), Names("dense", "uniform:8"));
  EXPECT_THAT(refusal<UsageError>(two, "uniform:4"), Names("dense", "uniform:8", "uniform:4"));
}

TEST_F(GradedRepliesTest, WhatIsWrongIsNamedWithItsLine) {
  EXPECT_THAT(refusal<CorruptFile>("{\"correct\":1}\n[]\n"), Names("line 2", "JSON object"));
  EXPECT_THAT(refusal<CorruptFile>("{\"reply\": \"5\"}"), Names("line 1", "score", "correct", "allot grade"));
  EXPECT_THAT(refusal<CorruptFile>("{\"score\": 1.5}"), Names("score", "1.5", "0 to 1"));
  EXPECT_THAT(refusal<CorruptFile>("{\"correct\": 2}"), Names("correct", 2));
  EXPECT_THAT(refusal<CorruptFile>("{\"correct\": 1, \"question\": -1}"), Names("question", -1));
  EXPECT_THAT(refusal<CorruptFile>("{\"correct\": 1, \"question\": 4}\n{\"correct\": 1, \"question\": 4}"),
              Names("line 2", "second reply", 4));
  EXPECT_THAT(refusal<CorruptFile>("{\"correct\": 1, \"question\": 4}\n{\"correct\": 1}"),
              Names("line 2", "line 1"));
  EXPECT_THAT(refusal<CorruptFile>("\n"), Names("no reply"));
}

std::string numbered(const std::string& scores) {
  std::string content;
  for (size_t i = 0; i < scores.size(); ++i)
    content += "{\"question\":" + std::to_string(i) + ",\"score\":" + scores[i] + ",\"reply\":\"" +
               scores[i] + "\"}\n";
  return content;
}

TEST_F(GradedRepliesTest, TwoAreComparedQuestionByQuestion) {
  const RepliesComparison near = compare_replies(read(numbered("1011011010")), read(numbered("1011011001")));
  EXPECT_EQ(near.test.pairs, (Pairs{1, 1, 10}));
  EXPECT_EQ(near.test.difference, 0);
  EXPECT_TRUE(near.within_interval());
  EXPECT_EQ(near.same_replies, 8);
  ASSERT_EQ(near.different.size(), 2U);
  EXPECT_EQ(near.different[1].question, 9U);
  EXPECT_EQ(near.different[1].first, 0);
  EXPECT_EQ(near.different[1].second, 1);

  const RepliesComparison far = compare_replies(read(numbered("1111111110")), read(numbered("0000000100")));
  EXPECT_DOUBLE_EQ(far.test.difference, 0.8);
  EXPECT_FALSE(far.within_interval());
  EXPECT_FALSE(compare_replies(read(numbered("0000000100")), read(numbered("1111111110"))).within_interval());

  const RepliesComparison without =
      compare_replies(read(numbered("1")), read("{\"question\": 0, \"correct\": true}"));
  EXPECT_FALSE(without.same_replies) << "one of them has no texts";
}

TEST_F(GradedRepliesTest, RepliesToOtherQuestionsAreNotCompared) {
  const auto mismatch = [&](const std::string& first, const std::string& second) {
    return message_of<Mismatch>([&] { (void)compare_replies(read(first), read(second)); });
  };
  EXPECT_THAT(mismatch(numbered("10101010"), numbered("1")), Names("8 replies", "1, 2, 3, 4, 5 and 2 more"));
  EXPECT_THAT(mismatch(numbered("1"), numbered("10")), Names("2 replies", "questions 1"));
  EXPECT_THAT(
      mismatch(R"({"question": 0, "score": 1, "gold": "5"})", R"({"question": 0, "score": 1, "gold": "6"})"),
      Names("question 0", "5", "6"));
}

}  // namespace
}  // namespace allot::evaluation
