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
#include "base/error.h"

namespace allot::aggregator {
namespace {

Timestamp from_ms(int64_t ms) {
  return Timestamp{Duration{ms}};
}

// `record` as an R, which it is already when the last row was of the same table.
template <class R>
R& as(Record* record) {
  if (auto* same = std::get_if<R>(record)) return *same;
  return record->emplace<R>();
}

void read_episode(const Statement& row, Record* record) {
  auto& asked = as<EpisodeAsked>(record);
  Episode& episode = asked.episode;
  episode.episode = {row.integer(1)};
  asked.at = from_ms(row.integer(2));
  episode.stage = parse_stage(row.text(3));
  episode.label = row.text(4);
  episode.group = row.integer(5);
  parse_list(row.text(6), "episodes.samples", &episode.samples);
  parse_list(row.text(7), "episodes.questions", &episode.questions);
  episode.sampling_seed = static_cast<uint32_t>(row.integer(8));
  episode.policy_version = row.integer(9);
  episode.log_prob = row.real(10);
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
  parse_results(row.text(8), row.text(9), row.text(10), row.text(11), &told.results);
}

void read_set_aside(const Statement& row, Record* record) {
  auto& set_aside = as<EpisodeSetAside>(record);
  set_aside.episode = {row.integer(1)};
  set_aside.at = from_ms(row.integer(2));
  set_aside.kind = parse_give_up(row.text(3));
  set_aside.reason = row.text(4);
}

void read_kept_answers(const Statement& row, Record* record) {
  auto& kept = as<AnswersKept>(record);
  kept.episode = {row.integer(1)};
  kept.at = from_ms(row.integer(2));
  kept.lease = {row.integer(3)};
  parse_list(row.text(4), "kept_answers.questions", &kept.questions);
  parse_results(row.text(5), row.text(6), row.text(7), row.text(8), &kept.results);
  kept.worker = row.text(9);
  kept.seconds = row.real(10);
  if (kept.questions.size() != kept.results.size()) {
    throw CorruptFile(fmt::format("the history keeps {} answers to {} questions of episode {}",
                                  kept.results.size(), kept.questions.size(), kept.episode.value));
  }
}

void read_steering(const Statement& row, Record* record) {
  auto& steered = record->emplace<Steered>();
  steered.at = from_ms(row.integer(1));
  steered.action = parse_steering(row.text(2));
  parse_steering_value(row.text(3), &steered);
  steered.by = row.text(4);
}

void read_version(const Statement& row, Record* record) {
  auto& reached = as<VersionReached>(record);
  reached.version = row.integer(1);
  reached.at = from_ms(row.integer(2));
  parse_list(row.text(3), "versions.shares", &reached.shares);
  parse_list(row.text(4), "versions.recommended", &reached.recommended);
  reached.entropy = row.real(5);
}

constexpr HistoryTable kEpisodes{
    "episodes", "episode",
    "SELECT seq, episode, asked_ms, stage, label, question_group, samples, questions, sampling_seed, "
    "policy_version, log_prob FROM episodes ORDER BY episode",
    read_episode};
constexpr HistoryTable kLeases{
    "leases", "lease", "SELECT seq, lease, granted_ms, episode, attempt, worker FROM leases ORDER BY lease",
    read_lease};
constexpr HistoryTable kLeaseEnds{"lease_ends", "lease",
                                  "SELECT seq, lease, ended_ms, ending, reason FROM lease_ends ORDER BY seq",
                                  read_lease_end};
constexpr HistoryTable kOutcomes{"outcomes", "episode",
                                 "SELECT seq, episode, told_ms, lease, verdict, told_version, worker, "
                                 "seconds, correct, finish, prompt_tokens, "
                                 "output_tokens FROM outcomes ORDER BY seq",
                                 read_outcome};
constexpr HistoryTable kVersions{
    "versions", "version",
    "SELECT seq, version, at_ms, shares, recommended, entropy FROM versions ORDER BY version", read_version};

constexpr std::array kTables1{
    kEpisodes,
    kLeases,
    kLeaseEnds,
    kOutcomes,
    HistoryTable{"set_asides", "episode",
                 "SELECT seq, episode, at_ms, 'exhausted', '' FROM set_asides ORDER BY seq", read_set_aside},
    kVersions};
constexpr std::array kTables2{
    kEpisodes,
    kLeases,
    kLeaseEnds,
    kOutcomes,
    HistoryTable{"set_asides", "episode",
                 "SELECT seq, episode, at_ms, kind, reason FROM set_asides ORDER BY seq", read_set_aside},
    HistoryTable{
        "kept_answers", "episode",
        "SELECT seq, episode, kept_ms, lease, questions, correct, finish, prompt_tokens, output_tokens, "
        "worker, seconds FROM kept_answers ORDER BY seq",
        read_kept_answers},
    HistoryTable{"steering", "at_ms", "SELECT seq, at_ms, action, value, who FROM steering ORDER BY seq",
                 read_steering},
    kVersions};

}  // namespace

std::span<const HistoryTable> history_tables(int64_t schema_version) {
  if (schema_version == 1) return kTables1;
  return kTables2;
}

namespace {

// Merges the tables by seq; `take` may move from what it is given.
void walk(const Database& database, int64_t schema_version, const std::function<void(Record&)>& take) {
  struct Cursor {
    Statement rows;
    const HistoryTable* table;
    bool more = false;
    int64_t seq = 0;
    Record record{};

    void step() {
      more = rows.step();
      if (more) seq = rows.integer(0);
    }
  };
  std::vector<Cursor> cursors;
  for (const HistoryTable& table : history_tables(schema_version)) {
    cursors.push_back({.rows = Statement(database, table.query), .table = &table});
    cursors.back().step();
  }
  while (true) {
    Cursor* next = nullptr;
    for (Cursor& cursor : cursors) {
      if (cursor.more && (next == nullptr || cursor.seq < next->seq)) next = &cursor;
    }
    if (next == nullptr) return;
    next->table->read(next->rows, &next->record);
    take(next->record);
    next->step();
  }
}

// Records on their way from the thread that reads them to the one that applies them, a few batches at most.
class Belt {
 public:
  // False when nobody wants more.
  bool put(std::vector<Record> batch) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return batches_.size() < kMostBatches || abandoned_; });
    if (abandoned_) return false;
    batches_.push_back(std::move(batch));
    changed_.notify_all();
    return true;
  }
  // No more comes; `error` is thrown by take() after the last batch.
  void close(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    error_ = std::move(error);
    changed_.notify_all();
  }
  // Empty at the end.
  std::vector<Record> take() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !batches_.empty() || closed_; });
    if (batches_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return {};
    }
    std::vector<Record> batch = std::move(batches_.front());
    batches_.pop_front();
    changed_.notify_all();
    return batch;
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
  std::deque<std::vector<Record>> batches_;
  bool closed_ = false;
  bool abandoned_ = false;
  std::exception_ptr error_;
};

constexpr size_t kBatch = 512;

}  // namespace

// Reading a row and applying its record take about as long, so a second thread reads ahead. It alone uses the
// database meanwhile.
void replay_tables(const Database& database, int64_t schema_version,
                   const std::function<void(const Record&)>& visit) {
  struct Stopped {};
  Belt belt;
  std::jthread reader([&] {
    std::vector<Record> batch;
    std::exception_ptr error;
    try {
      walk(database, schema_version, [&](Record& record) {
        batch.push_back(std::move(record));
        if (batch.size() == kBatch && !belt.put(std::exchange(batch, {}))) throw Stopped{};
      });
    } catch (const Stopped&) {
    } catch (...) {
      error = std::current_exception();
    }
    // What came before a row that cannot be read is applied first, as if one thread did both.
    if (!batch.empty()) (void)belt.put(std::move(batch));
    belt.close(error);
  });
  try {
    for (std::vector<Record> batch = belt.take(); !batch.empty(); batch = belt.take()) {
      for (const Record& record : batch) visit(record);
    }
  } catch (...) {
    belt.abandon();
    throw;
  }
}

}  // namespace allot::aggregator
