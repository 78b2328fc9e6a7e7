// `allot history` and `allot bench aggregator` from outside, on a run that the real aggregator served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "base/json.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(HistoryCommand, ABenchRunIsCheckedExportedBackedUpAndADamagedCopyIsNamed) {
  const std::string tool = std::string(ALLOT_SIMULATED_DIR) + "/allot";
  const std::filesystem::path directory = fresh_directory();
  const std::string run = (directory / "run").string(), copy = (directory / "copy").string();
  const auto bench = run_command({tool, "bench", "aggregator", "--workers", "20", "--episodes", "30",
                                  "--rate", "20", "--rate-seconds", "1", "--run", run, "--json"});
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out,
              AllOf(HasSubstr("\"phase\":\"full rate\""), HasSubstr("\"phase\":\"offered rate\"")));

  EXPECT_EQ(run_command({tool, "history", "backup", run, copy}).code, 0);
  const auto checked = run_command({tool, "history", "check", copy});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  EXPECT_THAT(checked.out, Names("bit for bit"));
  const auto rows = run_command({tool, "history", "export", copy, "--what", "outcomes"});
  EXPECT_GE(std::ranges::count(rows.out, '\n'), 30);
  const auto audit = nlohmann::json::parse(run_command({tool, "history", "audit", copy, "--json"}).out);
  EXPECT_EQ(audit.at("holders").size(), 20u);
  EXPECT_EQ(audit.at("holders").at(0).at("workers").size(), 1u);
  int64_t results = 0;
  for (const auto& holder : audit.at("holders"))
    for (const char* verdict : {"accepted", "late", "stale"}) results += holder.at(verdict).get<int64_t>();
  EXPECT_EQ(results, std::ranges::count(rows.out, '\n'));
  const auto told = run_command({tool, "history", "audit", copy});
  EXPECT_EQ(told.code, 0) << told.err;
  EXPECT_THAT(told.out, AllOf(HasSubstr("worker-19 "), HasSubstr("nobody controlled")));

  const std::string not_utf8 = (directory / "not_utf8").string();
  EXPECT_EQ(run_command({tool, "history", "backup", run, not_utf8}).code, 0);
  const auto changed = run_command(
      {"/usr/bin/env", "python3", "-c",
       "import sqlite3, sys; database = sqlite3.connect(sys.argv[1]); "
       "database.execute(\"UPDATE episodes SET samples = CAST(x'1bff31' AS TEXT) WHERE episode = 3\"); "
       "database.commit()",
       not_utf8 + "/history.sqlite"});
  ASSERT_EQ(changed.code, 0) << changed.err;
  const auto named = run_command({tool, "history", "check", not_utf8});
  EXPECT_EQ(named.code, 1);
  EXPECT_THAT(named.out, AllOf(Names("PROBLEM", "episode 3"), Not(HasSubstr("\x1b"))));
  const auto as_json = run_command({tool, "history", "check", not_utf8, "--json"});
  EXPECT_EQ(as_json.code, 1) << as_json.err;
  EXPECT_FALSE(nlohmann::json::parse(as_json.out).at("problems").empty());

  std::string bytes = read_file(directory / "copy" / "history.sqlite");
  bytes.replace(4096 + 8, 64, 64, '\x5a');
  write_file_atomically(directory / "copy" / "history.sqlite", bytes);
  const auto damaged = run_command({tool, "history", "check", copy});
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.out, Names("PROBLEM", "remedy"));
  EXPECT_EQ(run_command({tool, "history", "mend", copy}).code, 2);
}

// From the backup that the aggregator makes of itself to the run that goes on from it.
TEST(HistoryCommand, ARunThatLostWhatWasAckedIsRefusedUntilItsBackupIsRestored) {
  const std::string tool = std::string(ALLOT_SIMULATED_DIR) + "/allot";
  const std::filesystem::path directory = fresh_directory(), run = directory / "run";
  const SmallModel small = write_small_model(directory);
  {
    RunningCommand serving(
        run_words(tool, "aggregator", small, run, 8, {"--exit-when-finished", "--backup-every", "1"}));
    ASSERT_TRUE(serving.error_line_with("holds the run as it was now"));
    EXPECT_EQ(run_command({tool, "worker", "--run", run.string(), "--exit-when-finished"}).code, 0);
    EXPECT_EQ(serving.wait().code, 0);
  }
  std::vector<std::filesystem::path> backups;
  for (const auto& entry : std::filesystem::directory_iterator(run / "backups"))
    backups.push_back(entry.path());
  ASSERT_EQ(backups.size(), 1u);
  EXPECT_EQ(run_command({tool, "history", "check", backups[0].string()}).code, 0);
  EXPECT_EQ(run_command({tool, "history", "check", run.string()}).code, 0);

  std::filesystem::copy_file(backups[0] / "history.sqlite", run / "history.sqlite",
                             std::filesystem::copy_options::overwrite_existing);
  const auto refused = run_command({tool, "aggregator", "--run", run.string()});
  EXPECT_EQ(refused.code, 3) << "a retry cures nothing";
  EXPECT_THAT(refused.err, Names("0 episodes", "allot history restore", "allot history accept"));
  const auto checked = run_command({tool, "history", "check", run.string()});
  EXPECT_EQ(checked.code, 1);
  EXPECT_THAT(checked.out, Names("PROBLEM history.mark", "missing"));

  EXPECT_EQ(run_command({tool, "history", "restore", backups[0].string()}).code, 2) << "no --run";
  const auto restored = run_command({tool, "history", "restore", backups[0].string(), "--run", run.string()});
  EXPECT_EQ(restored.code, 0) << restored.err;
  EXPECT_THAT(restored.out, Names("0 episodes", "next epoch is 2", run / "replaced-1"));
  RunningCommand serving({tool, "aggregator", "--run", run.string()});
  EXPECT_TRUE(serving.error_line_with("epoch 2: stage learn, 0 of 8 episodes"));
}

}  // namespace
}  // namespace allot::app
