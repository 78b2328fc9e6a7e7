// What was answered survives a power cut: when a commit returns, all of it was synced.
#include <gmock/gmock.h>

#include <set>

#include "aggregator/history_check.h"
#include "aggregator/history_mark.h"
#include "aggregator/sqlite.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/watched_disk.h"

namespace allot::aggregator {
namespace {

using testing::IsEmpty;

class PowerCutTest : public testing::Test {
 protected:
  // The leases and the outcomes that a power cut now would leave.
  struct Left {
    std::set<int64_t> leases, episodes;
  };
  Left left_of(const std::filesystem::path& file) {
    disk_.cut_power(file, directory_.path());
    Left left;
    read_sqlite_history(directory_.path() / file.filename())->replay([&](const Record& record) {
      if (const auto* granted = std::get_if<LeaseGranted>(&record)) left.leases.insert(granted->lease.value);
      if (const auto* told = std::get_if<EpisodeTold>(&record)) left.episodes.insert(told->episode.value);
    });
    return left;
  }

  TemporaryDirectory directory_;
  WatchedDisk disk_;
};

TEST_F(PowerCutTest, EveryGrantAndEveryAckedResultWasSyncedBeforeItsAnswer) {
  CoreDriver driver(Storage::kSqlite, example_spec());
  driver.hello("a");
  for (int i = 0; i < 8; ++i) {
    const wire::Lease lease = driver.leases("a", 1).at(0);
    EXPECT_TRUE(left_of(driver.file()).leases.contains(lease.lease())) << lease.lease();
    const int before = disk_.syncs();
    ASSERT_EQ(driver.answer("a", result_of(lease, 2)).episode(), lease.episode());
    EXPECT_GT(disk_.syncs(), before);
    EXPECT_TRUE(left_of(driver.file()).episodes.contains(lease.episode())) << lease.episode();
    // The mark may be on the disk by now, or not; if it is, the history holds what it says.
    const HistoryMark mark = *read_mark(driver.file());
    EXPECT_EQ(mark.episodes, i + 1);
    EXPECT_EQ(missing_before(directory_.path() / driver.file().filename(), mark), std::nullopt);
  }
  EXPECT_THAT(check_history(directory_.path() / driver.file().filename(), driver.spec()).problems, IsEmpty());
}

// What the test above would see of a history whose commits are not synced.
TEST_F(PowerCutTest, ACommitThatIsNotSyncedIsMissed) {
  const auto file = directory_.path() / "live" / "table.sqlite";
  std::filesystem::create_directories(file.parent_path());
  Database database(file, Database::Mode::kReadWrite);
  database.execute(
      "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t(x); INSERT INTO t VALUES(1);");
  const auto rows_left = [&] {
    disk_.cut_power(file, directory_.path());
    return Statement(Database(directory_.path() / "table.sqlite", Database::Mode::kReadWrite),
                     "SELECT count(*) FROM t")
        .value();
  };
  EXPECT_EQ(rows_left(), 1);
  const int before = disk_.syncs();
  database.execute("PRAGMA synchronous = OFF; INSERT INTO t VALUES(2);");
  EXPECT_EQ(disk_.syncs(), before);
  EXPECT_EQ(rows_left(), 1);
  database.execute("PRAGMA synchronous = FULL; INSERT INTO t VALUES(3);");
  EXPECT_EQ(rows_left(), 3);
}

}  // namespace
}  // namespace allot::aggregator
