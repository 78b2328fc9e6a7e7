// The files that SQLite keeps a history in.
#pragma once

#include <array>
#include <filesystem>

namespace allot::aggregator {

// What was written since the last checkpoint.
inline std::filesystem::path log_path(const std::filesystem::path& history) {
  return history.string() + "-wal";
}

// The history itself first: a run without it is refused, whereas one without its log would pass for an
// earlier state. The last is what its readers and its writer share.
inline std::array<std::filesystem::path, 3> history_files(const std::filesystem::path& history) {
  return {history, log_path(history), history.string() + "-shm"};
}

}  // namespace allot::aggregator
