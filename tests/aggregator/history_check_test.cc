#include "aggregator/history_check.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <sstream>
#include <thread>

#include "aggregator/history_backup.h"
#include "aggregator/history_chain.h"
#include "aggregator/history_export.h"
#include "aggregator/history_format.h"
#include "aggregator/sqlite.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;
using namespace std::chrono_literals;

// A run in which every kind of row but kept answers and control has been written.
class HistoryCheckTest : public testing::Test {
 protected:
  HistoryCheckTest() {
    driver_.hello("a");
    driver_.hello("b");
    for (const wire::Lease& lease : driver_.leases("a", 3)) driver_.answer("a", result_of(lease, 2));
    (void)driver_.leases("b", 1);
    driver_.clock().advance(61s);
    driver_.tick();
    for (int i = 0; i < 4; ++i) {
      driver_.hello("a");
      for (const wire::Lease& lease : driver_.leases("a", 1)) driver_.answer("a", result_of(lease, 3));
    }
  }

  // What the check says of a copy of the history after `damage`; `begin` the chain anew to hide it from that.
  HistoryReport report_after(const std::string& damage, void (*begin)(Database*) = nullptr) {
    const auto copy = directory_.path() / "copy.sqlite";
    std::filesystem::remove(copy);
    backup_history(driver_.file(), copy);
    {
      Database database(copy, Database::Mode::kReadWrite);
      database.execute("PRAGMA ignore_check_constraints = 1; PRAGMA foreign_keys = 0;");
      database.execute(damage);
      if (begin != nullptr) begin(&database);
    }
    return check_history(copy, driver_.spec());
  }

  TemporaryDirectory directory_;
  CoreDriver driver_{Storage::kSqlite, example_spec()};
};

TEST_F(HistoryCheckTest, ASoundHistoryHasNoProblemAndReplaysBitForBit) {
  const HistoryReport report = check_history(driver_.file(), driver_.spec());
  for (const HistoryProblem& problem : report.problems)
    ADD_FAILURE() << problem.where << ": " << problem.what;
  EXPECT_TRUE(report.replayed);
  EXPECT_TRUE(report.exact);
  EXPECT_EQ(report.policy_version, driver_.core().policy().version());
  EXPECT_THAT(report.rows, Contains(std::pair<std::string, int64_t>("outcomes", 7)));
  EXPECT_EQ(report.epochs, 1) << "a check is no start";
}

TEST_F(HistoryCheckTest, EachKindOfDamageIsNamedWithItsRowAndARemedy) {
  const struct {
    const char* damage;
    const char* where;
    std::vector<std::string> named;
  } kCases[] = {
      {"UPDATE outcomes SET verdict = 'perhaps' WHERE episode = 1", "outcomes, episode 1", {"perhaps"}},
      {"UPDATE episodes SET samples = '3,,4' WHERE episode = 2", "episodes, episode 2", {"3,,4"}},
      {"UPDATE episodes SET samples = '57,1,1,1,1,1,1,1' WHERE episode = 2",
       "episodes, episode 2",
       {"episode 2", "spec"}},
      {"UPDATE outcomes SET correct = '1111', finish = 'ssss' WHERE episode = 0",
       "versions, version",
       {"share", "layer"}},
      {"UPDATE outcomes SET correct = '1000', score = '1,0.5,0,0' WHERE episode = 0",
       "versions, version",
       {"share", "layer"}},
      {"UPDATE outcomes SET score = '1,1,3,0' WHERE episode = 0", "outcomes, episode 0", {"score", "3"}},
      {"UPDATE outcomes SET score = '1,1' WHERE episode = 0", "outcomes, episode 0", {"2 scores"}},
      {"UPDATE episodes SET kind = 'divergence' WHERE episode = 2",
       "episodes, episode 2",
       {"episode 2", "spec"}},
      {"UPDATE versions SET shares = replace(shares, '0.1', '0.2') WHERE version = 1",
       "versions, version 1",
       {"share", "layer"}},
      {"UPDATE versions SET digest = 'half' WHERE version = 1", "versions, version 1", {"half"}},
      {"UPDATE versions SET scalars = 'entropy=' WHERE version = 1", "versions, version 1", {"entropy="}},
      {"UPDATE versions SET scalars = 'entropy=9' WHERE version = 1",
       "versions, version 1",
       {"entropy", "9"}},
      {"UPDATE versions SET layer_name = 'step' WHERE version = 1", "versions, version 1", {"8 steps"}},
      {"DELETE FROM leases WHERE lease = 2", "outcomes, episode 1", {"episode none"}},
      {"DELETE FROM leases WHERE lease = 4", "lease_ends, lease 4", {"never granted"}},
      {"DELETE FROM outcomes WHERE episode = 2", "", {"missing", "seq"}},
      {"UPDATE outcomes SET lease = 1 WHERE episode = 2", "outcomes, episode 2", {"lease 1", "episode 0"}},
      {"DELETE FROM episodes WHERE episode = 3", "leases, lease 4", {"episode 3", "never asked"}},
      {"UPDATE outcomes SET correct = '111', finish = 'sss', prompt_tokens = '1,1,1', output_tokens = "
       "'1,1,1' "
       "WHERE episode = 2",
       "outcomes, episode 2",
       {"3 answers", "4 questions"}},
      {"INSERT INTO set_asides VALUES(999, 1, 0, 'exhausted', '')", "set_asides, episode 1", {"outcome"}},
      {"INSERT INTO lease_ends SELECT 999, lease, ended_ms, ending, reason FROM lease_ends",
       "lease_ends, lease 4",
       {"2 times"}},
      {"INSERT INTO kept_answers VALUES(999, 1, 1, 0, 'w', 1, '0', '1', 's', '1', '1', NULL)",
       "kept_answers, episode 1",
       {"lease 1", "episode 0"}},
      {"UPDATE lease_ends SET seq = 1", "", {"seq", "twice"}},
      {"UPDATE counters SET value = value + 1 WHERE name = 'accepted'", "counters, accepted", {"tables"}},
      {"UPDATE epochs SET epoch = 5", "epochs, epoch 5", {"seal"}},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.damage);
    const HistoryReport report = report_after(one.damage);
    EXPECT_THAT(report.problems, Contains(AllOf(Field(&HistoryProblem::where, HasSubstr(one.where)),
                                                Field(&HistoryProblem::what, NamesAll(one.named)),
                                                Field(&HistoryProblem::remedy, Not(IsEmpty())))));
  }
}

// A run may move to a machine whose exp() differs in the last bit: no problem, but said.
TEST_F(HistoryCheckTest, SharesThatDifferInTheLastBitReplayAndAreNotExact) {
  std::vector<double> shares = driver_.records_of<VersionReached>().back().described.per_layer;
  shares[0] = std::nextafter(shares[0], 1);
  const HistoryReport report = report_after("UPDATE versions SET shares = '" + list_text(shares) +
                                                "' WHERE version = (SELECT max(version) FROM versions)",
                                            begin_chain);
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_TRUE(report.replayed);
  EXPECT_FALSE(report.exact);
}

TEST_F(HistoryCheckTest, AStateThatDiffersOnlyInItsDigestReplaysAndIsNotExact) {
  EXPECT_TRUE(report_after("UPDATE versions SET digest = '' WHERE version = 0", begin_chain).exact)
      << "none was recorded";
  const HistoryReport report =
      report_after("UPDATE versions SET digest = '0123456789abcdef' WHERE version = 0", begin_chain);
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_TRUE(report.replayed);
  EXPECT_FALSE(report.exact);
}

TEST_F(HistoryCheckTest, SeveralProblemsAreAllListed) {
  const HistoryReport report = report_after(
      "UPDATE outcomes SET verdict = 'perhaps' WHERE episode < 3; "
      "UPDATE counters SET value = 0 WHERE name = 'granted'");
  EXPECT_THAT(report.problems, SizeIs(testing::Ge(4)));
}

TEST_F(HistoryCheckTest, OverwrittenPagesAreFoundBySqlitesOwnCheck) {
  const auto copy = directory_.path() / "copy.sqlite";
  backup_history(driver_.file(), copy);
  std::string bytes = read_file(copy);
  for (size_t page = 2; page * 4096 + 64 < bytes.size(); page += 3)
    bytes.replace(page * 4096, 64, 64, '\x5a');
  write_file_atomically(copy, bytes);
  EXPECT_THAT(
      check_history(copy, driver_.spec()).problems,
      Contains(AllOf(Field(&HistoryProblem::where, "file"), Field(&HistoryProblem::what, Names("SQLite")))));
}

TEST_F(HistoryCheckTest, ASpecOfAnotherRunDoesNotReplay) {
  wire::RunSpec other = driver_.spec();
  other.set_seed(8);
  const HistoryReport report = check_history(driver_.file(), other);
  EXPECT_FALSE(report.replayed);
  EXPECT_THAT(report.problems, Contains(Field(&HistoryProblem::where, "episodes, episode 0")));
}

TEST_F(HistoryCheckTest, ABackupTakenWhileTheAggregatorWritesIsWhole) {
  std::atomic<bool> stop{false};
  int backups = 0;
  std::jthread reader([&] {
    while (!stop || backups == 0) {
      const auto copy = directory_.path() / ("copy-" + std::to_string(backups++));
      backup_history(driver_.file(), copy);
      const HistoryReport report = check_history(copy, driver_.spec());
      for (const HistoryProblem& problem : report.problems)
        ADD_FAILURE() << problem.where << ": " << problem.what;
      EXPECT_TRUE(report.exact);
      std::filesystem::remove(copy);
    }
  });
  for (int i = 0; i < 300; ++i)
    (void)driver_.heartbeat("a", {}), driver_.hello("a"), (void)driver_.leases("b", 1);
  stop = true;
  reader.join();
  EXPECT_GT(backups, 0);
}

TEST_F(HistoryCheckTest, ABackupReplacesNothingAndLeavesNothingBehindWhenItFails) {
  const auto taken = directory_.path() / "taken";
  write_file_atomically(taken, "precious");
  EXPECT_THROW(backup_history(driver_.file(), taken), InvalidArgument);
  EXPECT_EQ(read_file(taken), "precious");
  EXPECT_THROW(backup_history(directory_.path() / "none", directory_.path() / "copy"), NotFound);
  EXPECT_THROW(backup_history(taken, directory_.path() / "copy"), CorruptFile);
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "copy"));
  EXPECT_FALSE(std::filesystem::exists(directory_.path() / "copy.partial"));
}

// The limit on the size of files stands for a full disk; it is one of a process of its own.
TEST_F(HistoryCheckTest, ABackupThatMeetsAFullDiskLeavesNothingBehind) {
  const auto copy = directory_.path() / "copy";
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);  // write() fails instead
    const rlimit files{20'000, 20'000};
    int code = ::setrlimit(RLIMIT_FSIZE, &files) == 0 ? 2 : 1;
    try {
      backup_history(driver_.file(), copy);
    } catch (const StorageError&) {
      code = 3;
    } catch (...) {
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3) << "1: no limit, 2: no StorageError";
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

std::string exported(const std::filesystem::path& file, const char* table, ExportFormat format) {
  std::ostringstream out;
  export_history(file, table, format, out);
  return out.str();
}

TEST_F(HistoryCheckTest, RowsAreExportedAsJsonLinesWithListsAndAsCsv) {
  EXPECT_THAT(exported(driver_.file(), "outcomes", ExportFormat::kJsonLines),
              AllOf(HasSubstr("\"correct\":\"1100\""), HasSubstr("\"prompt_tokens\":[200,200,200,200]"),
                    HasSubstr("\"reward\":0.5}\n")));
  const std::string csv = exported(driver_.file(), "outcomes", ExportFormat::kCsv);
  EXPECT_THAT(csv, testing::StartsWith("seq,episode,lease,told_ms,verdict,"));
  EXPECT_THAT(csv, HasSubstr("1100,ssss,\"200,200,200,200\",\"50,50,50,50\",,0.5\r\n"));
  EXPECT_EQ(std::ranges::count(csv, '\n'), 1 + 7);
  const auto graded = directory_.path() / "graded.sqlite";
  backup_history(driver_.file(), graded);
  Database(graded, Database::Mode::kReadWrite)
      .execute("UPDATE outcomes SET correct = '0000', score = '0.5,0.25,0.125,0.125' WHERE episode = 0");
  EXPECT_THAT(exported(graded, "outcomes", ExportFormat::kJsonLines),
              HasSubstr("\"score\":[0.5,0.25,0.125,0.125],\"reward\":0.25}\n"));
  for (const std::string& table : exported_tables()) {
    EXPECT_NO_THROW((void)exported(driver_.file(), table.c_str(), ExportFormat::kCsv)) << table;
  }
  const wire::Lease lease = driver_.leases("a", 1).at(0);
  driver_.fail("a", lease, "no \"memory\", none");
  EXPECT_THAT(exported(driver_.file(), "lease_ends", ExportFormat::kCsv),
              HasSubstr(",failed,\"episode " + std::to_string(lease.episode()) +
                        " failed on a: no \"\"memory\"\", none\"\r\n"));
  EXPECT_THAT([&] { (void)exported(driver_.file(), "result", ExportFormat::kCsv); },
              ThrowsMessage<InvalidArgument>(Names("result", "outcomes")));
  std::ostringstream full;
  full.setstate(std::ios::badbit);  // as after a write to a full disk
  EXPECT_THAT([&] { export_history(driver_.file(), "outcomes", ExportFormat::kCsv, full); },
              ThrowsMessage<StorageError>(Names("disk full")));
}

}  // namespace
}  // namespace allot::aggregator
