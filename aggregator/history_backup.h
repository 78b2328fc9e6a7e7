// Copies a history, even while its aggregator writes it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace allot::aggregator {

// Copies the history at `from`, as it is at one moment, to the file `to`, through SQLite's backup interface:
// committed rows that are still in the write-ahead log are included, and nobody has to wait. The copy is
// synced and takes the name `to` only when it is complete. Throws InvalidArgument when `to` exists, NotFound
// when `from` does not, and StorageError (disk full, no permission); it leaves nothing behind when it throws.
// Returns the bytes written.
int64_t backup_history(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace allot::aggregator
