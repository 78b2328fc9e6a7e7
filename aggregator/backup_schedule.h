// Backups of a run on a schedule, in its directory backups/, while its aggregator goes on.
#pragma once

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace allot::aggregator {

std::filesystem::path backups_path(const std::filesystem::path& run_directory);

struct BackupOptions {
  std::filesystem::path run_directory;
  Duration every{0};
  int kept = 7;  // the newest; older ones are removed once a newer one is complete
};

// Decides and carries out, without a clock. Which backups there are is read from the directory, so that a
// restart begins no new count.
class BackupSchedule {
 public:
  explicit BackupSchedule(BackupOptions options);

  // Makes a backup, backups/20261125T084800Z with history.sqlite and spec.json, when the newest is older than
  // the period or there is none; the name is the time in UTC. Returns when the next is due. Throws
  // StorageError, also when the disk has less room than twice the history: a backup must not end the run.
  Timestamp round(Timestamp now);

 private:
  void make(const std::string& name) const;
  void remove_old() const;

  BackupOptions options_;
};

// Follows a schedule on a thread of its own. What fails is logged and tried again after a while.
class BackupKeeper {
 public:
  explicit BackupKeeper(BackupOptions options);

 private:
  void work(const std::stop_token& stop);

  BackupSchedule schedule_;
  std::jthread thread_;
};

}  // namespace allot::aggregator
