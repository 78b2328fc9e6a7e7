#include "aggregator/backup_schedule.h"

#include <gmock/gmock.h>

#include "aggregator/history_check.h"
#include "aggregator/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

class BackupScheduleTest : public testing::Test {
 protected:
  BackupScheduleTest() {
    fs::create_directories(run_);
    write_file_atomically(spec_path(run_), wire::to_json(example_spec()));
    fs::create_symlink(driver_.file(), history_path(run_));
    driver_.hello("a");
  }
  std::vector<std::string> backups() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(backups_path(run_)))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }

  TemporaryDirectory directory_;
  fs::path run_ = directory_.path() / "run";
  CoreDriver driver_{Storage::kSqlite, example_spec()};
  BackupSchedule schedule_{{.run_directory = run_, .every = 6h, .kept = 2}};
  Timestamp now_{Duration{1'795'600'080'000}};  // 2026-11-25 09:48:00 UTC
};

TEST_F(BackupScheduleTest, ABackupIsMadeWhenThePeriodIsOverAndTheOldestGoes) {
  EXPECT_EQ(schedule_.round(now_), now_ + 6h);
  EXPECT_THAT(backups(), ElementsAre("20261125T094800Z"));
  EXPECT_EQ(schedule_.round(now_ + 5h), now_ + 6h) << "not due";
  EXPECT_THAT(backups(), ElementsAre("20261125T094800Z"));
  driver_.answer("a", result_of(driver_.leases("a", 1).at(0), 2));
  EXPECT_EQ(schedule_.round(now_ + 6h), now_ + 12h);
  EXPECT_EQ(schedule_.round(now_ + 13h), now_ + 19h);
  EXPECT_THAT(backups(), ElementsAre("20261125T154800Z", "20261125T224800Z"));
  for (const std::string& name : backups()) {
    const fs::path backup = backups_path(run_) / name;
    EXPECT_THAT(check_history(history_path(backup), wire::read_spec(spec_path(backup))).problems, IsEmpty());
  }
}

// An aggregator that is started again and again must not fill the disk.
TEST_F(BackupScheduleTest, ARestartGoesOnWithTheBackupsThatAreThere) {
  schedule_.round(now_);
  BackupSchedule restarted({.run_directory = run_, .every = 6h, .kept = 2});
  EXPECT_EQ(restarted.round(now_ + 1h), now_ + 6h);
  EXPECT_THAT(backups(), ElementsAre("20261125T094800Z"));
}

TEST_F(BackupScheduleTest, AClockThatWasSetBackStopsNoBackups) {
  schedule_.round(now_);
  EXPECT_EQ(schedule_.round(now_ - 48h), now_ - 42h);
  EXPECT_THAT(backups(), ElementsAre("20261123T094800Z", "20261125T094800Z"));
}

TEST_F(BackupScheduleTest, WhatAKilledProcessLeftIsRemovedAndOtherFilesStay) {
  fs::create_directories(backups_path(run_) / "20261124T000000Z.partial");
  fs::create_directories(backups_path(run_) / "mine");
  schedule_.round(now_);
  EXPECT_THAT(backups(), ElementsAre("20261125T094800Z", "mine"));
}

TEST_F(BackupScheduleTest, ABackupThatFailsLeavesNothingAndRemovesNothing) {
  schedule_.round(now_);
  fs::remove(spec_path(run_));
  EXPECT_THROW((void)schedule_.round(now_ + 6h), NotFound);
  EXPECT_THAT(backups(), ElementsAre("20261125T094800Z"));
}

}  // namespace
}  // namespace allot::aggregator
