// Turns the rows of the history back into records: one entry per table, shared by the replay and the check.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "aggregator/records.h"
#include "aggregator/sqlite.h"

namespace allot::aggregator {

struct HistoryTable {
  const char* name;
  const char* key;  // column that identifies a row in messages
  // A query whose columns are seq first and then the key. Every table is written in order of seq, so the
  // order by its key is also the order by seq.
  const char* query;
  // Overwrites `record` with the current row and reuses its memory, so that reading all rows allocates almost
  // nothing. Throws CorruptFile where the row contradicts its format.
  void (*read)(const Statement& row, Record* record);
};

// The tables of records that a history of this schema version has.
std::span<const HistoryTable> history_tables(int64_t schema_version);

// Hands all records to `visit`, on the calling thread, in the order in which they were written. `database`
// must not be used until it returns, because a separate thread reads rows ahead.
void replay_tables(const Database& database, int64_t schema_version,
                   const std::function<void(const Record&)>& visit);

}  // namespace allot::aggregator
