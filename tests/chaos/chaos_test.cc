// Short chaos runs. The long ones of docs/internals/faults.md are the same code with other numbers; a failure
// names the seed and leaves the run directory and the logs of all processes where they are.
#include "tests/chaos/chaos.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/temporary_directory.h"

namespace allot::chaos {
namespace {

using testing::IsEmpty;
using namespace std::chrono_literals;

class ChaosTest : public testing::Test {
 protected:
  ~ChaosTest() override {
    if (HasFailure()) directory_.keep();
  }

  ChaosOptions options(const std::string& name) const {
    ChaosOptions options;
    options.directory = directory_.path() / name;
    options.allot = ALLOT_EXECUTABLE;
    options.worker = ALLOT_TEST_PROCESS;
    options.workers = 5;
    options.episode = 10ms;
    options.lease = 800ms;
    return options;
  }

  static ChaosReport run(const ChaosOptions& options) {
    ChaosReport report;
    try {
      report = run_chaos(options);
    } catch (const std::exception& error) {
      report.faults.emplace_back(error.what());
    }
    EXPECT_THAT(report.faults, IsEmpty())
        << describe(options, report) << "run and logs are in " << options.directory.string();
    return report;
  }

  TemporaryDirectory directory_;
};

TEST_F(ChaosTest, ProcessesThatAreKilledDrainedAndPausedLoseNothingAndCountNothingTwice) {
  ChaosOptions wild = options("run");
  wild.seed = 11;
  wild.episodes = 700;
  wild.aggregator_kills = 4;
  wild.worker_faults_per_second = 6;
  const ChaosReport report = run(wild);
  EXPECT_GE(report.aggregator_kills, 4);
  // One that is killed while it starts may not have begun its epoch.
  EXPECT_GE(report.audit.epochs, report.aggregator_kills - report.kills_during_start + 1);
  EXPECT_GT(report.worker_kills, 0);
  EXPECT_GT(report.worker_drains, 0);
  EXPECT_GT(report.worker_pauses, 0);
}

TEST_F(ChaosTest, TheHolderOfAKeyWhoWorksAgainstTheRunChangesNoResult) {
  ChaosOptions wild = options("run");
  wild.seed = 14;
  wild.episodes = 700;
  wild.aggregator_kills = 3;
  wild.worker_faults_per_second = 3;
  wild.hostile = true;
  const ChaosReport report = run(wild);
  EXPECT_GT(report.audit.counters.failed(), 0);
  EXPECT_GT(report.audit.counters.malformed(), 0);
}

TEST_F(ChaosTest, HostsThatAreCutOffAndPacketsThatAreLostLateAndOutOfOrderChangeNoResult) {
  if (const auto obstacle = Network::obstacle()) GTEST_SKIP() << "no hosts can be made here: " << *obstacle;
  ChaosOptions wild = options("run");
  wild.seed = 12;
  wild.policy = "reinforce";
  wild.episodes = 150;
  wild.aggregator_kills = 2;
  wild.hosts = 2;
  const ChaosReport report = run(wild);
  EXPECT_GT(report.partitions, 0);
  EXPECT_GT(report.packets.overtaken, 0);
  EXPECT_GT(report.packets.lost, 0);
  EXPECT_GT(report.packets.cut, 0);
}

// One episode at a time is asked and told, so what the policy learns does not depend on who is how fast.
TEST_F(ChaosTest, RunWithOneWorkerThatIsKilledAgainAndAgainLearnsWhatAnUndisturbedOneLearns) {
  ChaosOptions calm = options("calm");
  calm.episodes = 100;
  calm.workers = calm.capacity = 1;
  calm.aggregator_kills = 0;
  calm.worker_faults_per_second = 0;
  calm.rename_workers = false;
  calm.lease = 1500ms;  // none may run out on a busy machine either
  const ChaosReport undisturbed = run(calm);
  EXPECT_EQ(undisturbed.audit.leases, undisturbed.audit.episodes);

  ChaosOptions wild = calm;
  wild.directory = directory_.path() / "wild";
  wild.aggregator_kills = 3;
  wild.worker_faults_per_second = 4;
  const ChaosReport disturbed = run(wild);
  EXPECT_GT(disturbed.worker_kills, 0);
  EXPECT_GT(disturbed.audit.leases, disturbed.audit.episodes);
  EXPECT_EQ(disturbed.audit.tells, undisturbed.audit.tells);
  EXPECT_EQ(disturbed.audit.policy_state, undisturbed.audit.policy_state);
}

}  // namespace
}  // namespace allot::chaos
