#include "aggregator/history_restore.h"

#include <gmock/gmock.h>

#include "aggregator/history_backup.h"
#include "aggregator/history_check.h"
#include "aggregator/history_format.h"
#include "aggregator/history_mark.h"
#include "aggregator/run_directory.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::IsEmpty;
using testing::ThrowsMessage;
namespace fs = std::filesystem;

constexpr Timestamp kAfterLoss{Duration{1'700'000'900'000}};

// A run that was backed up after its first episode and lost its log after six, in its second epoch.
class HistoryRestoreTest : public testing::Test {
 protected:
  HistoryRestoreTest() {
    fs::create_directories(run_);
    write_file_atomically(spec_path(run_), wire::to_json(spec_));
    driver_.hello("a");
    answer_one();
    back_up(backup_);
    driver_.crash();
    driver_.hello("a");
    for (int i = 0; i < 5; ++i) answer_one();
    fs::copy_file(driver_.file(), history_path(run_));
    fs::copy_file(mark_path(driver_.file()), mark_path(history_path(run_)));
  }
  void answer_one() { driver_.answer("a", result_of(driver_.leases("a", 1).at(0), 2)); }
  void back_up(const fs::path& directory) const {
    fs::create_directories(directory);
    backup_history(driver_.file(), history_path(directory));
    write_file_atomically(spec_path(directory), wire::to_json(spec_));
  }
  std::unique_ptr<History> open() const {
    return open_sqlite_history(history_path(run_), "test", kAfterLoss);
  }

  wire::RunSpec spec_ = example_spec();
  TemporaryDirectory directory_;
  fs::path run_ = directory_.path() / "run", backup_ = directory_.path() / "backup";
  CoreDriver driver_{Storage::kSqlite, spec_};
};

TEST_F(HistoryRestoreTest, TheRunGoesOnFromTheBackupInAnEpochOfItsOwn) {
  EXPECT_THROW((void)open(), HistoryBehindMark);
  const RestoredHistory restored = restore_history(backup_, run_);
  EXPECT_EQ(restored.episodes, 1);
  EXPECT_EQ(restored.episodes_lost, 5);
  EXPECT_EQ(restored.next_epoch, 3);
  EXPECT_EQ(read_file(*restored.put_aside / "history.sqlite"), read_file(driver_.file()))
      << "nothing is deleted";
  const auto history = open();
  EXPECT_EQ(history->epoch(), 3) << "epoch 2 is that of the time that is lost";
  EXPECT_EQ(history->counters().accepted(), 1);
  Core core(spec_, policy::make_policy(policy_config(spec_)), *history, kAfterLoss);
  // A worker of the lost time holds a lease that this history may grant to somebody else.
  const auto answer_to = [&](int64_t epoch) {
    wire::Envelope message;
    message.set_sender("a");
    message.set_epoch(epoch);
    *message.mutable_result() = result_of(wire::Lease(), 0);
    core.receive({"peer"}, wire::encode(message), kAfterLoss);
    return core.take().replies.at(0).envelope.refused().message();
  };
  EXPECT_THAT(answer_to(2), Names("hello"));
  wire::Envelope hello;
  *hello.mutable_hello() = example_hello(spec_, "a");
  core.receive({"peer"}, wire::encode(hello), kAfterLoss);
  EXPECT_EQ(core.take().replies.at(0).envelope.welcome().epoch(), 3);
  EXPECT_THAT(answer_to(2), Names("epoch 2", "epoch 3", "hello"));
  EXPECT_THAT(check_history(history_path(run_), spec_).problems, IsEmpty());
}

TEST_F(HistoryRestoreTest, ARunDirectoryThatIsGoneIsMadeAgain) {
  fs::remove_all(run_);
  const RestoredHistory restored = restore_history(backup_, run_);
  EXPECT_FALSE(restored.put_aside.has_value());
  EXPECT_FALSE(restored.episodes_lost.has_value());
  EXPECT_EQ(open()->epoch(), 2);
  EXPECT_EQ(wire::read_spec(spec_path(run_)).run_id(), spec_.run_id());
}

TEST_F(HistoryRestoreTest, WithoutAMarkTheReplacedHistorySaysWhichEpochsThereWere) {
  fs::remove(mark_path(history_path(run_)));
  fs::remove(history_path(run_));
  backup_history(driver_.file(), history_path(run_));
  restore_history(backup_, run_);
  EXPECT_EQ(open()->epoch(), 3);
}

TEST_F(HistoryRestoreTest, ABackupOfAnOlderReleaseIsBroughtUpToDate) {
  const fs::path old = directory_.path() / "old";
  fs::create_directories(old);
  fs::copy_file(fs::path(ALLOT_SOURCE_DIR) / "tests/data/history/version_3.sqlite", history_path(old));
  write_file_atomically(spec_path(old), wire::to_json(spec_));
  restore_history(old, run_);
  EXPECT_EQ(open()->epoch(), 3);
  EXPECT_THAT(check_history(history_path(run_), spec_).problems, IsEmpty());
}

TEST_F(HistoryRestoreTest, WhatCannotBeRestoredIsRefusedAndChangesNothing) {
  const std::string before = read_file(history_path(run_));
  EXPECT_THAT([&] { restore_history(directory_.path() / "none", run_); },
              ThrowsMessage<NotFound>(Names(directory_.path() / "none" / "history.sqlite")));
  EXPECT_THAT([&] { restore_history(run_, run_); }, ThrowsMessage<InvalidArgument>(Names("accept")));
  {
    const RunDirectory served(run_, spec_);
    EXPECT_THAT([&] { restore_history(backup_, run_); },
                ThrowsMessage<StorageError>(Names("another aggregator")));
  }
  Database(history_path(backup_), Database::Mode::kReadWrite).execute("UPDATE outcomes SET seconds = 9");
  EXPECT_THAT([&] { restore_history(backup_, run_); },
              ThrowsMessage<CorruptFile>(Names(history_path(backup_), "outcomes", "another backup")));
  const fs::path other = directory_.path() / "other";
  back_up(other);
  wire::RunSpec spec = spec_;
  spec.set_lease_ms(1);
  write_file_atomically(spec_path(other), wire::to_json(spec));
  EXPECT_THROW(restore_history(other, run_), Mismatch);
  EXPECT_EQ(read_file(history_path(run_)), before);
  EXPECT_THROW((void)open(), HistoryBehindMark);
}

// Each of the steps that a kill may come after: the run is refused, or goes on as before; then the restore is
// done again.
TEST_F(HistoryRestoreTest, ARestoreThatWasInterruptedIsRefusedUntilItIsDoneAgain) {
  fs::remove(history_path(run_));
  EXPECT_THROW((void)open(), HistoryBehindMark) << "the old files are away, the new one is not there";
  fs::copy_file(history_path(backup_), history_path(run_));
  EXPECT_THROW((void)open(), HistoryBehindMark) << "the new file is there without its mark";
  restore_history(backup_, run_);
  EXPECT_EQ(open()->epoch(), 3);
}

TEST_F(HistoryRestoreTest, WhatIsLeftIsAcceptedOnRequestOnly) {
  fs::remove(history_path(run_));
  fs::copy_file(history_path(backup_), history_path(run_));
  EXPECT_THROW((void)open(), HistoryBehindMark);
  const RestoredHistory accepted = accept_history(run_);
  EXPECT_EQ(accepted.episodes, 1);
  EXPECT_EQ(accepted.episodes_lost, 5);
  EXPECT_EQ(open()->epoch(), 3);
  EXPECT_TRUE(fs::exists(run_ / "history.mark.refused"));
  for (const bool empty : {false, true}) {  // nothing is left: the run begins anew
    fs::remove(history_path(run_));
    if (empty) write_file_atomically(history_path(run_), "");
    EXPECT_THROW((void)open(), HistoryBehindMark);
    EXPECT_EQ(accept_history(run_).episodes, 0);
    const auto anew = open();
    EXPECT_EQ(anew->epoch(), empty ? 5 : 4);
    EXPECT_EQ(anew->counters().accepted(), 0);
    Core core(spec_, policy::make_policy(policy_config(spec_)), *anew, kAfterLoss);
    anew->commit(core.take().records, {}, kAfterLoss);
  }
  EXPECT_THAT([&] { accept_history(directory_.path()); }, ThrowsMessage<NotFound>(Names("history.sqlite")));
}

}  // namespace
}  // namespace allot::aggregator
