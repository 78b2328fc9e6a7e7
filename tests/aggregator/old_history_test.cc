// Histories that earlier releases wrote still open, and their runs go on.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "aggregator/history_check.h"
#include "aggregator/history_format.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/core_driver.h"
#include "tests/aggregator/episode_rows.h"
#include "tests/aggregator/replay.h"
#include "wire/spec.h"

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Histories by the schema version that wrote them.
class OldHistoryTest : public testing::TestWithParam<int> {
 protected:
  explicit OldHistoryTest(int version = GetParam()) {
    std::filesystem::copy_file(std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/history" /
                                   fmt::format("version_{}.sqlite", version),
                               file());
    std::filesystem::permissions(file(), std::filesystem::perms::owner_write,
                                 std::filesystem::perm_options::add);
    write_file_atomically(spec_path(directory_.path()), wire::to_json(example_spec()));
  }
  std::filesystem::path file() const { return history_path(directory_.path()); }
  int64_t schema_version() const {
    return Statement(Database(file(), Database::Mode::kReadOnly), "PRAGMA user_version").value();
  }
  TemporaryDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(Versions, OldHistoryTest, testing::Values(1, 2, 3));

class Version1Test : public OldHistoryTest {
 protected:
  Version1Test() : OldHistoryTest(1) {}
};
class Version2Test : public OldHistoryTest {
 protected:
  Version2Test() : OldHistoryTest(2) {}
};

TEST_F(Version1Test, ItIsReadAsItIs) {
  ASSERT_EQ(schema_version(), 1);
  const RunData run = read_run(directory_.path());
  EXPECT_EQ(run.stage, "learn");
  EXPECT_THAT(episode_rows(directory_.path()), SizeIs(4)) << "the stale one is left out";
  EXPECT_EQ(run.counters.accepted(), 3);
  EXPECT_EQ(run.counters.set_aside(), 1);
  EXPECT_EQ(run.episodes_wanted, 10);
  EXPECT_THAT(run.controls, IsEmpty());
  ASSERT_THAT(run.given_up, SizeIs(1));
  EXPECT_EQ(run.given_up[0].reason, "");
  EXPECT_EQ(schema_version(), 1);
}

TEST_F(Version2Test, ItIsReadAsItIs) {
  ASSERT_EQ(schema_version(), 2);
  const RunData run = read_run(directory_.path());
  EXPECT_EQ(run.stage, "learn");
  std::vector<double> rewards;
  for (const EpisodeRow& row : episode_rows(directory_.path())) rewards.push_back(row.reward);
  EXPECT_THAT(rewards, ElementsAre(0.25, 0.5, 1, 0.5, 0.5)) << "the stale one is left out";
  EXPECT_EQ(run.kind, RewardKind::kAnswers);
  EXPECT_EQ(run.counters.answers_kept(), 3);
  EXPECT_EQ(run.episodes_wanted, 8);
  EXPECT_THAT(run.controls, SizeIs(4));
  ASSERT_THAT(run.given_up, SizeIs(1));
  EXPECT_EQ(run.given_up[0].kind, GiveUp::kPoisoned);
  EXPECT_EQ(schema_version(), 2);
}

TEST_P(OldHistoryTest, ItIsCheckedAsItIs) {
  const HistoryReport report = check_history(file(), example_spec());
  for (const HistoryProblem& problem : report.problems)
    ADD_FAILURE() << problem.where << ": " << problem.what;
  EXPECT_EQ(report.schema_version, GetParam());
  EXPECT_TRUE(report.exact);
  EXPECT_EQ(schema_version(), GetParam());
}

TEST_P(OldHistoryTest, ItIsBroughtUpToDateAndItsRunGoesOnToTheEnd) {
  ManualClock clock{Timestamp{Duration{1'700'001'000'000}}};
  const wire::RunSpec spec = example_spec();
  {
    const auto history = open_sqlite_history(file(), "test", clock.now());
    EXPECT_EQ(schema_version(), kHistorySchemaVersion);
    EXPECT_EQ(history->epoch(), 3);
    Core core(spec, policy::make_policy(policy_config(spec)), *history, clock.now());
    EXPECT_EQ(core.counters().failed(), 3);
    EXPECT_EQ(core.leases().num_live(), 2u);
    EXPECT_EQ(core.status(clock.now()).given_up(0).episode(), 0);
    const auto say = [&](wire::Envelope message) {
      message.set_sender("w");
      core.receive({"peer"}, wire::encode(message), clock.now());
      Outputs outputs = core.take();
      history->commit(outputs.records, core.counters(), clock.now());
      return outputs.replies.at(0).envelope;
    };
    wire::Envelope hello;
    *hello.mutable_hello() = example_hello(spec, "w");
    EXPECT_EQ(say(hello).welcome().epoch(), 3);
    clock.advance(Duration{60'000});
    core.tick(clock.now());
    while (core.stage() != Stage::kFinished) {
      wire::Envelope request;
      request.mutable_lease_request()->set_count(1);
      const wire::Envelope reply = say(request);
      ASSERT_EQ(reply.grant().leases_size(), 1);
      wire::Envelope result;
      *result.mutable_result() = result_of(reply.grant().leases(0), 2);
      ASSERT_EQ(say(result).ack().episode(), reply.grant().leases(0).episode());
    }
    EXPECT_EQ(replay_by_hand(*history, spec)->save(), core.policy().save());
  }
  EXPECT_EQ(read_run(directory_.path()).stage, "finished");
  EXPECT_EQ(read_run(directory_.path()).scores.size(), 3u);
}

// A new history and one that was brought up to date have the same tables.
TEST_P(OldHistoryTest, ItEndsUpWithTheTablesOfANewHistory) {
  const auto tables = [](const std::filesystem::path& history) {
    (void)open_sqlite_history(history, "test", Timestamp{});
    const Database database(history, Database::Mode::kReadOnly);
    std::vector<std::string> columns;
    Statement query(
        database,
        "SELECT m.name || '.' || c.name || ' ' || c.type || c.\"notnull\" || c.pk FROM sqlite_schema m, "
        "pragma_table_info(m.name) c WHERE m.type = 'table' ORDER BY m.name, c.cid");
    while (query.step()) columns.emplace_back(query.text(0));
    return columns;
  };
  const std::vector<std::string> upgraded = tables(file());
  EXPECT_GT(upgraded.size(), 50u);
  EXPECT_EQ(upgraded, tables(directory_.path() / "new.sqlite"));
}

// The rows from before have a link of the checksum chain, too.
TEST_P(OldHistoryTest, ItsRowsAreCoveredByTheChecksumChainFromThenOn) {
  (void)open_sqlite_history(file(), "test", Timestamp{});
  EXPECT_THAT(check_history(file(), example_spec()).problems, IsEmpty());
  Database(file(), Database::Mode::kReadWrite)
      .execute("UPDATE outcomes SET seconds = 9 WHERE seq = (SELECT max(seq) FROM outcomes)");
  EXPECT_THAT(check_history(file(), example_spec()).problems,
              testing::Contains(testing::Field(&HistoryProblem::where, testing::HasSubstr("outcomes"))));
}

}  // namespace
}  // namespace allot::aggregator
