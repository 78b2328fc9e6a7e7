#include "aggregator/history_tables.h"

#include <fmt/format.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/history_format.h"
#include "aggregator/merged_rows.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

Timestamp from_ms(int64_t ms) {
  return Timestamp{Duration{ms}};
}

// `record` as an R; it already is one when the last row came from the same table.
template <class R>
R& as(Record* record) {
  if (auto* same = std::get_if<R>(record)) return *same;
  return record->emplace<R>();
}

void read_episode(const Statement& row, Record* record) {
  auto& asked = as<EpisodeAsked>(record);
  PlannedEpisode& episode = asked.episode;
  episode.id = {row.integer(1)};
  asked.at = from_ms(row.integer(2));
  episode.stage = parse_stage(row.text(3));
  episode.split = split_of(episode.stage == Stage::kCheck ? parse_stage(row.text(4)) : episode.stage);
  episode.label = row.text(4);
  episode.group = row.integer(5);
  parse_list(row.text(6), "episodes.samples", &episode.samples);
  parse_list(row.text(7), "episodes.questions", &episode.questions);
  episode.sampling_seed = static_cast<uint32_t>(row.integer(8));
  episode.policy_version = row.integer(9);
  episode.log_prob = row.real(10);
  episode.kind = parse_episode_kind(row.text(11));
  episode.replies = episode.stage == Stage::kEvaluate;
}

void read_lease(const Statement& row, Record* record) {
  auto& granted = as<LeaseGranted>(record);
  granted.lease = {row.integer(1)};
  granted.at = from_ms(row.integer(2));
  granted.episode = {row.integer(3)};
  granted.attempt = static_cast<int>(row.integer(4));
  granted.worker = row.text(5);
}

void read_lease_end(const Statement& row, Record* record) {
  auto& ended = as<LeaseEnded>(record);
  ended.lease = {row.integer(1)};
  ended.at = from_ms(row.integer(2));
  ended.how = parse_lease_end(row.text(3));
  ended.reason = row.text(4);
}

void read_outcome(const Statement& row, Record* record) {
  auto& told = as<EpisodeTold>(record);
  told.episode = {row.integer(1)};
  told.at = from_ms(row.integer(2));
  told.lease = {row.integer(3)};
  told.verdict = parse_verdict(row.text(4));
  told.told_version = row.integer(5);
  told.worker = row.text(6);
  told.seconds = row.real(7);
  parse_results({row.text(8), row.text(9), row.text(10), row.text(11), row.text(12)}, &told.results);
}

void read_given_up(const Statement& row, Record* record) {
  auto& given_up = as<EpisodeGivenUp>(record);
  given_up.episode = {row.integer(1)};
  given_up.at = from_ms(row.integer(2));
  given_up.kind = parse_give_up(row.text(3));
  given_up.reason = row.text(4);
}

void read_kept_answers(const Statement& row, Record* record) {
  auto& kept = as<AnswersKept>(record);
  kept.episode = {row.integer(1)};
  kept.at = from_ms(row.integer(2));
  kept.lease = {row.integer(3)};
  parse_results({row.text(5), row.text(6), row.text(7), row.text(8), row.text(11)}, &kept.results);
  kept.worker = row.text(9);
  kept.seconds = row.real(10);
  const auto questions = parse_list<uint32_t>(row.text(4), "kept_answers.questions");
  if (questions.size() != kept.results.size()) {
    throw CorruptFile(fmt::format("the history keeps {} answers to {} questions of episode {}",
                                  kept.results.size(), questions.size(), kept.episode.value));
  }
  for (size_t i = 0; i < questions.size(); ++i) kept.results[i].question = questions[i];
}

void read_control(const Statement& row, Record* record) {
  auto& controlled = record->emplace<RunControlled>();
  controlled.at = from_ms(row.integer(1));
  controlled.action = parse_control_action(row.text(2));
  parse_control_value(row.text(3), &controlled);
  controlled.by = row.text(4);
}

void read_version(const Statement& row, Record* record) {
  auto& reached = as<VersionReached>(record);
  reached.version = row.integer(1);
  reached.at = from_ms(row.integer(2));
  parse_list(row.text(3), "versions.shares", &reached.described.per_layer);
  parse_list(row.text(4), "versions.recommended", &reached.recommended);
  reached.described.layer_name = row.text(6);
  parse_scalars(row.text(7), row.real(5), &reached.described);
  reached.digest = parse_digest(row.text(8));
}

constexpr HistoryTable kEpisodes1{
    "episodes", "episode",
    "SELECT seq, episode, asked_ms, stage, label, question_group, samples, questions, sampling_seed, "
    "policy_version, log_prob, 'answers' FROM episodes ORDER BY episode",
    read_episode};
constexpr HistoryTable kEpisodes3{
    "episodes", "episode",
    "SELECT seq, episode, asked_ms, stage, label, question_group, samples, questions, sampling_seed, "
    "policy_version, log_prob, kind FROM episodes ORDER BY episode",
    read_episode};
constexpr HistoryTable kLeases{
    "leases", "lease", "SELECT seq, lease, granted_ms, episode, attempt, worker FROM leases ORDER BY lease",
    read_lease};
constexpr HistoryTable kLeaseEnds{"lease_ends", "lease",
                                  "SELECT seq, lease, ended_ms, ending, reason FROM lease_ends ORDER BY seq",
                                  read_lease_end};
constexpr HistoryTable kOutcomes1{"outcomes", "episode",
                                  "SELECT seq, episode, told_ms, lease, verdict, told_version, worker, "
                                  "seconds, correct, finish, prompt_tokens, output_tokens, NULL "
                                  "FROM outcomes ORDER BY seq",
                                  read_outcome};
constexpr HistoryTable kOutcomes3{"outcomes", "episode",
                                  "SELECT seq, episode, told_ms, lease, verdict, told_version, worker, "
                                  "seconds, correct, finish, prompt_tokens, output_tokens, score "
                                  "FROM outcomes ORDER BY seq",
                                  read_outcome};
constexpr HistoryTable kGivenUp2{"set_asides", "episode",
                                 "SELECT seq, episode, at_ms, kind, reason FROM set_asides ORDER BY seq",
                                 read_given_up};
constexpr HistoryTable kControls2{
    "steering", "at_ms", "SELECT seq, at_ms, action, value, who FROM steering ORDER BY seq", read_control};
// Before version 3 a learner was described by its shares and their entropy.
constexpr HistoryTable kVersionsOfShares{"versions", "version",
                                         "SELECT seq, version, at_ms, shares, recommended, entropy, 'share', "
                                         "'', '' FROM versions ORDER BY version",
                                         read_version};
constexpr HistoryTable kVersions{"versions", "version",
                                 "SELECT seq, version, at_ms, shares, recommended, entropy, layer_name, "
                                 "scalars, digest FROM versions ORDER BY version",
                                 read_version};

constexpr std::array kTables1{
    kEpisodes1,
    kLeases,
    kLeaseEnds,
    kOutcomes1,
    HistoryTable{"set_asides", "episode",
                 "SELECT seq, episode, at_ms, 'exhausted', '' FROM set_asides ORDER BY seq", read_given_up},
    kVersionsOfShares};
constexpr std::array kTables2{
    kEpisodes1,
    kLeases,
    kLeaseEnds,
    kOutcomes1,
    kGivenUp2,
    HistoryTable{
        "kept_answers", "episode",
        "SELECT seq, episode, kept_ms, lease, questions, correct, finish, prompt_tokens, output_tokens, "
        "worker, seconds, NULL FROM kept_answers ORDER BY seq",
        read_kept_answers},
    kControls2,
    kVersionsOfShares};
constexpr std::array kTables3{
    kEpisodes3,
    kLeases,
    kLeaseEnds,
    kOutcomes3,
    kGivenUp2,
    HistoryTable{
        "kept_answers", "episode",
        "SELECT seq, episode, kept_ms, lease, questions, correct, finish, prompt_tokens, output_tokens, "
        "worker, seconds, score FROM kept_answers ORDER BY seq",
        read_kept_answers},
    kControls2,
    kVersions};

}  // namespace

std::span<const HistoryTable> history_tables(int64_t schema_version) {
  if (schema_version == 1) return kTables1;
  if (schema_version == 2) return kTables2;
  return kTables3;
}

namespace {

// Successive records of the history. They are stored by table, so that a batch that is filled again can reuse
// the memory of the texts and lists in records of the same kind.
class Batch {
 public:
  // The record to read the next row of `table` into; it becomes part of the batch with keep().
  Record* room(size_t table) {
    if (table >= tables_.size()) tables_.resize(table + 1);
    Slots& slots = tables_[table];
    if (slots.used == slots.records.size()) slots.records.emplace_back();
    return &slots.records[slots.used];
  }
  void keep(size_t table) {
    ++tables_[table].used;
    order_.push_back(table);
  }
  size_t size() const { return order_.size(); }
  // In the order in which they were kept.
  void visit(const std::function<void(const Record&)>& visit) const {
    std::vector<size_t> next(tables_.size());
    for (const size_t table : order_) visit(tables_[table].records[next[table]++]);
  }
  void clear() {
    for (Slots& slots : tables_) slots.used = 0;
    order_.clear();
  }

 private:
  struct Slots {
    std::vector<Record> records;
    size_t used = 0;
  };
  std::vector<Slots> tables_;
  std::vector<size_t> order_;  // the table of each record
};

// A bounded queue of batches from the thread that reads them to the one that applies them. Used batches go
// back, so that their memory is reused.
class Belt {
 public:
  // Queues the content of `batch` and leaves it empty, with the memory of a used one if there is any. False
  // when the other side wants no more.
  bool put(Batch* batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return full_.size() < kMostBatches || abandoned_; });
    if (abandoned_) return false;
    full_.push_back(std::exchange(*batch, {}));
    if (!empty_.empty()) {
      *batch = std::move(empty_.back());
      empty_.pop_back();
    }
    changed_.notify_all();
    return true;
  }
  // Ends the queue; take() throws `error`, if any, after the last batch.
  void close(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }
  // Gives `batch` back for reuse and replaces it by the next one; false at the end.
  bool take(Batch* batch) {
    batch->clear();
    std::unique_lock lock(mutex_);
    empty_.push_back(std::move(*batch));
    changed_.wait(lock, [&] { return !full_.empty() || closed_; });
    if (full_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return false;
    }
    *batch = std::move(full_.front());
    full_.pop_front();
    changed_.notify_all();
    return true;
  }
  void abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    changed_.notify_all();
  }

 private:
  static constexpr size_t kMostBatches = 4;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> full_;
  std::vector<Batch> empty_;
  bool closed_ = false;
  bool abandoned_ = false;
  std::exception_ptr error_;
};

constexpr size_t kBatch = 512;

// Merges the tables by seq and queues batches until the other side wants no more. When a row cannot be read,
// the rows before it are queued before the error is thrown, as if one thread did both.
void read_ahead(const Database& database, int64_t schema_version, Belt* belt) {
  const auto tables = history_tables(schema_version);
  std::vector<std::string> queries;
  for (const HistoryTable& table : tables) queries.emplace_back(table.query);
  MergedRows rows(database, queries);
  Batch batch;
  try {
    while (const auto table = rows.next()) {
      tables[*table].read(rows.row(*table), batch.room(*table));
      batch.keep(*table);
      if (batch.size() == kBatch && !belt->put(&batch)) return;
      rows.step(*table);
    }
  } catch (...) {
    (void)belt->put(&batch);
    throw;
  }
  (void)belt->put(&batch);
}

}  // namespace

// Reading a row takes about as long as applying its record, so a second thread reads ahead. Meanwhile only
// that thread uses the database.
void replay_tables(const Database& database, int64_t schema_version,
                   const std::function<void(const Record&)>& visit) {
  Belt belt;
  std::jthread reader([&] {
    std::exception_ptr error;
    try {
      read_ahead(database, schema_version, &belt);
    } catch (...) {
      error = std::current_exception();
    }
    belt.close(error);
  });
  try {
    for (Batch batch; belt.take(&batch);) batch.visit(visit);
  } catch (...) {
    belt.abandon();
    throw;
  }
}

}  // namespace allot::aggregator
