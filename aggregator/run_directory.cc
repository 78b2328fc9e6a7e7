#include "aggregator/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>

#include "aggregator/history_mark.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

// is_locked() holds the lock for a moment, which must not turn an aggregator away that starts just then.
constexpr int kLockTries = 10;
constexpr auto kLockPause = std::chrono::milliseconds(20);

std::filesystem::path lock_path(const std::filesystem::path& run_directory) {
  return run_directory / "aggregator.lock";
}

}  // namespace

std::optional<bool> is_locked(const std::filesystem::path& run_directory) {
  const int file = ::open(lock_path(run_directory).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return errno == ENOENT ? std::optional(false) : std::nullopt;
  const bool free = ::flock(file, LOCK_SH | LOCK_NB) == 0;
  const int reason = errno;
  ::close(file);
  if (free) return false;
  return reason == EWOULDBLOCK ? std::optional(true) : std::nullopt;
}

std::filesystem::path spec_path(const std::filesystem::path& run_directory) {
  return run_directory / "spec.json";
}
std::filesystem::path task_path(const std::filesystem::path& run_directory) {
  return run_directory / "task.json";
}
std::filesystem::path history_path(const std::filesystem::path& run_directory) {
  return run_directory / "history.sqlite";
}
std::filesystem::path server_key_path(const std::filesystem::path& run_directory) {
  return run_directory / "server-key";
}
std::filesystem::path endpoint_path(const std::filesystem::path& run_directory) {
  return run_directory / "endpoint";
}
std::filesystem::path http_path(const std::filesystem::path& run_directory) {
  return run_directory / "http";
}
std::filesystem::path metrics_path(const std::filesystem::path& run_directory) {
  return run_directory / "metrics";
}

RunDirectory::RunDirectory(const std::filesystem::path& path, const wire::RunSpec& wanted) : path_(path) {
  lock();
  try {
    if (std::filesystem::exists(spec_path(path_))) {
      spec_ = std::make_unique<wire::RunSpec>(wire::read_spec(spec_path(path_)));
      if (const auto differences = wire::differences(*spec_, wanted); !differences.empty()) {
        throw Mismatch(fmt::format(
            "run directory {} holds a run of another spec ({}); choose another directory, or start with the "
            "options of that run",
            path_.string(), fmt::join(differences, "; ")));
      }
      // A start that ended between the two files leaves the same, so it is not refused.
      if (!std::filesystem::exists(history_path(path_)) &&
          !std::filesystem::exists(mark_path(history_path(path_)))) {
        spdlog::warn(
            "run directory {} has a spec.json and no history.sqlite: unless nothing was ever served from it, "
            "its history was removed",
            path_.string());
      }
    } else {
      if (std::filesystem::exists(history_path(path_))) {
        throw CorruptFile(fmt::format(
            "run directory {} has a history.sqlite but no spec.json; restore it or choose another directory",
            path_.string()));
      }
      if (wanted.task().has_definition()) write_file_atomically(task_path(path_), wanted.task().definition());
      write_file_atomically(spec_path(path_), wire::to_json(wanted));
      spec_ = std::make_unique<wire::RunSpec>(wanted);
    }
  } catch (...) {
    ::close(lock_file_);
    throw;
  }
}

RunDirectory::~RunDirectory() {
  ::close(lock_file_);
}

void RunDirectory::lock() {
  std::error_code error;
  std::filesystem::create_directories(path_, error);
  if (error)
    throw StorageError(fmt::format("cannot make run directory {}: {}", path_.string(), error.message()));
  const std::string file = lock_path(path_).string();
  lock_file_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_file_ < 0) throw StorageError(fmt::format("cannot open {}: {}", file, std::strerror(errno)));
  int reason = 0;
  for (int tries = 0; tries < kLockTries; ++tries) {
    if (::flock(lock_file_, LOCK_EX | LOCK_NB) == 0) return;
    reason = errno;
    if (reason != EWOULDBLOCK) break;
    std::this_thread::sleep_for(kLockPause);
  }
  ::close(lock_file_);
  if (reason != EWOULDBLOCK)
    throw StorageError(fmt::format("cannot lock {}: {}", file, std::strerror(reason)));
  throw StorageError(fmt::format(
      "another aggregator works on run directory {}; stop it or choose another directory", path_.string()));
}

}  // namespace allot::aggregator
