#include "aggregator/history_check.h"

#include <fmt/format.h>

#include <functional>
#include <memory>

#include "aggregator/core.h"
#include "aggregator/history.h"
#include "aggregator/history_chain.h"
#include "aggregator/history_format.h"
#include "aggregator/history_mark.h"
#include "aggregator/history_tables.h"
#include "aggregator/run_spec.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

const char* const kRestore = "restore a copy (allot history backup makes them), or start a new run";
const char* const kBehind =
    "restore the newest backup (allot history restore), or go on without what is missing (allot history accept)";
const char* const kDamaged =
    "stop the aggregator and copy the run directory before anything else; then restore a copy of the file";

// Queries for rows that contradict docs/history-schema.md. Each gives the row and what is wrong with it.
struct Rule {
  int64_t since;  // schema version
  const char* query;
};

constexpr Rule kRules[] = {
    {1,
     "SELECT 'lease_ends, lease ' || lease, 'the lease was never granted' FROM lease_ends "
     "WHERE lease NOT IN (SELECT lease FROM leases)"},
    {1,
     "SELECT 'leases, lease ' || lease, 'its episode ' || episode || ' was never asked' FROM leases "
     "WHERE episode NOT IN (SELECT episode FROM episodes)"},
    {1,
     "SELECT 'outcomes, episode ' || o.episode, 'it is told by lease ' || o.lease || ', which is of "
     "episode ' || ifnull(l.episode, 'none') FROM outcomes o LEFT JOIN leases l USING(lease) "
     "WHERE l.episode IS NOT o.episode"},
    {1,
     "SELECT 'outcomes, episode ' || o.episode, 'it has ' || length(o.correct) || ' answers to ' || "
     "(length(e.questions) - length(replace(e.questions, ',', '')) + 1) || ' questions' "
     "FROM outcomes o JOIN episodes e USING(episode) "
     "WHERE length(o.correct) != length(e.questions) - length(replace(e.questions, ',', '')) + 1"},
    {1,
     "SELECT 'set_asides, episode ' || episode, 'it has an outcome too' FROM set_asides "
     "WHERE episode IN (SELECT episode FROM outcomes)"},
    {1,
     "SELECT 'lease_ends, lease ' || lease, 'it ends ' || count(*) || ' times' FROM lease_ends "
     "GROUP BY lease HAVING count(*) > 1"},
    {2,
     "SELECT 'kept_answers, episode ' || k.episode, 'they are of lease ' || k.lease || ', which is of "
     "episode ' || ifnull(l.episode, 'none') FROM kept_answers k LEFT JOIN leases l USING(lease) "
     "WHERE l.episode IS NOT k.episode"},
};

// Since the epochs carry seals, a restore may leave numbers out.
constexpr const char* kEpochsInSequence =
    "SELECT 'epochs, epoch ' || epoch, 'its number is not 1 above the one before' FROM epochs "
    "WHERE epoch != (SELECT count(*) FROM epochs AS e WHERE e.epoch <= epochs.epoch)";

// Counters that can be checked against a number of rows. Where `exact` is false the counter also counts
// events that leave no row, so the rows are only a lower bound. Other counters (duplicates, unreadable
// messages) leave no rows at all.
struct CounterRule {
  int64_t since;
  const char* name;
  const char* query;
  bool exact;
};

constexpr CounterRule kCounterRules[] = {
    {1, "granted", "SELECT count(*) FROM leases", true},
    {1, "accepted", "SELECT count(*) FROM outcomes WHERE verdict = 'accepted'", true},
    {1, "late", "SELECT count(*) FROM outcomes WHERE verdict = 'late'", true},
    {1, "stale", "SELECT count(*) FROM outcomes WHERE verdict = 'stale'", false},
    {1, "expired", "SELECT count(*) FROM lease_ends WHERE ending IN ('expired', 'crashed')", true},
    {1, "released", "SELECT count(*) FROM lease_ends WHERE ending IN ('released', 'preempted')", true},
    {1, "failed", "SELECT count(*) FROM lease_ends WHERE ending = 'failed'", false},
    {1, "rejected", "SELECT count(*) FROM lease_ends WHERE ending = 'rejected'", false},
    {2, "preempted", "SELECT count(*) FROM lease_ends WHERE ending = 'preempted'", true},
    {2, "set_aside", "SELECT count(*) FROM set_asides WHERE kind != 'withdrawn'", true},
    {2, "poisoned", "SELECT count(*) FROM set_asides WHERE kind = 'poisoned'", true},
};

class Checker {
 public:
  Checker(const std::filesystem::path& file, const wire::RunSpec& spec)
      : file_(file),
        spec_(spec),
        database_(file, Database::Mode::kReadOnly),
        snapshot_(&database_, "BEGIN") {}

  HistoryReport run() {
    report_.schema_version = check_schema_version(database_);
    // The rows of a damaged file mean nothing, so they are not checked.
    const bool sound = attempt("file", kDamaged, [&] { check_file(); }) && report_.problems.empty();
    if (!sound) return std::move(report_);
    report_.epochs = Statement(database_, "SELECT count(*) FROM epochs").value();
    for (const HistoryTable& table : history_tables(report_.schema_version)) {
      attempt(table.name, kDamaged, [&] { check_rows(table); });
    }
    attempt("numbering", kDamaged, [&] { check_numbering(); });
    for (const Rule& rule : kRules) {
      if (rule.since <= report_.schema_version) attempt("references", kDamaged, [&] { apply(rule.query); });
    }
    attempt("counters", kDamaged, [&] { check_counters(); });
    attempt("chain", kRestore, [&] { check_stored_values(); });
    attempt("replay", kRestore, [&] { replay(); });
    return std::move(report_);
  }

 private:
  void add(std::string where, std::string what, std::string remedy) {
    report_.problems.push_back({std::move(where), std::move(what), std::move(remedy)});
  }

  // Returns false, and adds the error to the problems, when `part` throws one.
  bool attempt(const char* where, const char* remedy, const std::function<void()>& part) {
    try {
      part();
      return true;
    } catch (const Error& error) {
      add(where, error.what(), remedy);
      return false;
    }
  }

  void check_file() {
    Statement lines(database_, "PRAGMA integrity_check");
    while (lines.step()) {
      if (lines.text(0) != "ok") add("file", "SQLite finds: " + std::string(lines.text(0)), kDamaged);
    }
  }

  void check_rows(const HistoryTable& table) {
    Statement rows(database_, table.query);
    Record record;
    int64_t count = 0, last_seq = 0;
    while (rows.step()) {
      ++count;
      const auto where = [&] { return fmt::format("{}, {} {}", table.name, table.key, rows.integer(1)); };
      try {
        table.read(rows, &record);
      } catch (const CorruptFile& error) {
        add(where(), error.what(), kRestore);
      }
      if (rows.integer(0) <= last_seq) {
        add(where(), fmt::format("it has seq {} after seq {} in the row before", rows.integer(0), last_seq),
            kRestore);
      }
      last_seq = rows.integer(0);
    }
    report_.rows.emplace_back(table.name, count);
  }

  // seq numbers all rows of all tables: 1, 2, … without a gap, each once.
  void check_numbering() {
    std::string all;
    for (const HistoryTable& table : history_tables(report_.schema_version)) {
      all += fmt::format("{}SELECT seq, '{}' AS name FROM {}", all.empty() ? "" : " UNION ALL ", table.name,
                         table.name);
    }
    Statement rows(database_, "SELECT seq, name FROM (" + all + ") ORDER BY seq");
    int64_t expected = 1;
    while (rows.step()) {
      const int64_t seq = rows.integer(0);
      if (seq > expected) {
        add(std::string(rows.text(1)),
            fmt::format("rows with seq {} to {} are missing before seq {}", expected, seq - 1, seq),
            kRestore);
      } else if (seq < expected) {
        add(std::string(rows.text(1)), fmt::format("seq {} is there twice", seq), kRestore);
      }
      expected = seq + 1;
    }
  }

  // Whether every value is the one that was written.
  void check_stored_values() {
    if (report_.schema_version >= kChainSince) {
      check_chain(database_, [&](std::string where, std::string what) {
        add(std::move(where), std::move(what), kRestore);
      });
      return;
    }
    apply(kEpochsInSequence);
    if (Statement(database_, "SELECT count(*) FROM sqlite_schema WHERE name = 'chain'").value() > 0) {
      add("file",
          fmt::format("its schema version is {}, but it has the checksum chain of version {}",
                      report_.schema_version, kChainSince),
          kRestore);
    }
  }

  void apply(const char* query) {
    Statement rows(database_, query);
    while (rows.step()) add(std::string(rows.text(0)), std::string(rows.text(1)), kRestore);
  }

  void check_counters() {
    const wire::Counters counters = read_counters(database_);
    for (const CounterRule& rule : kCounterRules) {
      if (rule.since > report_.schema_version) continue;
      const auto* field = wire::Counters::descriptor()->FindFieldByName(rule.name);
      const int64_t counted = wire::Counters::GetReflection()->GetInt64(counters, field);
      const int64_t rows = Statement(database_, rule.query).value();
      if (rule.exact ? counted == rows : counted >= rows) continue;
      add(fmt::format("counters, {}", rule.name),
          fmt::format("it is {}, the tables have {} such rows{}", counted, rows,
                      rule.exact ? "" : " at least"),
          "only the rows matter, so the run can go on unharmed; the counter was changed by hand");
    }
  }

  void replay();

  std::filesystem::path file_;
  const wire::RunSpec& spec_;
  Database database_;
  Transaction snapshot_;
  HistoryReport report_;
};

// A history that remembers how far its replay got.
class WatchedHistory final : public History {
 public:
  WatchedHistory(const Database& database, int64_t version) : database_(database), version_(version) {}

  int64_t epoch() const override { return 0; }
  Duration spent_before() const override { return Duration{0}; }
  wire::Counters counters() const override { return read_counters(database_); }
  void replay(const std::function<void(const Record&)>& visit) const override {
    replay_tables(database_, version_, [&](const Record& record) {
      place_ = std::visit([](const auto& one) { return place_of(one); }, record);
      visit(record);
    });
  }
  void commit(std::span<const Record>, const wire::Counters&, Timestamp) override {
    throw StorageError("a history that is being checked is not written");
  }

  // The row that was handed out last: "outcomes, episode 17".
  std::string place() const { return fmt::format("{} {}", place_.row, place_.key); }

 private:
  struct Place {
    const char* row;
    int64_t key;
  };
  static Place place_of(const EpisodeAsked& r) { return {"episodes, episode", r.episode.id.value}; }
  static Place place_of(const LeaseGranted& r) { return {"leases, lease", r.lease.value}; }
  static Place place_of(const LeaseEnded& r) { return {"lease_ends, lease", r.lease.value}; }
  static Place place_of(const EpisodeTold& r) { return {"outcomes, episode", r.episode.value}; }
  static Place place_of(const EpisodeGivenUp& r) { return {"set_asides, episode", r.episode.value}; }
  static Place place_of(const AnswersKept& r) { return {"kept_answers, episode", r.episode.value}; }
  static Place place_of(const RunControlled& r) {
    return {"steering, at_ms", r.at.time_since_epoch().count()};
  }
  static Place place_of(const VersionReached& r) { return {"versions, version", r.version}; }

  const Database& database_;
  int64_t version_;
  mutable Place place_{"replay, record", 0};
};

void Checker::replay() {
  const WatchedHistory history(database_, report_.schema_version);
  try {
    const Core core(spec_, make_learner(spec_), history, Timestamp{});
    report_.replayed = true;
    report_.policy_version = core.policy().version();
    report_.exact = core.replayed_exactly();
  } catch (const CorruptFile& error) {
    add(history.place(), error.what(), kRestore);
  }
}

}  // namespace

HistoryReport check_history(const std::filesystem::path& file, const wire::RunSpec& spec) {
  // Before the history, whose aggregator may be writing both.
  const auto mark = read_mark(file);
  if (!std::filesystem::exists(file)) throw NotFound(fmt::format("there is no history {}", file.string()));
  HistoryReport report = Checker(file, spec).run();
  if (const auto missing = mark ? missing_before(file, *mark) : std::nullopt) {
    report.problems.push_back({mark_path(file).filename().string(), *missing, kBehind});
  }
  return report;
}

}  // namespace allot::aggregator
