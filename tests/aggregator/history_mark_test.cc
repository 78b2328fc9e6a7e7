// What was acked and is gone is noticed at the next start: a write-ahead log that is lost, cut or damaged, a
// history that is missing or older than its mark. What a power cut does to the mark itself refuses nothing.
#include "aggregator/history_mark.h"
#include "aggregator/sqlite.h"

#include <gmock/gmock.h>

#include "aggregator/history_backup.h"
#include "aggregator/history_check.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::Contains;
using testing::Field;
using testing::IsEmpty;
using testing::ThrowsMessage;

constexpr Timestamp kLater{Duration{1'700'000'900'000}};

// A copy of a run as kill -9 leaves it: nearly everything is still in the log.
class HistoryMarkTest : public testing::Test {
 protected:
  HistoryMarkTest() {
    driver_.hello("a");
    answer_one();
    early_ = *read_mark(driver_.file());
    backup_history(driver_.file(), backup_);
    for (int i = 0; i < 5; ++i) answer_one();
    take_copy();
  }

  void answer_one() { driver_.answer("a", result_of(driver_.leases("a", 1).at(0), 2)); }

  void take_copy() {
    for (const char* part : {"", "-wal"}) {
      std::filesystem::copy_file(driver_.file().string() + part, history_.string() + part,
                                 std::filesystem::copy_options::overwrite_existing);
    }
    std::filesystem::copy_file(mark_path(driver_.file()), mark_path(history_),
                               std::filesystem::copy_options::overwrite_existing);
  }
  std::string log() const { return history_.string() + "-wal"; }
  std::unique_ptr<History> open() const { return open_sqlite_history(history_, "test", kLater); }
  void expect_refused(const std::vector<std::string>& named) const {
    EXPECT_THAT([&] { (void)open(); },
                ThrowsMessage<HistoryBehindMark>(
                    testing::AllOf(NamesAll(named), Names("allot history restore", "allot history accept"))));
    try {
      (void)open();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 3) << "a retry cures nothing";
    }
  }

  TemporaryDirectory directory_;
  std::filesystem::path history_ = directory_.path() / "history.sqlite";
  std::filesystem::path backup_ = directory_.path() / "backup.sqlite";
  CoreDriver driver_{Storage::kSqlite, example_spec()};
  HistoryMark early_;
};

TEST_F(HistoryMarkTest, AHistoryThatHoldsWhatItsMarkSaysOpensInTheNextEpoch) {
  EXPECT_EQ(read_mark(history_)->episodes, 6);
  EXPECT_EQ(read_mark(history_)->epoch, 1);
  EXPECT_EQ(open()->epoch(), 2);
  EXPECT_EQ(read_mark(history_)->epoch, 2);
  EXPECT_THAT(check_history(history_, driver_.spec()).problems, IsEmpty());
}

// A process that dies between its commit and the mark leaves such a mark, and a power cut may, too.
TEST_F(HistoryMarkTest, AMarkThatIsBehindTheHistoryRefusesNothing) {
  replace_mark(history_, early_);
  EXPECT_EQ(open()->epoch(), 2);
  EXPECT_EQ(read_mark(history_)->episodes, 6);
}

TEST_F(HistoryMarkTest, ALostLogIsRefusedWithWhatIsMissingAndNothingIsChanged) {
  std::filesystem::remove(log());
  const std::string before = read_file(history_);
  expect_refused({"6", "episodes"});
  EXPECT_EQ(read_file(history_), before);
}

TEST_F(HistoryMarkTest, ACutLogIsRefusedAndStaysForWhoeverCanSaveSomethingFromIt) {
  std::string bytes = read_file(log());
  bytes.resize(bytes.size() / 2);
  write_file_atomically(log(), bytes);
  expect_refused({"6 episodes", "missing"});
  EXPECT_EQ(read_file(log()), bytes);
  EXPECT_THAT(check_history(history_, driver_.spec()).problems,
              Contains(Field(&HistoryProblem::where, "history.mark")));
}

TEST_F(HistoryMarkTest, AFlippedBitInTheLogIsRefused) {
  std::string bytes = read_file(log());
  bytes[bytes.size() / 2] ^= 1;
  write_file_atomically(log(), bytes);
  expect_refused({"6 episodes", "missing"});
}

TEST_F(HistoryMarkTest, AMissingHistoryIsRefusedAndNotBegunAnew) {
  for (const auto& file : {history_, std::filesystem::path(log())}) std::filesystem::remove(file);
  expect_refused({"6 acked episodes"});
  EXPECT_FALSE(std::filesystem::exists(history_));
}

TEST_F(HistoryMarkTest, AnOlderCopyIsRefused) {
  std::filesystem::remove(log());
  std::filesystem::copy_file(backup_, history_, std::filesystem::copy_options::overwrite_existing);
  expect_refused({"1 episodes", "6 episodes", "5 acked episodes"});
}

TEST_F(HistoryMarkTest, AnOlderCopyThatWasContinuedElsewhereIsRefused) {
  CoreDriver other(Storage::kSqlite, example_spec());
  other.hello("b");
  while (other.history().counters().granted() < 9) {
    other.answer("b", result_of(other.leases("b", 1).at(0), 1));
  }
  std::filesystem::remove(log());
  backup_history(other.file(), directory_.path() / "other.sqlite");
  std::filesystem::rename(directory_.path() / "other.sqlite", history_);
  expect_refused({"6 episodes"});
}

TEST_F(HistoryMarkTest, WithoutAMarkABackupOpensAsItIs) {
  std::filesystem::remove(log());
  std::filesystem::copy_file(backup_, history_, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::remove(mark_path(history_));
  EXPECT_EQ(open()->epoch(), 2);
  EXPECT_EQ(read_mark(history_)->episodes, 1);
}

TEST_F(HistoryMarkTest, ATornMarkRefusesNothingAndIsWrittenAnew) {
  const std::string whole = read_file(mark_path(history_));
  EXPECT_LT(whole.size(), 512u) << "a sector is written in one piece";
  std::string flipped = whole;
  flipped[40] ^= 1;
  for (const std::string& torn :
       {std::string(), whole + whole, whole.substr(0, 100), std::string(whole.size(), '\0'), flipped}) {
    take_copy();
    write_file_atomically(mark_path(history_), torn);
    EXPECT_FALSE(read_mark(history_).has_value());
    EXPECT_NO_THROW((void)open());
    EXPECT_EQ(read_mark(history_)->episodes, 6);
  }
}

TEST_F(HistoryMarkTest, TheMarkIsWrittenBeforeACommitReturns) {
  const Database database(driver_.file(), Database::Mode::kReadOnly);
  for (int i = 0; i < 4; ++i) {
    answer_one();
    EXPECT_EQ(read_mark(driver_.file())->seq, Statement(database, "SELECT max(seq) FROM chain").value());
  }
}

}  // namespace
}  // namespace allot::aggregator
