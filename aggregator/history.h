// The run's memory: an append-only sequence of records. A restart replays it; nothing else is stored.
// docs/history-schema.md describes tables, guarantees and costs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregator/records.h"
#include "base/clock.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

// A run's history, opened once. Opening starts a new epoch, which fences out every earlier one: the next
// commit of an earlier epoch throws StorageError and writes nothing.
class History {
 public:
  virtual ~History() = default;

  virtual int64_t epoch() const = 0;
  // Time that the earlier epochs spent on the run.
  virtual Duration spent_before() const = 0;
  // The counters as last committed.
  virtual wire::Counters counters() const = 0;

  // Hands every record to `visit` in the order of writing, without holding more than one in memory. Throws
  // CorruptFile where the stored data contradicts its format.
  virtual void replay(const std::function<void(const Record&)>& visit) const = 0;

  // Appends `records`, sets the counters and notes that this epoch was alive at `now`, all or nothing: when
  // it returns the records survive the death of the process (SQLite: of the machine). Throws StorageError.
  virtual void commit(std::span<const Record> records, const wire::Counters& counters, Timestamp now) = 0;
};

// Creates `file` when it does not exist. `build` is recorded with the epoch. Each commit ends with the mark
// of what it wrote (history_mark.h). Throws StorageError, CorruptFile (not a history; or its records are not
// those that its checksum chain ends with), HistoryBehindMark (it lacks what was acked) or Unsupported (of
// another schema version).
std::unique_ptr<History> open_sqlite_history(const std::filesystem::path& file, const std::string& build,
                                             Timestamp now);

// Opens a history for reading, as it is at this moment, even while an aggregator writes it, in any schema
// version that this release reads: it starts no epoch, upgrades nothing, and commit() is not allowed. Throws
// as open_sqlite_history does.
std::unique_ptr<const History> read_sqlite_history(const std::filesystem::path& file);

}  // namespace allot::aggregator
