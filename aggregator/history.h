// The run's memory: an append-only sequence of records. A restart replays it; nothing else is kept. Tables,
// guarantees and costs are in docs/history-schema.md.
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

// One opening of a run's history. Opening starts a new epoch, which fences out every earlier one: their next
// commit throws StorageError and writes nothing.
class History {
 public:
  virtual ~History() = default;

  virtual int64_t epoch() const = 0;
  // Time spent by the earlier epochs.
  virtual Duration spent_before() const = 0;
  // As last committed.
  virtual wire::Counters counters() const = 0;

  // Hands every record to `visit` in the order of writing, without holding more than one in memory. Throws
  // CorruptFile where the stored data contradicts its format.
  virtual void replay(const std::function<void(const Record&)>& visit) const = 0;

  // Appends `records`, sets the counters and notes that this epoch was alive at `now`, all or nothing: when
  // it returns the records survive the death of the process (SQLite: of the machine). Throws StorageError.
  virtual void commit(std::span<const Record> records, const wire::Counters& counters, Timestamp now) = 0;
};

// `file` is made when it does not exist. `build` is noted beside the epoch. Throws StorageError, CorruptFile
// (not a history) or Unsupported (of another schema version).
std::unique_ptr<History> open_sqlite_history(const std::filesystem::path& file, const std::string& build,
                                             Timestamp now);

// A history as it is at this moment, also while an aggregator writes it, and of any schema version that
// this release reads: no epoch begins, nothing is brought up to date, and commit() is not allowed. Throws
// as open_sqlite_history does.
std::unique_ptr<const History> read_sqlite_history(const std::filesystem::path& file);

}  // namespace allot::aggregator
