// Real processes, killed with SIGKILL in the middle of a run, again and again.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <set>

#include "aggregator/history.h"
#include "aggregator/run_data.h"
#include "aggregator/run_directory.h"
#include "base/error.h"
#include "base/temporary_directory.h"
#include "tests/aggregator/child.h"
#include "tests/aggregator/episode_rows.h"
#include "tests/aggregator/replay.h"
#include "tests/aggregator/simulated_runner.h"
#include "tests/aggregator/simulated_spec.h"
#include "wire/status_query.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kEpisodes = 1500;
constexpr int kWorkers = 3;
constexpr int kAggregatorKills = 6;
constexpr std::chrono::milliseconds kDeadline = 60s;

const std::string kProgram = ALLOT_TEST_PROCESS;

class KillTest : public testing::Test {
 protected:
  void start_aggregator() {
    aggregator_ = std::make_unique<Child>(std::vector<std::string>{
        kProgram, "aggregator", run_.string(), endpoint_.empty() ? "tcp://127.0.0.1:*" : endpoint_,
        std::to_string(kEpisodes)});
    const std::string endpoint = aggregator_->line(kDeadline);
    ASSERT_FALSE(endpoint.empty()) << "the aggregator did not come up";
    endpoint_ = endpoint;
  }
  void start_worker(int number) {
    workers_[number] = std::make_unique<Child>(
        std::vector<std::string>{kProgram, "worker", endpoint_, fmt::format("worker-{}", number), "2000"});
  }
  // Waits until the run has learned from `episodes` episodes.
  void await_progress(int64_t episodes) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      try {
        if (wire::query_status(endpoint_, 1s).episodes_done() >= episodes) return;
      } catch (const NetworkError&) {
        // Not up yet; the deadline judges.
      }
    }
    FAIL() << "the run did not reach " << episodes << " episodes";
  }

  TemporaryDirectory directory_;
  std::filesystem::path run_ = directory_.path() / "run";
  std::string endpoint_;
  std::unique_ptr<Child> aggregator_;
  std::map<int, std::unique_ptr<Child>> workers_;
};

TEST_F(KillTest, AggregatorAndWorkersKilledAgainAndAgainLoseNothingAndCountNothingTwice) {
  ASSERT_NO_FATAL_FAILURE(start_aggregator());
  for (int number = 0; number < kWorkers; ++number) start_worker(number);
  for (int kill = 1; kill <= kAggregatorKills; ++kill) {
    ASSERT_NO_FATAL_FAILURE(await_progress(kill * kEpisodes / (kAggregatorKills + 1)));
    aggregator_->kill();
    const int victim = kill % kWorkers;
    workers_[victim]->kill();
    start_worker(victim);
    ASSERT_NO_FATAL_FAILURE(start_aggregator());
  }
  for (auto& [number, worker] : workers_) EXPECT_EQ(worker->wait(kDeadline), 0) << "worker " << number;
  EXPECT_EQ(aggregator_->wait(kDeadline), 0);

  const wire::RunSpec spec = simulated_spec(kEpisodes);
  const RunData run = read_run(run_);
  EXPECT_EQ(run.stage, "finished");
  const std::vector<EpisodeRow> episodes = episode_rows(run_);
  EXPECT_EQ(std::ranges::count(episodes, "learn", &EpisodeRow::stage), kEpisodes);
  EXPECT_EQ(std::ranges::count(episodes, "verify", &EpisodeRow::stage), verification_episodes(spec));
  EXPECT_EQ(run.counters.accepted() + run.counters.late(), std::ssize(episodes));
  EXPECT_EQ(run.counters.rejected(), 0);
  EXPECT_EQ(run.counters.malformed(), 0);

  const auto history = open_sqlite_history(history_path(run_), "test", SystemClock().now());
  EXPECT_EQ(history->epoch(), kAggregatorKills + 2);
  std::map<int64_t, double> expected;
  history->replay([&](const Record& record) {
    if (const auto* asked = std::get_if<EpisodeAsked>(&record)) {
      expected[asked->episode.id.value] = mean_score(simulated_results(asked->episode, spec.seed()));
    }
  });
  std::set<int64_t> counted;
  for (const EpisodeRow& row : episodes) {
    EXPECT_TRUE(counted.insert(row.episode).second) << "episode " << row.episode << " counted twice";
    EXPECT_EQ(row.reward, expected.at(row.episode)) << "episode " << row.episode;
  }
  const auto policy = replay_by_hand(*history, spec);
  EXPECT_EQ(policy->recommend().samples, run.recommended);
  EXPECT_EQ(policy->version(), run.policy_version);
}

TEST_F(KillTest, ASecondProcessOnTheSameRunDirectoryEndsAndTheFirstGoesOn) {
  ASSERT_NO_FATAL_FAILURE(start_aggregator());
  Child second({kProgram, "aggregator", run_.string(), "tcp://127.0.0.1:*", std::to_string(kEpisodes)});
  EXPECT_EQ(second.wait(kDeadline), 1);
  start_worker(1);
  ASSERT_NO_FATAL_FAILURE(await_progress(100));
  // A lock is only as good as its file system. Where it does not hold, the epoch does: the newer one ends the
  // older.
  const auto newer = open_sqlite_history(history_path(run_), "test", SystemClock().now());
  EXPECT_EQ(aggregator_->wait(kDeadline), 1);
  newer->commit({}, newer->counters(), SystemClock().now());
  workers_[1]->kill();
}

}  // namespace
}  // namespace allot::aggregator
