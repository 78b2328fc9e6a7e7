#include "aggregator/history_memory.h"

#include <gmock/gmock.h>

#include "aggregator/history_format.h"
#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/names.h"

namespace allot::aggregator {
namespace {

using testing::IsEmpty;
using testing::SizeIs;
using testing::ThrowsMessage;
using wire::Ack;

constexpr Timestamp kNow{Duration{1'700'000'000'123}};

std::vector<Record> one_of_each() {
  PlannedEpisode asked{{.id = {0},
                        .split = Split::kHeldout,
                        .samples = {33, 8, 7},
                        .questions = {4'000'000'000u, 0, 17},
                        .sampling_seed = 0xFFFFFFFFu},
                       Stage::kVerify,
                       "learned",
                       3,
                       12,
                       -0.1};
  PlannedEpisode dense = asked;
  dense.id = {1};
  dense.kind = RewardKind::kDivergence;
  dense.samples.clear();
  return {
      EpisodeAsked{asked, kNow},
      LeaseGranted{{1}, {0}, 1, "worker 'a'", kNow},
      EpisodeAsked{dense, kNow},
      LeaseEnded{{1}, LeaseEnd::kFailed, "out of memory; DROP TABLE", kNow},
      LeaseGranted{{2}, {0}, 2, "b", kNow},
      EpisodeTold{{0},
                  {2},
                  AckVerdict::kLate,
                  {{0, 1, Finish::kStop, 200, 50}, {0, 1.0 / 3, Finish::kLength, 1, 0}, {0, 1}},
                  12,
                  "b",
                  0.25,
                  kNow},
      AnswersKept{{1}, {2}, {{4'000'000'000u, 1}, {17, 0, Finish::kLength, 3, 4}}, "c", 0.5, kNow},
      EpisodeGivenUp{{1}, GiveUp::kPoisoned, "failed on 'a'; failed on b", kNow},
      RunControlled{.action = ControlAction::kPause, .by = "ann", .at = kNow},
      RunControlled{.action = ControlAction::kResume, .by = "ann", .at = kNow},
      RunControlled{.action = ControlAction::kTarget, .reward = 2.0 / 3, .by = "ann", .at = kNow},
      RunControlled{.action = ControlAction::kEpisodes, .episodes = 5'000'000'000, .by = "bob's", .at = kNow},
      RunControlled{.action = ControlAction::kStop, .episodes = 0, .by = "ann", .at = kNow},
      RunControlled{.action = ControlAction::kBounds, .bounds = "3:4,5-9:2-", .by = "ann", .at = kNow},
      RunControlled{.action = ControlAction::kBounds, .by = "ann", .at = kNow},
      RunControlled{.action = ControlAction::kLeaseSeconds, .lease_seconds = 7, .by = "ann", .at = kNow},
      RunControlled{.action = ControlAction::kMaxAttempts, .max_attempts = 9, .by = "ann", .at = kNow},
      RunControlled{
          .action = ControlAction::kHeldoutQuestions, .heldout_questions = 40, .by = "ann", .at = kNow},
      LeaseEnded{{2}, LeaseEnd::kPreempted, "", kNow},
      LeaseEnded{{2}, LeaseEnd::kCrashed, "b came back", kNow},
      VersionReached{13,
                     {.per_layer = {0.1, 1.0 / 3, 1e-300}, .scalars = {{"entropy", 1.0986122886681098}}},
                     {1, 2, 3},
                     0x0123456789ABCDEF,
                     kNow},
      VersionReached{
          14,
          {.layer_name = "step", .per_layer = {-2.5}, .scalars = {{"best", 1.0 / 3}, {"entropy", 2}}},
          {7},
          1,
          kNow},
      VersionReached{15, {.scalars = {}}, {7}, std::nullopt, kNow},
  };
}

std::vector<Record> replayed(const History& history) {
  std::vector<Record> all;
  history.replay([&](const Record& record) { all.push_back(record); });
  return all;
}

class HistoryTest : public testing::TestWithParam<Storage> {
 protected:
  std::unique_ptr<History> open(Timestamp now = kNow) {
    if (GetParam() == Storage::kMemory) return open_memory_history(&memory_, now);
    return open_sqlite_history(directory_.path() / "history.sqlite", "test", now);
  }
  TemporaryDirectory directory_;
  MemoryStore memory_;
};
INSTANTIATE_TEST_SUITE_P(Histories, HistoryTest, testing::Values(Storage::kMemory, Storage::kSqlite),
                         storage_name);

TEST_P(HistoryTest, RecordsComeBackInTheOrderOfWritingToTheLastBit) {
  const std::vector<Record> records = one_of_each();
  {
    const auto history = open();
    history->commit(std::span(records).first(4), {}, kNow);
    history->commit(std::span(records).subspan(4), {}, kNow);
    EXPECT_EQ(replayed(*history), records);
  }
  EXPECT_EQ(replayed(*open()), records);
}

TEST_P(HistoryTest, CountersAndTimeSpentAddUpOverTheStarts) {
  wire::Counters counters;
  counters.set_granted(5);
  counters.set_malformed(2);
  {
    const auto history = open();
    EXPECT_EQ(history->epoch(), 1);
    EXPECT_EQ(history->spent_before(), Duration{0});
    history->commit({}, counters, kNow + Duration{1000});
    counters.set_granted(6);
    history->commit({}, counters, kNow + Duration{1500});
  }
  {
    const auto history = open(kNow + Duration{60'000});
    history->commit({}, counters, kNow + Duration{60'250});
  }
  const auto history = open(kNow + Duration{90'000});
  EXPECT_EQ(history->epoch(), 3);
  EXPECT_EQ(history->spent_before(), Duration{1750});
  EXPECT_EQ(history->counters().granted(), 6);
  EXPECT_EQ(history->counters().malformed(), 2);
}

TEST_P(HistoryTest, AnOlderEpochIsFencedOutAndWritesNothing) {
  const auto older = open();
  const auto newer = open();
  const std::vector<Record> records = one_of_each();
  EXPECT_THAT([&] { older->commit(records, {}, kNow); },
              ThrowsMessage<StorageError>(Names("epoch 1", "epoch 2")));
  EXPECT_THAT(replayed(*newer), IsEmpty());
  newer->commit(records, {}, kNow);
  EXPECT_THAT(replayed(*newer), SizeIs(records.size()));
}

class SqliteHistoryTest : public testing::Test {
 protected:
  void execute(const char* sql) { Database(file_, Database::Mode::kReadWrite).execute(sql); }
  TemporaryDirectory directory_;
  std::filesystem::path file_ = directory_.path() / "history.sqlite";
};

TEST_F(SqliteHistoryTest, ACommitIsAllOrNothing) {
  const auto history = open_sqlite_history(file_, "test", kNow);
  std::vector<Record> records = one_of_each();
  history->commit(records, {}, kNow);
  // The outcome of the same episode a second time breaks the table's UNIQUE; the lease before it must vanish
  // with it.
  const std::vector<Record> doubled{LeaseGranted{{3}, {0}, 3, "c", kNow}, records[5]};
  EXPECT_THROW(history->commit(doubled, {}, kNow), StorageError);
  EXPECT_THAT(replayed(*history), SizeIs(records.size()));
  history->commit(std::span(doubled).first(1), {}, kNow);
  EXPECT_THAT(replayed(*history), SizeIs(records.size() + 1));
}

TEST_F(SqliteHistoryTest, AnotherSchemaVersionIsRefusedNamingBoth) {
  (void)open_sqlite_history(file_, "test", kNow);
  execute("PRAGMA user_version = 7");
  EXPECT_THAT([&] { (void)open_sqlite_history(file_, "test", kNow); },
              ThrowsMessage<Mismatch>(Names(file_, 7, 1, kHistorySchemaVersion)));
}

TEST_F(SqliteHistoryTest, AFileThatIsNoDatabaseIsCorrupt) {
  write_file_atomically(file_, std::string(10'000, 'x'));
  EXPECT_THAT([&] { (void)open_sqlite_history(file_, "test", kNow); },
              ThrowsMessage<CorruptFile>(Names(file_)));
}

TEST_F(SqliteHistoryTest, ADirectoryThatIsNotThereIsAStorageErrorNamingTheFile) {
  const auto file = directory_.path() / "no" / "history.sqlite";
  EXPECT_THAT([&] { (void)open_sqlite_history(file, "test", kNow); },
              ThrowsMessage<StorageError>(Names(file)));
}

TEST_F(SqliteHistoryTest, ValuesThatContradictTheFormatAreCorruptAndQuoted) {
  open_sqlite_history(file_, "test", kNow)->commit(one_of_each(), {}, kNow);
  for (const char* damage : {"UPDATE episodes SET samples = '3,,4' WHERE episode = 0",
                             "UPDATE episodes SET samples = '3x'",
                             "UPDATE outcomes SET correct = '1'",
                             "UPDATE outcomes SET verdict = 'perhaps'",
                             "UPDATE lease_ends SET ending = 'lost'",
                             "UPDATE set_asides SET kind = 'bored'",
                             "UPDATE kept_answers SET questions = '1'",
                             "UPDATE kept_answers SET finish = 'xx'",
                             "UPDATE steering SET action = 'hurry'",
                             "UPDATE steering SET value = '-1' WHERE action = 'episodes'",
                             "UPDATE steering SET value = '-0.5' WHERE action = 'target'",
                             "UPDATE steering SET value = '3=4' WHERE action = 'bounds'",
                             "UPDATE steering SET value = '0' WHERE action = 'lease-seconds'",
                             "UPDATE steering SET value = 'x' WHERE action = 'max-attempts'",
                             "UPDATE outcomes SET score = '1,0.5'",
                             "UPDATE outcomes SET score = '0.5,0.3,1'",
                             "UPDATE outcomes SET score = '1,nan,1'",
                             "UPDATE episodes SET kind = 'speed'",
                             "UPDATE steering SET value = '1' WHERE action = 'pause'",
                             "UPDATE versions SET shares = 'half'"}) {
    SCOPED_TRACE(damage);
    const auto copy = directory_.path() / "copy.sqlite";
    std::filesystem::copy_file(file_, copy, std::filesystem::copy_options::overwrite_existing);
    Database(copy, Database::Mode::kReadWrite).execute(damage);
    const auto history = open_sqlite_history(copy, "test", kNow);
    EXPECT_THROW(replayed(*history), CorruptFile);
  }
}

TEST(HistoryFormat, ListsReadBackToTheSameBits) {
  const std::vector<double> doubles{0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308, -0.0, 3};
  EXPECT_EQ(parse_list<double>(list_text(doubles), "test"), doubles);
  const std::vector<int32_t> integers{33, -8, 0, 2147483647, -2147483647 - 1};
  EXPECT_EQ(list_text(integers), "33,-8,0,2147483647,-2147483648");
  EXPECT_EQ(parse_list<int32_t>(list_text(integers), "test"), integers);
  EXPECT_EQ(parse_list<uint32_t>("4294967295,0", "test"), (std::vector<uint32_t>{4294967295u, 0}));
  for (const char* bad : {"4294967296", "-1"}) {
    EXPECT_THROW((void)parse_list<uint32_t>(bad, "test"), CorruptFile) << bad;
  }
  EXPECT_THAT(parse_list<int32_t>("", "test"), IsEmpty());
  for (const char* bad : {",", "1,", ",1", "1,,2", "1 2", "a", "1,99999999999", "2147483648", "-2147483649",
                          "-", "--1", "+1"}) {
    EXPECT_THROW((void)parse_list<int32_t>(bad, "test"), CorruptFile) << bad;
  }
}

}  // namespace
}  // namespace allot::aggregator
