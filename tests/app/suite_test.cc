// Files of several tasks for one evaluation.
#include "app/scoring/suite.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Words = std::vector<std::string>;

class Suite : public testing::Test {
 protected:
  std::filesystem::path written(const std::string& text) const {
    const std::filesystem::path file = directory_.path() / "suite.conf";
    write_file_atomically(file, text);
    return file;
  }
  std::string refused(const std::string& text) const {
    return message_of<UsageError>([&] { (void)read_suite(written(text)); });
  }

  TemporaryDirectory directory_;
};

TEST_F(Suite, HasTheOptionsOfEachSectionAndItsNameAsTheTaskWhereNoneIsSaid) {
  const std::vector<SuiteTask> tasks =
      read_suite(written("# two\n"
                         "[gsm8k]\n"
                         "data = a b.jsonl  # not the whole line\n"
                         "limit = 20\n"
                         "\n"
                         "[ physics.v2 ]\n"
                         "data = \"c # d.csv\"\n"
                         "task = mmlu-chat\n"));
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[0].name, "gsm8k");
  EXPECT_THAT(tasks[0].where, HasSubstr("suite.conf:2: "));
  EXPECT_THAT(tasks[0].options,
              ElementsAre(Pair("data", "a b.jsonl"), Pair("limit", "20"), Pair("task", "gsm8k")));
  EXPECT_EQ(tasks[1].name, "physics.v2");
  EXPECT_THAT(tasks[1].options, ElementsAre(Pair("data", "c # d.csv"), Pair("task", "mmlu-chat")));
}

TEST_F(Suite, ThatComesWithTheSourcesIsOne) {
  const auto tasks = read_suite(std::filesystem::path(ALLOT_SOURCE_DIR) / "configs/suites/tiny-gsm.conf");
  ASSERT_EQ(tasks.size(), 2u);
  EXPECT_EQ(tasks[1].name, "by-a-file");
}

TEST_F(Suite, NamesEverythingThatIsWrongWithItsLine) {
  EXPECT_THAT(
      refused("limit = 3\n[a]\nlimt = 2\nseed = 1\ndata = x\ndata = y\nrepeats =\nword\n[A]\n[../b]\n"),
      Names("suite.conf:1: ", "first", "suite.conf:3: ", "limit?", "suite.conf:4: ", "seed",
            "suite.conf:6: ", "twice", "suite.conf:7: ", "no value", "suite.conf:8: ", "word",
            "suite.conf:9: ", "[A]", "suite.conf:10: ", "[../b]"));
  EXPECT_THAT(refused("# nothing\n"), Names("suite.conf", "[section]"));
  EXPECT_THAT(refused("[]\n"), Names("suite.conf:1: "));
  EXPECT_THROW((void)read_suite(directory_.path() / "none.conf"), NotFound);
}

TEST_F(Suite, ASectionsOptionsStandInPlaceOfTheCommandsOfTheSameName) {
  const SuiteTask task{.name = "a", .where = "", .options = {{"data", "x.csv"}, {"limit", "5"}}};
  EXPECT_THAT(words_of_task(Words{"--model", "m", "--limit", "9", "--suite", "s", "--dry-run", "--data=y",
                                  "--json", "--limit-more", "2", "--suite=s"},
                            task),
              ElementsAre("--model", "m", "--json", "--limit-more", "2", "--data=x.csv", "--limit=5"));
}

}  // namespace
}  // namespace allot::app
