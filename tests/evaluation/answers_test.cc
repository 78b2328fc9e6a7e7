#include "evaluation/answers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using testing::HasSubstr;

Answer answer_to(uint32_t question, uint32_t repeat = 0, const std::string& schedule = "uniform:8") {
  return {.key = {schedule, repeat, question},
          .gold = "18",
          .answer = "17",
          .extracted = true,
          .score = 0.25,
          .prompt_tokens = 31,
          .output_tokens = 7,
          .finish = Finish::kLength,
          .reply = "Nine \"and\" nine\n#### 17 é"};
}

void expect_equal(const Answer& read, const Answer& written) {
  EXPECT_EQ(read.key, written.key);
  EXPECT_EQ(read.gold, written.gold);
  EXPECT_EQ(read.answer, written.answer);
  EXPECT_EQ(read.extracted, written.extracted);
  EXPECT_EQ(read.score, written.score);
  EXPECT_EQ(read.prompt_tokens, written.prompt_tokens);
  EXPECT_EQ(read.output_tokens, written.output_tokens);
  EXPECT_EQ(read.finish, written.finish);
  EXPECT_EQ(read.reply, written.reply);
}

Answer read_back(const Answer& answer) {
  std::string line = format_answer(answer);
  EXPECT_EQ(std::ranges::count(line, '\n'), 1);
  line.pop_back();
  return parse_answer(line, "here");
}

class AnswerFile : public testing::Test {
 protected:
  const TemporaryDirectory folder_;
  const std::filesystem::path file_ = folder_.path() / "run" / "replies.jsonl";
};

TEST(AnswerLine, HoldsEverything) {
  expect_equal(read_back(answer_to(4, 2)), answer_to(4, 2));
  Answer none = answer_to(0);
  none.answer.reset();
  none.extracted = false;
  none.gold = none.reply = "";
  none.score = 1;
  for (const Finish finish : {Finish::kEos, Finish::kStop, Finish::kLength}) {
    none.finish = finish;
    expect_equal(read_back(none), none);
  }
}

TEST(AnswerLine, PutsAMarkForPartOfACharacter) {
  Answer cut = answer_to(1);
  cut.reply = "caf\xC3";
  EXPECT_EQ(read_back(cut).reply, "caf\uFFFD");
}

TEST(AnswerLine, ListsWhatIsWrong) {
  EXPECT_THAT(message_of<CorruptFile>([] { (void)parse_answer("17", "f: line 3"); }), HasSubstr("f: line 3"));
  EXPECT_THAT(message_of<CorruptFile>([] {
                (void)parse_answer(
                    R"({"schedule":"a","repeat":0,"question":-1,"gold":5,"answer":null,"extracted":true,)"
                    R"("correct":true,"score":0.5,"prompt_tokens":1,"output_tokens":1,"finish":"end"})",
                    "f: line 3");
              }),
              Names("f: line 3", "question", "-1", "gold", 5, "correct", "0.5", "finish", "'end'", "reply"));
}

TEST_F(AnswerFile, GrowsAndIsThereTheNextTime) {
  {
    AnswerJournal journal(file_);
    EXPECT_TRUE(journal.answers().empty());
    journal.append(answer_to(3));
    journal.append(answer_to(1, 1));
    EXPECT_EQ(journal.answers().size(), 2u);
  }
  AnswerJournal journal(file_);
  ASSERT_EQ(journal.answers().size(), 2u);
  expect_equal(journal.answers().at({"uniform:8", 1, 1}), answer_to(1, 1));
  Answer later = answer_to(3);
  later.score = 1;
  journal.append(later);
  EXPECT_EQ(journal.answers().size(), 2u);
}

// What stands on disk whenever the writer is killed: any number of bytes of what it wrote.
TEST_F(AnswerFile, OfAKilledProcessHasEveryWholeLineAndGoesOnBehindThem) {
  { AnswerJournal journal(file_); }
  const std::string whole = format_answer(answer_to(1)) + format_answer(answer_to(2));
  const size_t first = whole.find('\n') + 1;
  for (size_t bytes = 0; bytes <= whole.size(); ++bytes) {
    std::ofstream(file_, std::ios::binary | std::ios::trunc) << whole.substr(0, bytes);
    const size_t lines = (bytes >= first) + (bytes == whole.size());
    {
      AnswerJournal journal(file_);
      ASSERT_EQ(journal.answers().size(), lines) << bytes;
      journal.append(answer_to(9));
    }
    EXPECT_EQ(read_file(file_), whole.substr(0, lines == 0   ? 0
                                                : lines == 1 ? first
                                                             : whole.size()) +
                                    format_answer(answer_to(9)));
  }
}

TEST_F(AnswerFile, OfALaterLineCountsTheLater) {
  { AnswerJournal journal(file_); }
  Answer better = answer_to(1);
  better.score = 1;
  std::ofstream(file_, std::ios::binary) << format_answer(answer_to(1)) << format_answer(better);
  EXPECT_EQ(AnswerJournal(file_).answers().at({"uniform:8", 0, 1}).score, 1);
}

TEST_F(AnswerFile, IsWrittenByOneAtATime) {
  AnswerJournal journal(file_);
  EXPECT_THAT(message_of<Mismatch>([&] { AnswerJournal second(file_); }), HasSubstr(file_.string()));
  journal.rewrite({{answer_to(5).key, answer_to(5)}});
  EXPECT_THAT(message_of<Mismatch>([&] { AnswerJournal second(file_); }), HasSubstr(file_.string()));
}

TEST_F(AnswerFile, IsReplacedWhole) {
  {
    AnswerJournal journal(file_);
    journal.append(answer_to(1));
    journal.rewrite({{answer_to(2).key, answer_to(2)}, {answer_to(0).key, answer_to(0)}});
    journal.append(answer_to(7));
    EXPECT_EQ(journal.answers().size(), 3u);
  }
  EXPECT_EQ(read_file(file_),
            format_answer(answer_to(0)) + format_answer(answer_to(2)) + format_answer(answer_to(7)));
}

TEST_F(AnswerFile, NamesALineThatIsWrong) {
  { AnswerJournal journal(file_); }
  std::ofstream(file_, std::ios::binary) << format_answer(answer_to(1)) << "{}\n";
  EXPECT_THAT(message_of<CorruptFile>([&] { AnswerJournal journal(file_); }),
              Names("replies.jsonl", "line", 2));
}

TEST_F(AnswerFile, NeedsAPlaceThatCanBeWritten) {
  std::ofstream(folder_.path() / "run") << "a file";
  EXPECT_THROW(AnswerJournal journal(file_), StorageError);
}

}  // namespace
}  // namespace allot::evaluation
