#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "aggregator/history.h"
#include "aggregator/history_format.h"
#include "aggregator/history_tables.h"
#include "aggregator/sqlite.h"
#include "base/error.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {
namespace {

int64_t to_ms(Timestamp time) {
  return time.time_since_epoch().count();
}
Database open_for_writing(const std::filesystem::path& file) {
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
      : database_(open_for_writing(file)) {
    Transaction transaction(&database_, "BEGIN IMMEDIATE");
    epoch_ = Statement(database_, "SELECT ifnull(max(epoch), 0) + 1 FROM epochs").value();
    spent_before_ = Duration{Statement(database_, "SELECT sum(last_ms - started_ms) FROM epochs").value()};
    Statement(database_, "INSERT INTO epochs VALUES(?, ?, ?, ?)")
        .run(epoch_, to_ms(now), to_ms(now), std::string_view(build));
    transaction.commit();
    counters_ = read_counters(database_);
    for (const HistoryTable& table : history_tables(kHistorySchemaVersion)) {
      // The last row of each table has the table's greatest seq.
      Statement last(database_, fmt::format("SELECT seq FROM {} ORDER BY rowid DESC LIMIT 1", table.name));
      seq_ = std::max(seq_, last.value());
    }
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
    int64_t seq = seq_;
    for (const Record& record : records) std::visit([&](const auto& one) { insert(++seq, one); }, record);
    write_counters(counters);
    touch_epoch_.run(to_ms(now), epoch_);
    transaction.commit();
    seq_ = seq;
    counters_ = counters;
  }

 private:
  void insert(int64_t seq, const EpisodeAsked& asked) {
    const PlannedEpisode& episode = asked.episode;
    insert_episode_.run(episode.id.value, seq, to_ms(asked.at), name(episode.stage),
                        std::string_view(episode.label), episode.group,
                        std::string_view(list_text(episode.samples)),
                        std::string_view(list_text(episode.questions)), int64_t{episode.sampling_seed},
                        episode.policy_version, episode.log_prob, row_of(episode.kind).name);
  }
  void insert(int64_t seq, const LeaseGranted& granted) {
    insert_lease_.run(granted.lease.value, seq, to_ms(granted.at), granted.episode.value,
                      int64_t{granted.attempt}, std::string_view(granted.worker));
  }
  void insert(int64_t seq, const LeaseEnded& ended) {
    insert_lease_end_.run(seq, ended.lease.value, to_ms(ended.at), lease_end_text(ended.how),
                          std::string_view(ended.reason));
  }
  void insert(int64_t seq, const EpisodeTold& told) {
    const ResultColumns columns = result_columns(told.results);
    insert_outcome_.run(seq, told.episode.value, told.lease.value, to_ms(told.at), verdict_text(told.verdict),
                        told.told_version, std::string_view(told.worker), told.seconds,
                        std::string_view(columns.correct), std::string_view(columns.finish),
                        std::string_view(columns.prompt_tokens), std::string_view(columns.output_tokens),
                        columns.score);
  }
  void insert(int64_t seq, const EpisodeGivenUp& given_up) {
    insert_given_up_.run(seq, given_up.episode.value, to_ms(given_up.at), give_up_text(given_up.kind),
                         std::string_view(given_up.reason));
  }
  void insert(int64_t seq, const AnswersKept& kept) {
    const ResultColumns columns = result_columns(kept.results);
    std::vector<uint32_t> questions;
    for (const QuestionResult& result : kept.results) questions.push_back(result.question);
    insert_kept_.run(seq, kept.episode.value, kept.lease.value, to_ms(kept.at), std::string_view(kept.worker),
                     kept.seconds, std::string_view(list_text(questions)), std::string_view(columns.correct),
                     std::string_view(columns.finish), std::string_view(columns.prompt_tokens),
                     std::string_view(columns.output_tokens), columns.score);
  }
  void insert(int64_t seq, const RunControlled& controlled) {
    insert_control_.run(seq, to_ms(controlled.at), control_action_text(controlled.action),
                        std::string_view(control_value(controlled)), std::string_view(controlled.by));
  }
  void insert(int64_t seq, const VersionReached& reached) {
    const double* entropy = reached.described.find("entropy");
    insert_version_.run(
        reached.version, seq, to_ms(reached.at), std::string_view(list_text(reached.described.per_layer)),
        std::string_view(list_text(reached.recommended)), entropy == nullptr ? 0.0 : *entropy,
        std::string_view(reached.described.layer_name), std::string_view(scalars_text(reached.described)),
        std::string_view(digest_text(reached.digest)));
  }

  void write_counters(const wire::Counters& counters) {
    const auto& reflection = *wire::Counters::GetReflection();
    const auto& fields = *wire::Counters::descriptor();
    for (int i = 0; i < fields.field_count(); ++i) {
      const int64_t value = reflection.GetInt64(counters, fields.field(i));
      if (value != reflection.GetInt64(counters_, fields.field(i))) {
        set_counter_.run(std::string_view(fields.field(i)->name()), value);
      }
    }
  }

  Database database_;
  int64_t epoch_ = 0;
  Duration spent_before_{0};
  wire::Counters counters_;  // as stored
  int64_t seq_ = 0;          // of the last record written
  Statement newest_epoch_{database_, "SELECT max(epoch) FROM epochs"};
  Statement touch_epoch_{database_, "UPDATE epochs SET last_ms = ? WHERE epoch = ?"};
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
