#include "aggregator/history_chain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <set>
#include <vector>

#include "aggregator/merged_rows.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

constexpr size_t kHashAtOnce = size_t{64} << 10;

// The columns are named because a later version may add some, which the links from before do not cover.
struct ChainedTable {
  const char* name;
  const char* order;  // the primary key, in whose order the rows were written
  const char* columns;
};

constexpr std::array kChained{
    ChainedTable{"episodes", "episode",
                 "episode, seq, asked_ms, stage, label, question_group, samples, questions, sampling_seed, "
                 "policy_version, log_prob, kind"},
    ChainedTable{"leases", "lease", "lease, seq, granted_ms, episode, attempt, worker"},
    ChainedTable{"lease_ends", "seq", "seq, lease, ended_ms, ending, reason"},
    ChainedTable{"outcomes", "seq",
                 "seq, episode, lease, told_ms, verdict, told_version, worker, seconds, correct, finish, "
                 "prompt_tokens, output_tokens, score"},
    ChainedTable{"set_asides", "seq", "seq, episode, at_ms, kind, reason"},
    ChainedTable{"kept_answers", "seq",
                 "seq, episode, lease, kept_ms, worker, seconds, questions, correct, finish, prompt_tokens, "
                 "output_tokens, score"},
    ChainedTable{"steering", "seq", "seq, at_ms, action, value, who"},
    ChainedTable{"versions", "version",
                 "version, seq, at_ms, shares, recommended, entropy, layer_name, scalars, digest"}};

// All rows of all tables in the order of seq, each as an index of kChained.
MergedRows chained_rows(const Database& database) {
  std::vector<std::string> queries;
  for (const ChainedTable& table : kChained) {
    queries.push_back(
        fmt::format("SELECT seq, {} FROM {} ORDER BY {}", table.columns, table.name, table.order));
  }
  return {database, queries};
}

// Adds the next row, which is of this table, to `hash` and goes on to the one after it.
void take(size_t table, MergedRows* rows, RowHash* hash) {
  hash->add_row(kChained[table].name, rows->row(table), 1);
  rows->step(table);
}

// What SQLite's ANALYZE adds is no part of the history.
Sha256Digest schema_digest(const Database& database) {
  RowHash hash({});
  Statement rows(database,
                 "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_stat%' "
                 "ESCAPE '\\' ORDER BY type, name");
  while (rows.step()) hash.add_row("sqlite_schema", rows, 0);
  return hash.finish();
}

void append_link(Database* database, int64_t seq, const Sha256Digest& digest) {
  Statement(*database, "INSERT INTO chain VALUES(?, ?)").run(seq, std::span(digest));
}

}  // namespace

RowHash::RowHash(const Sha256Digest& before) {
  hash_.update({reinterpret_cast<const char*>(before.data()), before.size()});
}

void RowHash::number(uint64_t value) {
  char bytes[8];
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xFF);
    value >>= 8;
  }
  buffer_.append(bytes, sizeof bytes);
}

void RowHash::bytes(std::string_view value) {
  number(value.size());
  buffer_ += value;
}

void RowHash::row(std::string_view table, size_t columns) {
  if (buffer_.size() >= kHashAtOnce) {
    hash_.update(buffer_);
    buffer_.clear();
  }
  bytes(table);
  number(columns);
}

void RowHash::add(int64_t value) {
  kind(SQLITE_INTEGER);
  number(static_cast<uint64_t>(value));
}

void RowHash::add(double value) {
  kind(SQLITE_FLOAT);
  // SQLite stores -0 as 0.
  number(std::bit_cast<uint64_t>(value == 0 ? 0.0 : value));
}

void RowHash::add(std::string_view value) {
  kind(SQLITE_TEXT);
  bytes(value);
}

void RowHash::add(const std::optional<std::string>& value) {
  if (value) return add(std::string_view(*value));
  kind(SQLITE_NULL);
}

void RowHash::add_row(std::string_view table, const Statement& query, int first) {
  row(table, static_cast<size_t>(query.columns() - first));
  for (int column = first; column < query.columns(); ++column) {
    switch (query.type(column)) {
      case SQLITE_INTEGER:
        add(query.integer(column));
        break;
      case SQLITE_FLOAT:
        add(query.real(column));
        break;
      case SQLITE_NULL:
        kind(SQLITE_NULL);
        break;
      default:
        kind(query.type(column));
        bytes(query.text(column));
        break;
    }
  }
}

Sha256Digest RowHash::finish() {
  hash_.update(buffer_);
  buffer_.clear();
  return hash_.finish();
}

namespace {

Sha256Digest digest_of(std::string_view bytes) {
  Sha256Digest digest{};
  // A digest of another length fits no rows, and neither does this.
  if (bytes.size() == digest.size()) std::ranges::copy(bytes, digest.begin());
  return digest;
}

}  // namespace

ChainEnd chain_end(const Database& database) {
  Statement last(database, "SELECT seq, digest FROM chain ORDER BY seq DESC LIMIT 1");
  if (!last.step()) {
    throw CorruptFile(fmt::format("history {} has no checksum chain; restore a copy or start a new run",
                                  database.file().string()));
  }
  return {last.integer(0), digest_of(last.text(1))};
}

std::optional<Sha256Digest> link_at(const Database& database, int64_t seq) {
  Statement link(database, "SELECT digest FROM chain WHERE seq = ?");
  link.bind(seq);
  if (!link.step()) return std::nullopt;
  return digest_of(link.text(0));
}

CounterValues stored_counters(const Database& database) {
  CounterValues counters;
  Statement rows(database, "SELECT name, value FROM counters");
  while (rows.step()) counters[std::string(rows.text(0))] = rows.integer(1);
  return counters;
}

std::string counters_digest(const CounterValues& counters) {
  RowHash hash({});
  for (const auto& [name, value] : counters) {
    hash.row("counters", 2);
    hash.add(std::string_view(name));
    hash.add(value);
  }
  return hex(hash.finish());
}

std::string seal(const EpochRow& row, std::string_view seal_before) {
  RowHash hash({});
  hash.row("epochs", 7);
  hash.add(seal_before);
  for (const int64_t value : {row.epoch, row.started_ms, row.last_ms}) hash.add(value);
  hash.add(std::string_view(row.build));
  hash.add(row.last_seq);
  hash.add(std::string_view(row.counters_digest));
  return hex(hash.finish());
}

namespace {

// Goes through the epochs in order, with the seal that the row before has.
template <class Visit>
std::string for_each_sealed(const Database& database, int64_t below_epoch, Visit visit) {
  Statement rows(database,
                 "SELECT epoch, started_ms, last_ms, build, last_seq, counters_digest, seal FROM epochs "
                 "WHERE epoch < ? ORDER BY epoch");
  rows.bind(below_epoch);
  RowHash unsealed({});
  std::optional<std::string> before;
  bool any = false;
  while (rows.step()) {
    if (rows.type(6) == SQLITE_NULL && !before) {
      any = true;
      unsealed.add_row("epochs", rows, 0);
      continue;
    }
    if (!before) before = any ? hex(unsealed.finish()) : "";
    visit(EpochRow{rows.integer(0), rows.integer(1), rows.integer(2), std::string(rows.text(3)),
                   rows.integer(4), std::string(rows.text(5))},
          *before, std::string(rows.text(6)));
    before = rows.text(6);
  }
  if (!before) before = any ? hex(unsealed.finish()) : "";
  return *before;
}

std::string seal_below(const Database& database, int64_t epoch) {
  return for_each_sealed(database, epoch, [](const auto&...) {});
}

void seal_newest_epoch(Database* database, int64_t last_seq) {
  Statement newest(*database,
                   "SELECT epoch, started_ms, last_ms, build FROM epochs ORDER BY epoch DESC LIMIT 1");
  if (!newest.step()) return;
  const EpochRow row{newest.integer(0), newest.integer(1),
                     newest.integer(2), std::string(newest.text(3)),
                     last_seq,          counters_digest(stored_counters(*database))};
  Statement(*database, "UPDATE epochs SET last_seq = ?, counters_digest = ?, seal = ? WHERE epoch = ?")
      .run(row.last_seq, std::string_view(row.counters_digest),
           std::string_view(seal(row, seal_below(*database, row.epoch))), row.epoch);
}

}  // namespace

std::string newest_seal(const Database& database) {
  return seal_below(database, std::numeric_limits<int64_t>::max());
}

void begin_chain(Database* database) {
  database->execute("DELETE FROM chain");
  const Sha256Digest first = schema_digest(*database);
  append_link(database, 0, first);
  RowHash hash(first);
  int64_t last = 0;
  for (MergedRows rows = chained_rows(*database); const auto table = rows.next();) {
    last = rows.seq(*table);
    take(*table, &rows, &hash);
  }
  if (last > 0) append_link(database, last, hash.finish());
  seal_newest_epoch(database, last);
}

namespace {

using Found = std::function<void(std::string where, std::string what)>;

// Successive links that do not fit are reported together.
class MisfitRange {
 public:
  explicit MisfitRange(const Found& found) : found_(found) {}
  void add(int64_t first, int64_t last, const std::set<std::string>& tables) {
    if (links_ == 0) first_ = first;
    ++links_;
    last_ = last;
    tables_.insert(tables.begin(), tables.end());
  }
  void end() {
    if (links_ > 0) {
      found_(
          fmt::format("seq {} to {} ({})", first_, last_, fmt::join(tables_, ", ")),
          fmt::format("{} link{} of the checksum chain fit{} neither these rows nor the link before: a row "
                      "was changed, added or removed since it was written, or the link itself",
                      links_, links_ == 1 ? "" : "s", links_ == 1 ? "s" : ""));
    }
    links_ = 0;
    tables_.clear();
  }

 private:
  const Found& found_;
  int64_t links_ = 0, first_ = 0, last_ = 0;
  std::set<std::string> tables_;
};

void check_links(const Database& database, const Found& found) {
  Statement links(database, "SELECT seq, digest FROM chain ORDER BY seq");
  if (!links.step() || links.integer(0) != 0) {
    return found("chain", "its first link, seq 0, is missing; a chain begins with the tables' definitions");
  }
  Sha256Digest before = schema_digest(database);
  if (before != digest_of(links.text(1))) {
    found("sqlite_schema", "the definitions of the tables are not those that the chain begins with");
  }
  before = digest_of(links.text(1));
  MergedRows rows = chained_rows(database);
  MisfitRange misfits(found);
  int64_t last = 0;
  std::set<std::string> tables;
  while (links.step()) {
    const int64_t seq = links.integer(0);
    const Sha256Digest stored = digest_of(links.text(1));
    RowHash hash(before);
    tables.clear();
    for (std::optional<size_t> table; (table = rows.next()) && rows.seq(*table) <= seq;) {
      tables.insert(kChained[*table].name);
      take(*table, &rows, &hash);
    }
    // A link that does not fit is taken for good by the next one, so that each tells of its own rows.
    if (hash.finish() == stored) {
      misfits.end();
    } else {
      misfits.add(last + 1, seq, tables);
    }
    before = stored;
    last = seq;
  }
  misfits.end();
  if (const auto table = rows.next()) {
    found(fmt::format("{}, seq {}", kChained[*table].name, rows.seq(*table)),
          fmt::format("the chain ends with seq {}: no link covers the rows after it", last));
  }
}

void check_seals(const Database& database, const Found& found) {
  EpochRow newest;
  for_each_sealed(
      database, std::numeric_limits<int64_t>::max(),
      [&](const EpochRow& row, const std::string& before, const std::string& stored) {
        newest = row;
        if (stored == seal(row, before)) return;
        found(fmt::format("epochs, epoch {}", row.epoch),
              fmt::format(
                  "its seal '{:.16}…' does not fit its values and the seal before: this row, or an epoch "
                  "before it, was changed or removed",
                  stored));
      });
  if (newest.epoch == 0) {
    if (Statement(database, "SELECT count(*) FROM epochs").value() > 0) {
      found("epochs", "none of them has a seal");
    }
    return;
  }
  if (const int64_t end = Statement(database, "SELECT max(seq) FROM chain").value(); end != newest.last_seq) {
    found("chain", fmt::format("it ends with seq {}; epoch {} has written up to seq {}", end, newest.epoch,
                               newest.last_seq));
  }
  if (counters_digest(stored_counters(database)) != newest.counters_digest) {
    found("counters", fmt::format("they are not those of the last commit of epoch {}: their digest differs",
                                  newest.epoch));
  }
}

}  // namespace

void check_chain(const Database& database, const Found& found) {
  check_links(database, found);
  check_seals(database, found);
}

}  // namespace allot::aggregator
