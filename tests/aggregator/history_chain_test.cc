// No stored value can change without the check finding it: rows that are changed by hand, and single bits
// that flip in any page of the file.
#include "aggregator/history_chain.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <iostream>
#include <random>

#include "aggregator/history_backup.h"
#include "aggregator/history_check.h"
#include "aggregator/history_format.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

std::vector<std::string> misfits(const std::filesystem::path& file) {
  std::vector<std::string> found;
  const Database database(file, Database::Mode::kReadOnly);
  check_chain(database, [&](const std::string& where, const std::string& what) {
    found.push_back(where + ": " + what);
  });
  return found;
}

// A history with rows in every table, whose run is finished.
class HistoryChainTest : public testing::Test {
 protected:
  HistoryChainTest() {
    driver_.hello("a");
    driver_.hello("b");
    driver_.release("a", driver_.leases("a", 1).at(0), {1, 2});
    for (const char* worker : {"a", "b", "a"})
      driver_.fail(worker, driver_.leases(worker, 1).at(0), "no memory");
    driver_.control(wire::Control::ACTION_PAUSE);
    driver_.control(wire::Control::ACTION_RESUME);
    finish(&driver_, "a");
    driver_.crash();
  }

  std::filesystem::path copy_after(const std::string& change) {
    const auto copy = directory_.path() / "copy.sqlite";
    std::filesystem::remove(copy);
    backup_history(driver_.file(), copy);
    Database database(copy, Database::Mode::kReadWrite);
    database.execute("PRAGMA foreign_keys = 0");
    database.execute(change);
    return copy;
  }

  TemporaryDirectory directory_;
  CoreDriver driver_{Storage::kSqlite, example_spec()};
};

TEST_F(HistoryChainTest, EachCommitHasALinkAndTheyFit) {
  EXPECT_EQ(driver_.core().stage(), Stage::kFinished);
  EXPECT_THAT(misfits(driver_.file()), IsEmpty());
  const Database database(driver_.file(), Database::Mode::kReadOnly);
  EXPECT_GT(Statement(database, "SELECT count(*) FROM chain").value(), 20);
  EXPECT_EQ(chain_end(database).seq, std::ssize(driver_.records()));
  for (const char* table : {"episodes", "leases", "lease_ends", "outcomes", "set_asides", "kept_answers",
                            "steering", "versions", "epochs", "counters"}) {
    EXPECT_GT(Statement(database, fmt::format("SELECT count(*) FROM {}", table)).value(), 0) << table;
  }
}

std::string number(int64_t value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};  // as docs/history-schema.md writes it
}
std::string text(const std::string& value) {
  return number(std::ssize(value)) + value;
}

// Written by hand from docs/history-schema.md.
TEST_F(HistoryChainTest, TheBytesUnderALinkAreThoseThatAreDocumented) {
  const Database database(driver_.file(), Database::Mode::kReadOnly);
  Statement row(database, "SELECT seq, at_ms FROM steering WHERE action = 'pause'");
  ASSERT_TRUE(row.step());
  const int64_t seq = row.integer(0);
  const Sha256Digest before = *link_at(database, seq - 1);
  std::string bytes(before.begin(), before.end());
  bytes += text("steering") + number(5) + '\1' + number(seq) + '\1' + number(row.integer(1));
  for (const char* column : {"pause", "", "ann"}) bytes += '\3' + text(column);
  EXPECT_EQ(sha256_hex(bytes), hex(*link_at(database, seq)));
}

// Nothing else tells of such an answer: the replay asks the same of a run whatever its verification gave.
TEST_F(HistoryChainTest, ARewrittenAnswerOfTheVerificationIsFoundWithItsPlace) {
  const auto copy = copy_after(
      "UPDATE outcomes SET correct = CASE WHEN correct LIKE '%0%' THEN replace(correct, '0', '1') "
      "ELSE replace(correct, '1', '0') END "
      "WHERE episode = (SELECT max(episode) FROM episodes JOIN outcomes USING(episode) WHERE label = 'learned')");
  const int64_t seq =
      Statement(Database(driver_.file(), Database::Mode::kReadOnly),
                "SELECT outcomes.seq FROM outcomes JOIN episodes USING(episode) WHERE label = 'learned' "
                "ORDER BY episode DESC LIMIT 1")
          .value();
  const HistoryReport report = check_history(copy, driver_.spec());
  EXPECT_THAT(report.problems, ElementsAre(AllOf(Field(&HistoryProblem::where, Names(seq, "outcomes")),
                                                 Field(&HistoryProblem::what, Names("checksum")),
                                                 Field(&HistoryProblem::remedy, Names("backup")))));
}

TEST_F(HistoryChainTest, EveryChangeByHandIsFoundAndNamed) {
  const struct {
    const char* change;
    std::vector<std::string> named;
  } kCases[] = {
      {"UPDATE leases SET granted_ms = granted_ms + 1 WHERE lease = 2", {"leases"}},
      {"UPDATE leases SET worker = 'c' WHERE lease = 2", {"leases"}},
      {"UPDATE lease_ends SET reason = reason || '.'", {"lease_ends"}},
      {"UPDATE outcomes SET seconds = seconds * 2 WHERE episode = 3", {"outcomes"}},
      {"UPDATE outcomes SET prompt_tokens = '201,200,200,200' WHERE episode = 3", {"outcomes"}},
      {"UPDATE kept_answers SET seconds = 9", {"kept_answers"}},
      {"UPDATE set_asides SET reason = ''", {"set_asides"}},
      {"UPDATE steering SET who = 'bob' WHERE action = 'pause'", {"steering"}},
      {"UPDATE versions SET at_ms = 0 WHERE version = 1", {"versions"}},
      {"UPDATE episodes SET asked_ms = 0 WHERE episode = 1", {"episodes"}},
      {"DELETE FROM steering WHERE action = 'pause'", {"seq"}},
      {"DELETE FROM chain WHERE seq = (SELECT max(seq) FROM chain)", {"chain"}},
      {"DELETE FROM chain", {"chain"}},
      {"UPDATE chain SET digest = zeroblob(32) WHERE seq > 5", {"seq"}},
      {"UPDATE chain SET digest = x'00' WHERE seq = 0", {"sqlite_schema"}},
      {"UPDATE counters SET value = value + 1 WHERE name = 'duplicate' OR name = 'granted'", {"counters"}},
      {"INSERT INTO counters VALUES('unheard_of', 1)", {"counters"}},
      {"UPDATE epochs SET build = 'mine' WHERE epoch = 1", {"epoch 1"}},
      {"UPDATE epochs SET last_ms = last_ms + 1 WHERE epoch = 2", {"epoch 2"}},
      {"DELETE FROM epochs WHERE epoch = 1", {"epoch 2"}},
      {"UPDATE epochs SET seal = NULL", {"epochs"}},
      {"CREATE TABLE more(x)", {"sqlite_schema"}},
      // The end of the history removed with its links: the epoch knows how far it was.
      {"DELETE FROM chain WHERE seq > 20; DELETE FROM outcomes WHERE seq > 20; DELETE FROM episodes WHERE seq > 20; "
       "DELETE FROM leases WHERE seq > 20; DELETE FROM versions WHERE seq > 20; DELETE FROM lease_ends WHERE seq > 20",
       {"chain", "20"}},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.change);
    EXPECT_THAT(misfits(copy_after(one.change)), Contains(NamesAll(one.named)));
  }
}

TEST_F(HistoryChainTest, LinksThatFitAgainAfterAChangeAreNotBlamed) {
  const std::vector<std::string> found =
      misfits(copy_after("UPDATE leases SET worker = 'c' WHERE lease IN (2, 9)"));
  EXPECT_THAT(found, SizeIs(2));
}

TEST_F(HistoryChainTest, AStartOnAHistoryWhoseEndWasRemovedByHandIsRefused) {
  const Database database(driver_.file(), Database::Mode::kReadOnly);
  ASSERT_EQ(Statement(database, "SELECT max(seq) FROM outcomes").value(), chain_end(database).seq);
  const auto copy = copy_after("DELETE FROM outcomes WHERE seq = (SELECT max(seq) FROM outcomes)");
  EXPECT_THAT([&] { (void)open_sqlite_history(copy, "test", Timestamp{}); },
              testing::ThrowsMessage<CorruptFile>(Names("checksum", "history check")));
}

// Of the file of a run of a thousand episodes: every table's definition and rows with their types.
std::string dump(const std::filesystem::path& file) {
  const Database database(file, Database::Mode::kReadOnly);
  std::vector<std::string> tables;
  std::string text;
  Statement schema(database, "SELECT name, type, sql FROM sqlite_schema ORDER BY name");
  while (schema.step()) {
    if (schema.text(1) == "table") tables.emplace_back(schema.text(0));
    text += fmt::format("{} {} {}\n", schema.text(0), schema.text(1), schema.text(2));
  }
  text += std::to_string(check_schema_version(database));
  for (const std::string& table : tables) {
    Statement rows(database, fmt::format("SELECT * FROM \"{}\"", table));
    while (rows.step()) {
      for (int column = 0; column < rows.columns(); ++column) {
        text += fmt::format("{}:{}|", rows.type(column), rows.text(column));
      }
      text += '\n';
    }
  }
  return text;
}

// Nothing where the file cannot be read.
std::optional<std::string> try_dump(const std::filesystem::path& file) {
  try {
    return dump(file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// The chain and SQLite's own check come first, because the rest of the check takes longer.
bool is_found(const std::filesystem::path& file, const wire::RunSpec& spec) {
  try {
    if (!misfits(file).empty()) return true;
    return !check_history(file, spec).problems.empty();
  } catch (const Error&) {
    return true;
  }
}

constexpr int kEpisodes = 1000;
constexpr size_t kFlips = 300;

void write_run(const std::filesystem::path& file, const wire::RunSpec& spec) {
  ManualClock clock{Timestamp{Duration{1'700'000'000'000}}};
  const auto history = open_sqlite_history(file, "test", clock.now());
  Core core(spec, policy::make_policy(policy_config(spec)), *history, clock.now());
  wire::Envelope message;
  const auto send = [&] { core.receive({"peer"}, wire::encode(message), clock.now()); };
  *message.mutable_hello() = example_hello(spec, "w");
  send();
  for (int told = 0; told < kEpisodes;) {
    clock.advance(Duration{10});
    message.mutable_lease_request()->set_count(8);
    send();
    Outputs outputs = core.take();
    for (const wire::Lease& lease : outputs.replies.back().envelope.grant().leases()) {
      *message.mutable_result() = result_of(lease, static_cast<int>(lease.sampling_seed() % 5));
      send();
      ++told;
    }
    for (Record& record : core.take().records) outputs.records.push_back(std::move(record));
    history->commit(outputs.records, core.counters(), clock.now());
  }
}

TEST(HistoryFlips, EveryFlippedBitThatChangesContentIsFound) {
  const TemporaryDirectory directory;
  const auto run = directory.path() / "run.sqlite", whole = directory.path() / "whole.sqlite",
             flipped = directory.path() / "flipped.sqlite";
  wire::RunSpec spec = example_spec();
  spec.set_episodes(2 * kEpisodes);
  write_run(run, spec);
  backup_history(run, whole);
  ASSERT_THAT(check_history(whole, spec).problems, IsEmpty());
  const std::string content = dump(whole), bytes = read_file(whole);
  constexpr size_t kPage = 4096;
  const size_t pages = bytes.size() / kPage;
  ASSERT_LE(pages, kFlips) << "each page gets a flip";
  std::mt19937 random(20261125);
  size_t changed = 0, missed = 0;
  for (size_t i = 0; i < kFlips; ++i) {
    const size_t page = i % pages, offset = page * kPage + random() % kPage;
    const int bit = static_cast<int>(random() % 8);
    std::string damaged = bytes;
    damaged[offset] = static_cast<char>(damaged[offset] ^ (1 << bit));
    for (const char* part : {"-wal", "-shm"}) std::filesystem::remove(flipped.string() + part);
    std::ofstream(flipped, std::ios::binary) << damaged;
    if (try_dump(flipped) == content) continue;
    ++changed;
    if (is_found(flipped, spec)) continue;
    ++missed;
    ADD_FAILURE() << "bit " << bit << " of byte " << offset << " in page " << page + 1 << " is not found";
  }
  RecordProperty("pages", static_cast<int>(pages));
  RecordProperty("changed", static_cast<int>(changed));
  std::cout << fmt::format("{} pages, {} of {} flips change content, {} not found\n", pages, changed, kFlips,
                           missed);
  EXPECT_GT(changed, kFlips / 3);
}

}  // namespace
}  // namespace allot::aggregator
