// How the rows of the history become records again: one entry per table, shared by the replay and the check.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "aggregator/records.h"
#include "aggregator/sqlite.h"

namespace allot::aggregator {

struct HistoryTable {
  const char* name;
  const char* key;  // column that names a row to people
  // Gives seq first and then the key. Every table is written in order of seq, so its walk along the key is a
  // walk along seq.
  const char* query;
  // Overwrites `record` with the present row; what it holds already is reused, so a walk allocates next to
  // nothing. Throws CorruptFile where the row contradicts its format.
  void (*read)(const Statement& row, Record* record);
};

// The tables of records that a history of this schema version has.
std::span<const HistoryTable> history_tables(int64_t schema_version);

// Hands all records to `visit`, on the calling thread, in the order of writing. Until it returns `database`
// is not to be used: rows are read ahead on a thread of its own.
void replay_tables(const Database& database, int64_t schema_version,
                   const std::function<void(const Record&)>& visit);

}  // namespace allot::aggregator
