#include "aggregator/backup_schedule.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "aggregator/history_backup.h"
#include "aggregator/history_files.h"
#include "aggregator/run_directory.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace allot::aggregator {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr Duration kTryAgainAfter = 10min;
constexpr const char* kNameFormat = "%Y%m%dT%H%M%SZ";
constexpr const char* kPartial = ".partial";

std::string name_of(Timestamp time) {
  return fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
}

// Nothing for a name that is no time.
std::optional<Timestamp> time_of(const std::string& name) {
  std::tm parts{};
  const char* const end = ::strptime(name.c_str(), kNameFormat, &parts);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::chrono::time_point_cast<Duration>(std::chrono::system_clock::from_time_t(::timegm(&parts)));
}

// The complete backups, oldest first.
std::vector<Timestamp> made(const fs::path& directory) {
  std::vector<Timestamp> times;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (const auto time = time_of(entry.path().filename().string())) times.push_back(*time);
  }
  std::ranges::sort(times);
  return times;
}

uintmax_t size_of(const fs::path& file) {
  std::error_code error;
  const uintmax_t size = fs::file_size(file, error);
  return error ? 0 : size;
}

}  // namespace

fs::path backups_path(const fs::path& run_directory) {
  return run_directory / "backups";
}

BackupSchedule::BackupSchedule(BackupOptions options) : options_(std::move(options)) {}

Timestamp BackupSchedule::round(Timestamp now) {
  const std::vector<Timestamp> times = made(backups_path(options_.run_directory));
  // A clock that was set back must not stop the backups until it gets there again.
  if (!times.empty() && times.back() <= now && now < times.back() + options_.every) {
    return times.back() + options_.every;
  }
  make(name_of(now));
  remove_old();
  return now + options_.every;
}

void BackupSchedule::make(const std::string& name) const {
  const fs::path& run = options_.run_directory;
  const fs::path directory = backups_path(run), partial = directory / (name + kPartial);
  std::error_code error;
  // What a process left that was killed.
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == kPartial) fs::remove_all(entry.path(), error);
  }
  fs::create_directories(partial, error);
  if (error) throw StorageError(fmt::format("cannot make {}: {}", partial.string(), error.message()));
  const uintmax_t needed = 2 * (size_of(history_path(run)) + size_of(log_path(history_path(run))));
  const fs::space_info space = fs::space(directory, error);
  if (!error && space.available < needed) {
    fs::remove_all(partial, error);
    throw StorageError(
        fmt::format("no backup is made: {} has {} MiB of room, {} MiB (twice the history) are expected; "
                    "make room or keep fewer backups",
                    directory.string(), space.available >> 20, (needed >> 20) + 1));
  }
  try {
    const int64_t bytes = backup_history(history_path(run), history_path(partial));
    write_file_atomically(spec_path(partial), read_file(spec_path(run)));
    fs::rename(partial, directory / name);
    spdlog::info("backup {} holds the run as it was now, {} bytes", (directory / name).string(), bytes);
  } catch (const fs::filesystem_error& failure) {
    fs::remove_all(partial, error);
    throw StorageError(fmt::format("cannot finish backup {}: {}", partial.string(), failure.what()));
  } catch (const Error&) {
    fs::remove_all(partial, error);
    throw;
  }
}

void BackupSchedule::remove_old() const {
  const fs::path directory = backups_path(options_.run_directory);
  const std::vector<Timestamp> times = made(directory);
  const auto kept = static_cast<size_t>(options_.kept);
  std::error_code error;
  for (size_t i = 0; i + kept < times.size(); ++i) {
    fs::remove_all(directory / name_of(times[i]), error);
    if (error)
      spdlog::warn("cannot remove old backup {}: {}", (directory / name_of(times[i])).string(),
                   error.message());
  }
}

BackupKeeper::BackupKeeper(BackupOptions options)
    : schedule_(std::move(options)), thread_([this](const std::stop_token& stop) { work(stop); }) {}

void BackupKeeper::work(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any wake;
  while (!stop.stop_requested()) {
    const auto now = std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
    Timestamp next;
    try {
      next = schedule_.round(now);
    } catch (const std::exception& error) {
      // Also what the file system throws: no failed backup may end the run.
      spdlog::warn("{}; tried again in {} minutes", error.what(), kTryAgainAfter / 1min);
      next = now + kTryAgainAfter;
    }
    std::unique_lock lock(mutex);
    wake.wait_for(lock, stop, next - now, [] { return false; });
  }
}

}  // namespace allot::aggregator
