#include "tests/chaos/audit.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cmath>
#include <memory>
#include <thread>

#include "aggregator/history_chain.h"
#include "aggregator/history_mark.h"
#include "aggregator/run_directory.h"
#include "aggregator/service.h"
#include "aggregator/sqlite.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/example_spec.h"
#include "tests/aggregator/simulated_runner.h"
#include "tests/aggregator/simulated_spec.h"
#include "tests/names.h"
#include "worker/connection.h"

namespace allot::chaos {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

// A whole run that nothing happened to: 20 episodes of learning, then 30 of verification.
class AuditTest : public testing::Test {
 protected:
  AuditTest() {
    const wire::RunSpec spec = aggregator::simulated_spec(20);
    aggregator::ServiceOptions options;
    options.run_directory = run_;
    options.build = "test";
    options.exit_when_finished = true;
    aggregator::Service service(spec, options);
    const std::atomic<bool> never{false};
    const std::jthread worker([&] {
      worker::Connection connection({.endpoint = service.endpoint(), .exit_when_finished = true});
      connection.run(
          aggregator::example_hello(spec, "w"),
          [](const wire::RunSpec& given) {
            return std::make_unique<aggregator::SimulatedRunner>(given.seed(), 4,
                                                                 std::chrono::microseconds{0});
          },
          never);
    });
    service.run(never);
    live_ = service.status();
  }

  std::vector<std::string> faults_after(const std::string& damage) {
    {
      aggregator::Database database(aggregator::history_path(run_), aggregator::Database::Mode::kReadWrite);
      database.execute(damage);
      aggregator::begin_chain(&database);
    }
    // What checksums and mark find is tested with the history; here someone made up both.
    std::filesystem::remove(aggregator::mark_path(aggregator::history_path(run_)));
    return audit_run(run_).faults;
  }

  TemporaryDirectory directory_;
  std::filesystem::path run_ = directory_.path() / "run";
  wire::Status live_;
};

TEST_F(AuditTest, SoundRunHasNoFaults) {
  const Audit audit = audit_run(run_);
  EXPECT_THAT(audit.faults, IsEmpty());
  EXPECT_EQ(audit.outcomes, 50);
  EXPECT_EQ(audit.leases, 50);
  EXPECT_EQ(audit.policy_version, 2);
  EXPECT_EQ(audit.tells.size(), 50u);
  EXPECT_THAT(compare(audit, live_), IsEmpty());
}

// The verification teaches the policy nothing, so a replay alone would not notice.
TEST_F(AuditTest, OutcomeThatTheModelDoesNotGiveIsAFault) {
  EXPECT_THAT(
      faults_after("UPDATE outcomes SET correct = replace(replace(replace(correct, '0', 'x'), '1', '0'), "
                   "'x', '1') WHERE episode = 49"),
      ElementsAre(Names("outcome", "episode 49", "model")));
}

TEST_F(AuditTest, EpisodeWithoutAnOutcomeIsAFaultThoughTheCountersAgree) {
  EXPECT_THAT(faults_after("DELETE FROM outcomes WHERE seq = (SELECT max(seq) FROM outcomes); "
                           "UPDATE counters SET value = value - 1 WHERE name = 'accepted'"),
              AllOf(Contains(Names("episode", "outcomes", 0)), Contains(Names("episodes", 29, 30)),
                    Contains(Names("lease", "no end")), Contains(Names("replay", "stage", "verify"))));
}

// The table itself refuses a second outcome, so it is made anew without its rules.
TEST_F(AuditTest, EpisodeThatIsCountedTwiceIsAFaultThoughTheCountersAgree) {
  EXPECT_THAT(
      faults_after(
          "CREATE TABLE copies AS SELECT * FROM outcomes; DROP TABLE outcomes; "
          "ALTER TABLE copies RENAME TO outcomes; INSERT INTO outcomes "
          "SELECT (SELECT max(seq) + 1 FROM outcomes), episode, lease, told_ms, verdict, told_version, "
          "worker, seconds, correct, finish, prompt_tokens, output_tokens, score FROM outcomes WHERE episode = 49; "
          "UPDATE counters SET value = value + 1 WHERE name = 'accepted'"),
      Contains(Names("outcomes, episode 49", "told")));
}

TEST_F(AuditTest, CounterThatTheRowsDoNotGiveIsAFault) {
  EXPECT_THAT(faults_after("INSERT OR REPLACE INTO counters(name, value) VALUES('answers_kept', 3)"),
              ElementsAre(Names("answers_kept", 3, 0)));
}

TEST_F(AuditTest, FindingsOfTheHistoryCheckAreFaults) {
  EXPECT_THAT(faults_after("UPDATE outcomes SET told_version = 1 WHERE episode = 0"),
              Contains(Names("history check")));
}

TEST_F(AuditTest, LiveAggregatorWhosePolicyDiffersInTheLastBitIsAFault) {
  live_.set_shares(0, std::nextafter(live_.shares(0), 1.0));
  EXPECT_THAT(compare(audit_run(run_), live_), ElementsAre(Names("policy", "shares", "history")));
}

}  // namespace
}  // namespace allot::chaos
