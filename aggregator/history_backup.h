// A copy of a history while its aggregator writes it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace allot::aggregator {

// Copies the history at `from` as it is at one moment to the file `to`, by SQLite's backup interface:
// committed rows that are still in the log are in the copy, and nobody waits. The copy is synced and takes
// the name `to` only when it is whole. Throws InvalidArgument when `to` exists, NotFound when `from` does
// not, StorageError (disk full, no permission) and leaves nothing behind then. Returns the bytes written.
int64_t backup_history(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace allot::aggregator
