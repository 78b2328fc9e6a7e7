#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "aggregator/history.h"
#include "aggregator/history_chain.h"
#include "aggregator/history_format.h"
#include "aggregator/history_mark.h"
#include "aggregator/history_tables.h"
#include "aggregator/sqlite.h"
#include "base/error.h"
#include "base/log.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {
namespace {

int64_t to_ms(Timestamp time) {
  return time.time_since_epoch().count();
}

// Opens `file` unless it lacks what `mark` says was acked.
Database open_for_writing(const std::filesystem::path& file, const std::optional<HistoryMark>& mark) {
  if (mark) refuse_what_is_behind(file, *mark);
  Database database(file, Database::Mode::kReadWrite);
  // FULL, because a worker forgets a result once it is acked: what was acked must survive a power cut. All
  // messages of one poll round share one transaction, hence one sync.
  database.execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;");
  bring_up_to_date(&database);
  check_schema_version(database);
  return database;
}

class SqliteHistory final : public History {
 public:
  SqliteHistory(const std::filesystem::path& file, const std::string& build, Timestamp now)
      : mark_(read_mark(file)), database_(open_for_writing(file, mark_)), mark_file_(file) {
    Transaction transaction(&database_, "BEGIN IMMEDIATE");
    begin_epoch(build, now);
    transaction.commit();
    counters_ = read_counters(database_);
    mark_file_.write(mark());
    mark_file_.sync();
  }

  int64_t epoch() const override { return epoch_; }
  Duration spent_before() const override { return spent_before_; }
  wire::Counters counters() const override { return counters_; }

  void replay(const std::function<void(const Record&)>& visit) const override {
    replay_tables(database_, kHistorySchemaVersion, visit);
  }

  void commit(std::span<const Record> records, const wire::Counters& counters, Timestamp now) override {
    Transaction transaction(&database_, "BEGIN IMMEDIATE");
    if (const int64_t newest = newest_epoch_.value(); newest != epoch_) {
      throw StorageError(
          fmt::format("epoch {} is fenced out of history {}: epoch {} writes it now; nothing was written",
                      epoch_, database_.file().string(), newest));
    }
    ChainEnd end = end_;
    int64_t episodes = episodes_;
    rows_.emplace(end.digest);
    for (const Record& record : records) {
      episodes += std::holds_alternative<EpisodeTold>(record);
      std::visit([&](const auto& one) { insert(++end.seq, one); }, record);
    }
    if (!records.empty()) {
      end.digest = rows_->finish();
      insert_link_.run(end.seq, std::span<const unsigned char>(end.digest));
    }
    CounterValues stored = stored_counters_;
    write_counters(counters, &stored);
    EpochRow row = row_;
    row.last_ms = to_ms(now);
    row.last_seq = end.seq;
    if (stored != stored_counters_) row.counters_digest = counters_digest(stored);
    touch_epoch_.run(row.last_ms, row.last_seq, std::string_view(row.counters_digest),
                     std::string_view(seal(row, seal_before_)), epoch_);
    transaction.commit();
    end_ = end;
    episodes_ = episodes;
    stored_counters_ = std::move(stored);
    row_ = std::move(row);
    counters_ = counters;
    mark_file_.write(mark());
  }

 private:
  void begin_epoch(const std::string& build, Timestamp now) {
    end_ = chain_end(database_);
    int64_t last = 0;
    for (const HistoryTable& table : history_tables(kHistorySchemaVersion)) {
      // The last row of each table has the table's greatest seq.
      Statement newest(database_, fmt::format("SELECT seq FROM {} ORDER BY rowid DESC LIMIT 1", table.name));
      last = std::max(last, newest.value());
    }
    if (last != end_.seq) {
      throw CorruptFile(fmt::format(
          "history {} ends with record {}, its checksum chain with record {}: rows were added or removed by "
          "hand; 'allot history check' says which, restore a copy or start a new run",
          database_.file().string(), last, end_.seq));
    }
    episodes_ = mark_ && mark_->seq == end_.seq
                    ? mark_->episodes
                    : Statement(database_, "SELECT count(*) FROM outcomes").value();
    // Beyond the mark's: after a restore, the epochs of the time that is lost are not given again.
    epoch_ = std::max(newest_epoch_.value(), mark_ ? mark_->epoch : 0) + 1;
    spent_before_ = Duration{Statement(database_, "SELECT sum(last_ms - started_ms) FROM epochs").value()};
    stored_counters_ = stored_counters(database_);
    seal_before_ = newest_seal(database_);
    row_ = {epoch_, to_ms(now), to_ms(now), build, end_.seq, counters_digest(stored_counters_)};
    warn_of_changed_counters();
    Statement(database_, "INSERT INTO epochs VALUES(?, ?, ?, ?, ?, ?, ?)")
        .run(row_.epoch, row_.started_ms, row_.last_ms, std::string_view(row_.build), row_.last_seq,
             std::string_view(row_.counters_digest), std::string_view(seal(row_, seal_before_)));
  }

  // Said now, because the next commit writes a digest of what is there. Counters decide nothing, so the run
  // goes on.
  void warn_of_changed_counters() {
    Statement newest(database_, "SELECT counters_digest FROM epochs ORDER BY epoch DESC LIMIT 1");
    if (!newest.step() || newest.text(0) == row_.counters_digest) return;
    spdlog::warn("the counters in {} are not those of the last commit: they were changed by hand or damaged",
                 database_.file().string());
  }

  HistoryMark mark() const { return {epoch_, end_.seq, episodes_, end_.digest}; }

  // Adds a row to its table and to the digest of the commit.
  template <class... Values>
  void append(Statement* insert, std::string_view table, const Values&... values) {
    rows_->row(table, sizeof...(values));
    (rows_->add(values), ...);
    insert->run(values...);
  }

  void insert(int64_t seq, const EpisodeAsked& asked) {
    const PlannedEpisode& episode = asked.episode;
    append(&insert_episode_, "episodes", episode.id.value, seq, to_ms(asked.at), name(episode.stage),
           std::string_view(episode.label), episode.group, std::string_view(list_text(episode.samples)),
           std::string_view(list_text(episode.questions)), int64_t{episode.sampling_seed},
           episode.policy_version, episode.log_prob, row_of(episode.kind).name);
  }
  void insert(int64_t seq, const LeaseGranted& granted) {
    append(&insert_lease_, "leases", granted.lease.value, seq, to_ms(granted.at), granted.episode.value,
           int64_t{granted.attempt}, std::string_view(granted.worker));
  }
  void insert(int64_t seq, const LeaseEnded& ended) {
    append(&insert_lease_end_, "lease_ends", seq, ended.lease.value, to_ms(ended.at),
           lease_end_text(ended.how), std::string_view(ended.reason));
  }
  void insert(int64_t seq, const EpisodeTold& told) {
    const ResultColumns columns = result_columns(told.results);
    append(&insert_outcome_, "outcomes", seq, told.episode.value, told.lease.value, to_ms(told.at),
           verdict_text(told.verdict), told.told_version, std::string_view(told.worker), told.seconds,
           std::string_view(columns.correct), std::string_view(columns.finish),
           std::string_view(columns.prompt_tokens), std::string_view(columns.output_tokens), columns.score);
  }
  void insert(int64_t seq, const EpisodeGivenUp& given_up) {
    append(&insert_given_up_, "set_asides", seq, given_up.episode.value, to_ms(given_up.at),
           give_up_text(given_up.kind), std::string_view(given_up.reason));
  }
  void insert(int64_t seq, const AnswersKept& kept) {
    const ResultColumns columns = result_columns(kept.results);
    std::vector<uint32_t> questions;
    for (const QuestionResult& result : kept.results) questions.push_back(result.question);
    append(&insert_kept_, "kept_answers", seq, kept.episode.value, kept.lease.value, to_ms(kept.at),
           std::string_view(kept.worker), kept.seconds, std::string_view(list_text(questions)),
           std::string_view(columns.correct), std::string_view(columns.finish),
           std::string_view(columns.prompt_tokens), std::string_view(columns.output_tokens), columns.score);
  }
  void insert(int64_t seq, const RunControlled& controlled) {
    append(&insert_control_, "steering", seq, to_ms(controlled.at), control_action_text(controlled.action),
           std::string_view(control_value(controlled)), std::string_view(controlled.by));
  }
  void insert(int64_t seq, const VersionReached& reached) {
    const double* entropy = reached.described.find("entropy");
    append(&insert_version_, "versions", reached.version, seq, to_ms(reached.at),
           std::string_view(list_text(reached.described.per_layer)),
           std::string_view(list_text(reached.recommended)), entropy == nullptr ? 0.0 : *entropy,
           std::string_view(reached.described.layer_name), std::string_view(scalars_text(reached.described)),
           std::string_view(digest_text(reached.digest)));
  }

  // Brings `stored` to what the table holds then.
  void write_counters(const wire::Counters& counters, CounterValues* stored) {
    const auto& reflection = *wire::Counters::GetReflection();
    const auto& fields = *wire::Counters::descriptor();
    for (int i = 0; i < fields.field_count(); ++i) {
      const int64_t value = reflection.GetInt64(counters, fields.field(i));
      if (value != reflection.GetInt64(counters_, fields.field(i))) {
        set_counter_.run(std::string_view(fields.field(i)->name()), value);
        (*stored)[std::string(fields.field(i)->name())] = value;
      }
    }
  }

  std::optional<HistoryMark> mark_;  // as found at the start
  Database database_;
  MarkFile mark_file_;
  int64_t epoch_ = 0;
  Duration spent_before_{0};
  wire::Counters counters_;  // as stored
  CounterValues stored_counters_;
  ChainEnd end_;          // of the last record written
  int64_t episodes_ = 0;  // outcomes written
  EpochRow row_;          // of this epoch, as stored
  std::string seal_before_;
  std::optional<RowHash> rows_;  // of the commit that is being written
  Statement newest_epoch_{database_, "SELECT ifnull(max(epoch), 0) FROM epochs"};
  Statement touch_epoch_{
      database_,
      "UPDATE epochs SET last_ms = ?, last_seq = ?, counters_digest = ?, seal = ? WHERE epoch = ?"};
  Statement insert_link_{database_, "INSERT INTO chain VALUES(?, ?)"};
  Statement set_counter_{database_, "INSERT OR REPLACE INTO counters VALUES(?, ?)"};
  Statement insert_episode_{database_, "INSERT INTO episodes VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"};
  Statement insert_lease_{database_, "INSERT INTO leases VALUES(?, ?, ?, ?, ?, ?)"};
  Statement insert_lease_end_{database_, "INSERT INTO lease_ends VALUES(?, ?, ?, ?, ?)"};
  Statement insert_outcome_{database_, "INSERT INTO outcomes VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"};
  Statement insert_given_up_{database_, "INSERT INTO set_asides VALUES(?, ?, ?, ?, ?)"};
  Statement insert_kept_{database_, "INSERT INTO kept_answers VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"};
  Statement insert_control_{database_, "INSERT INTO steering VALUES(?, ?, ?, ?, ?)"};
  Statement insert_version_{database_, "INSERT INTO versions VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)"};
};

// A history opened for reading, in any schema version that this release reads. One read transaction makes it
// show the state at one moment.
class SqliteReader final : public History {
 public:
  explicit SqliteReader(const std::filesystem::path& file)
      : database_(file, Database::Mode::kReadOnly),
        snapshot_(&database_, "BEGIN"),
        version_(check_schema_version(database_)) {}

  int64_t epoch() const override {
    return Statement(database_, "SELECT ifnull(max(epoch), 0) FROM epochs").value();
  }
  Duration spent_before() const override {
    return Duration{Statement(database_, "SELECT sum(last_ms - started_ms) FROM epochs").value()};
  }
  wire::Counters counters() const override { return read_counters(database_); }
  void replay(const std::function<void(const Record&)>& visit) const override {
    replay_tables(database_, version_, visit);
  }
  void commit(std::span<const Record>, const wire::Counters&, Timestamp) override {
    throw std::logic_error("a history that was opened for reading is written");
  }

 private:
  Database database_;
  Transaction snapshot_;
  int64_t version_;
};

}  // namespace

std::unique_ptr<History> open_sqlite_history(const std::filesystem::path& file, const std::string& build,
                                             Timestamp now) {
  return std::make_unique<SqliteHistory>(file, build, now);
}

std::unique_ptr<const History> read_sqlite_history(const std::filesystem::path& file) {
  return std::make_unique<const SqliteReader>(file);
}

}  // namespace allot::aggregator
