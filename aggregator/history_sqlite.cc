#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "aggregator/history.h"
#include "aggregator/history_format.h"
#include "aggregator/sqlite.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

int64_t to_ms(Timestamp time) {
  return time.time_since_epoch().count();
}
Timestamp from_ms(int64_t ms) {
  return Timestamp{Duration{ms}};
}

// One table in order of writing. Every table is written in order of seq, so a walk along its key is a walk
// along seq.
struct TableReader {
  const char* query;  // gives seq first
  Record (*read)(const Statement& row);
};

constexpr std::array kTables{
    TableReader{
        "SELECT seq, asked_ms, episode, stage, label, question_group, samples, questions, sampling_seed, "
        "policy_version, log_prob FROM episodes ORDER BY episode",
        [](const Statement& row) -> Record {
          return EpisodeAsked{{{row.integer(2)},
                               parse_stage(row.text(3)),
                               std::string(row.text(4)),
                               row.integer(5),
                               parse_list<int32_t>(row.text(6), "episodes.samples"),
                               parse_list<uint32_t>(row.text(7), "episodes.questions"),
                               static_cast<uint32_t>(row.integer(8)),
                               row.integer(9),
                               row.real(10)},
                              from_ms(row.integer(1))};
        }},
    TableReader{"SELECT seq, granted_ms, lease, episode, attempt, worker FROM leases ORDER BY lease",
                [](const Statement& row) -> Record {
                  return LeaseGranted{{row.integer(2)},
                                      {row.integer(3)},
                                      static_cast<int>(row.integer(4)),
                                      std::string(row.text(5)),
                                      from_ms(row.integer(1))};
                }},
    TableReader{"SELECT seq, ended_ms, lease, ending, reason FROM lease_ends ORDER BY seq",
                [](const Statement& row) -> Record {
                  return LeaseEnded{{row.integer(2)},
                                    parse_lease_end(row.text(3)),
                                    std::string(row.text(4)),
                                    from_ms(row.integer(1))};
                }},
    TableReader{
        "SELECT seq, told_ms, episode, lease, verdict, told_version, worker, seconds, correct, finish, "
        "prompt_tokens, output_tokens FROM outcomes ORDER BY seq",
        [](const Statement& row) -> Record {
          return EpisodeTold{{row.integer(2)},
                             {row.integer(3)},
                             parse_verdict(row.text(4)),
                             parse_results(row.text(8), row.text(9), row.text(10), row.text(11)),
                             row.integer(5),
                             std::string(row.text(6)),
                             row.real(7),
                             from_ms(row.integer(1))};
        }},
    TableReader{"SELECT seq, at_ms, episode, kind, reason FROM set_asides ORDER BY seq",
                [](const Statement& row) -> Record {
                  return EpisodeSetAside{{row.integer(2)},
                                         parse_give_up(row.text(3)),
                                         std::string(row.text(4)),
                                         from_ms(row.integer(1))};
                }},
    TableReader{"SELECT seq, kept_ms, episode, lease, questions, correct, finish, prompt_tokens, "
                "output_tokens, worker, "
                "seconds FROM kept_answers ORDER BY seq",
                [](const Statement& row) -> Record {
                  AnswersKept kept{{row.integer(2)},
                                   {row.integer(3)},
                                   parse_list<uint32_t>(row.text(4), "kept_answers.questions"),
                                   parse_results(row.text(5), row.text(6), row.text(7), row.text(8)),
                                   std::string(row.text(9)),
                                   row.real(10),
                                   from_ms(row.integer(1))};
                  if (kept.questions.size() != kept.results.size()) {
                    throw CorruptFile(
                        fmt::format("the history keeps {} answers to {} questions of episode {}",
                                    kept.results.size(), kept.questions.size(), kept.episode.value));
                  }
                  return kept;
                }},
    TableReader{"SELECT seq, at_ms, action, value, who FROM steering ORDER BY seq",
                [](const Statement& row) -> Record {
                  Steered steered{.action = parse_steering(row.text(2)),
                                  .by = std::string(row.text(4)),
                                  .at = from_ms(row.integer(1))};
                  parse_steering_value(row.text(3), &steered);
                  return steered;
                }},
    TableReader{"SELECT seq, at_ms, version, shares, recommended, entropy FROM versions ORDER BY version",
                [](const Statement& row) -> Record {
                  return VersionReached{row.integer(2), parse_list<double>(row.text(3), "versions.shares"),
                                        parse_list<int32_t>(row.text(4), "versions.recommended"), row.real(5),
                                        from_ms(row.integer(1))};
                }},
};

Database open_for_writing(const std::filesystem::path& file) {
  Database database(file, Database::Mode::kReadWrite);
  // FULL: a worker forgets a result once it is acked, so an ack has to outlive a power cut. All messages of
  // one poll round share one transaction, hence one sync.
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
    for (const char* table : {"episodes", "leases", "lease_ends", "outcomes", "set_asides", "versions",
                              "kept_answers", "steering"}) {
      // The last row of each table has its greatest seq.
      Statement last(database_, fmt::format("SELECT seq FROM {} ORDER BY rowid DESC LIMIT 1", table));
      seq_ = std::max(seq_, last.value());
    }
  }

  int64_t epoch() const override { return epoch_; }
  Duration spent_before() const override { return spent_before_; }
  wire::Counters counters() const override { return counters_; }

  // Merges the tables by seq.
  void replay(const std::function<void(const Record&)>& visit) const override {
    struct Cursor {
      Statement statement;
      Record (*read)(const Statement& row);
      bool more;
    };
    std::vector<Cursor> cursors;
    for (const TableReader& table : kTables) {
      Cursor& cursor = cursors.emplace_back(Cursor{Statement(database_, table.query), table.read, false});
      cursor.more = cursor.statement.step();
    }
    while (true) {
      Cursor* next = nullptr;
      for (Cursor& cursor : cursors) {
        if (cursor.more && (next == nullptr || cursor.statement.integer(0) < next->statement.integer(0)))
          next = &cursor;
      }
      if (next == nullptr) return;
      visit(next->read(next->statement));
      next->more = next->statement.step();
    }
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
    const Episode& episode = asked.episode;
    insert_episode_.run(episode.episode.value, seq, to_ms(asked.at), name(episode.stage),
                        std::string_view(episode.label), episode.group,
                        std::string_view(list_text(episode.samples)),
                        std::string_view(list_text(episode.questions)), int64_t{episode.sampling_seed},
                        episode.policy_version, episode.log_prob);
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
                        std::string_view(columns.prompt_tokens), std::string_view(columns.output_tokens));
  }
  void insert(int64_t seq, const EpisodeSetAside& set_aside) {
    insert_set_aside_.run(seq, set_aside.episode.value, to_ms(set_aside.at), give_up_text(set_aside.kind),
                          std::string_view(set_aside.reason));
  }
  void insert(int64_t seq, const AnswersKept& kept) {
    const ResultColumns columns = result_columns(kept.results);
    insert_kept_.run(seq, kept.episode.value, kept.lease.value, to_ms(kept.at), std::string_view(kept.worker),
                     kept.seconds, std::string_view(list_text(kept.questions)),
                     std::string_view(columns.correct), std::string_view(columns.finish),
                     std::string_view(columns.prompt_tokens), std::string_view(columns.output_tokens));
  }
  void insert(int64_t seq, const Steered& steered) {
    insert_steering_.run(seq, to_ms(steered.at), steering_text(steered.action),
                         std::string_view(steering_value(steered)), std::string_view(steered.by));
  }
  void insert(int64_t seq, const VersionReached& reached) {
    insert_version_.run(reached.version, seq, to_ms(reached.at), std::string_view(list_text(reached.shares)),
                        std::string_view(list_text(reached.recommended)), reached.entropy);
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
  Statement insert_episode_{database_, "INSERT INTO episodes VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"};
  Statement insert_lease_{database_, "INSERT INTO leases VALUES(?, ?, ?, ?, ?, ?)"};
  Statement insert_lease_end_{database_, "INSERT INTO lease_ends VALUES(?, ?, ?, ?, ?)"};
  Statement insert_outcome_{database_, "INSERT INTO outcomes VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"};
  Statement insert_set_aside_{database_, "INSERT INTO set_asides VALUES(?, ?, ?, ?, ?)"};
  Statement insert_kept_{database_, "INSERT INTO kept_answers VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"};
  Statement insert_steering_{database_, "INSERT INTO steering VALUES(?, ?, ?, ?, ?)"};
  Statement insert_version_{database_, "INSERT INTO versions VALUES(?, ?, ?, ?, ?, ?)"};
};

}  // namespace

std::unique_ptr<History> open_sqlite_history(const std::filesystem::path& file, const std::string& build,
                                             Timestamp now) {
  return std::make_unique<SqliteHistory>(file, build, now);
}

}  // namespace allot::aggregator
