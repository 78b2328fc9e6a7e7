// The checksum chain of a history: one link per commit, each a SHA-256 over the link before and all rows that
// the commit added, so that no stored value can change without a link that no longer fits.
// docs/history-schema.md has the bytes. It finds damage and changes by hand; whoever computes the chain anew
// can still write anything.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "aggregator/sqlite.h"
#include "base/sha256.h"

namespace allot::aggregator {

// A digest of rows, fed with one row after another.
class RowHash {
 public:
  // Begins with `before`, the digest of all that was written earlier.
  explicit RowHash(const Sha256Digest& before);

  // The next row, whose `columns` values follow in the order of the table's columns.
  void row(std::string_view table, size_t columns);
  void add(int64_t value);
  void add(double value);
  void add(std::string_view value);
  void add(const std::optional<std::string>& value);
  // The current row of `query` from its column `first` on.
  void add_row(std::string_view table, const Statement& query, int first);

  Sha256Digest finish();

 private:
  void kind(int type) { buffer_ += static_cast<char>(type); }
  void number(uint64_t value);
  void bytes(std::string_view value);

  Sha256 hash_;
  std::string buffer_;  // what is not hashed yet: many short pieces at once cost less
};

// What the last link says: it covers the records up to `seq`.
struct ChainEnd {
  int64_t seq = 0;
  Sha256Digest digest{};
};

// Begins the chain anew: a first link over the tables' definitions, and one over all rows that are there.
void begin_chain(Database* database);
// The last link of the chain. Throws CorruptFile when there is none.
ChainEnd chain_end(const Database& database);
// The link that ends with record `seq`; none when no commit ended there.
std::optional<Sha256Digest> link_at(const Database& database, int64_t seq);

// `epochs` and `counters` have values that each commit changes. The row of an epoch therefore carries a
// digest of the counters at its last commit, and a seal over its own values and the seal of the row before.
using CounterValues = std::map<std::string, int64_t>;
CounterValues stored_counters(const Database& database);
std::string counters_digest(const CounterValues& counters);

struct EpochRow {
  int64_t epoch = 0, started_ms = 0, last_ms = 0;
  std::string build;
  int64_t last_seq = 0;  // of the last record when the epoch last committed
  std::string counters_digest;
};
std::string seal(const EpochRow& row, std::string_view seal_before);
// What the next epoch takes for the seal before its own: that of the newest row, or a digest of the rows from
// before there were seals.
std::string newest_seal(const Database& database);

// Computes chain and seals anew from the rows and hands every contradiction to `found`: where ("seq 17 to 19
// (outcomes)") and what.
void check_chain(const Database& database,
                 const std::function<void(std::string where, std::string what)>& found);

}  // namespace allot::aggregator
