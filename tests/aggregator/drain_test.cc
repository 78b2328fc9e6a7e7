// Real processes whose machine is taken away: SIGTERM in the middle of episodes, a long silence of the
// aggregator.
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <map>
#include <memory>

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

constexpr std::chrono::milliseconds kDeadline = 60s;
const std::string kProgram = ALLOT_TEST_PROCESS;

class DrainTest : public testing::Test {
 protected:
  void start_aggregator(int64_t episodes) {
    aggregator_ = std::make_unique<Child>(std::vector<std::string>{
        kProgram, "aggregator", run_.string(), endpoint_.empty() ? "tcp://127.0.0.1:*" : endpoint_,
        std::to_string(episodes)});
    endpoint_ = aggregator_->line(kDeadline);
    ASSERT_FALSE(endpoint_.empty()) << "the aggregator did not come up";
  }
  std::unique_ptr<Child> worker(const char* kind, const char* name, const char* step_us) const {
    return std::make_unique<Child>(std::vector<std::string>{kProgram, kind, endpoint_, name, step_us});
  }
  // Reads what a talking-worker prints until it has printed `line` `times` times.
  static void hear(Child* worker, const std::string& line, int times) {
    while (times > 0) {
      const std::string said = worker->line(kDeadline);
      ASSERT_FALSE(said.empty()) << "the worker has " << times << " times '" << line << "' left to say";
      times -= said == line;
    }
  }
  wire::Status await(const std::function<bool(const wire::Status&)>& reached) const {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < deadline) {
      try {
        const wire::Status status = wire::query_status(endpoint_, 1s);
        if (reached(status)) return status;
      } catch (const NetworkError&) {
        // Not up yet; the deadline judges.
      }
    }
    ADD_FAILURE() << "the run did not get there";
    return {};
  }

  TemporaryDirectory directory_;
  std::filesystem::path run_ = directory_.path() / "run";
  std::string endpoint_;
  std::unique_ptr<Child> aggregator_;
};

// A question takes 20 ms, an episode of 16 a third of a second, four are held.
TEST_F(DrainTest, APreemptedWorkerIsGoneWithinSecondsAndTheAnswersItHadAreNotAskedAgain) {
  constexpr int64_t kEpisodes = 8;
  ASSERT_NO_FATAL_FAILURE(start_aggregator(kEpisodes));
  const auto preempted = worker("talking-worker", "preempted", "20000");
  // The signal comes while it holds four again and has answered a question or two of one of them.
  ASSERT_NO_FATAL_FAILURE(hear(preempted.get(), "started", 5));
  ASSERT_NO_FATAL_FAILURE(hear(preempted.get(), "answered", 1));
  const auto asked = std::chrono::steady_clock::now();
  ::kill(preempted->pid(), SIGTERM);
  EXPECT_EQ(preempted->wait(kDeadline), 0);
  const auto took = std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - asked);
  EXPECT_LT(took, 5s);
  RecordProperty("drain_ms", static_cast<int>(took.count()));

  const wire::Status drained =
      await([](const wire::Status& status) { return status.episodes_running() == 0; });
  // More than four where the machine is so busy that the worker asked for its fifth a second time.
  EXPECT_GE(drained.counters().preempted(), 4);
  EXPECT_EQ(drained.counters().released(), drained.counters().preempted());
  EXPECT_EQ(drained.counters().timed_out() + drained.counters().crashed(), 0);
  EXPECT_GE(drained.counters().answers_kept(), 1);

  const auto heir = worker("worker", "heir", "0");
  EXPECT_EQ(heir->wait(kDeadline), 0);
  EXPECT_EQ(aggregator_->wait(kDeadline), 0);

  // Kept and later answers together are what one worker alone would have answered.
  const wire::RunSpec spec = simulated_spec(kEpisodes);
  const auto history = open_sqlite_history(history_path(run_), "test", SystemClock().now());
  EXPECT_EQ(replay_by_hand(*history, spec)->version(), read_run(run_).policy_version);
  std::map<EpisodeId, Episode> episodes;
  int64_t kept = 0;
  history->replay([&](const Record& record) {
    if (const auto* one = std::get_if<EpisodeAsked>(&record)) episodes[one->episode.id] = one->episode;
    if (const auto* one = std::get_if<AnswersKept>(&record)) kept += std::ssize(one->results);
    if (const auto* told = std::get_if<EpisodeTold>(&record)) {
      EXPECT_EQ(numbered(told->results, episodes.at(told->episode)),
                simulated_results(episodes.at(told->episode), spec.seed()));
    }
  });
  EXPECT_EQ(kept, drained.counters().answers_kept());
}

// The run has as many episodes to learn as the worker holds, so no Grant is under way when the aggregator is
// killed: one that got lost would rightly be offered twice.
TEST_F(DrainTest, EpisodesThatFinishedWhileNoAggregatorRanAreDeliveredToTheNextOne) {
  constexpr int kHeld = 4;
  ASSERT_NO_FATAL_FAILURE(start_aggregator(kHeld));
  const auto steady = worker("talking-worker", "steady", "10000");
  ASSERT_NO_FATAL_FAILURE(hear(steady.get(), "started", kHeld));
  aggregator_->kill();
  ASSERT_NO_FATAL_FAILURE(hear(steady.get(), "finished", kHeld));
  ASSERT_NO_FATAL_FAILURE(start_aggregator(kHeld));
  EXPECT_EQ(steady->wait(kDeadline), 0);
  EXPECT_EQ(aggregator_->wait(kDeadline), 0);
  const RunData run = read_run(run_);
  EXPECT_EQ(run.stage, "finished");
  EXPECT_EQ(run.counters.granted(), std::ssize(episode_rows(run_))) << "no episode was offered twice";
  EXPECT_EQ(run.counters.accepted(), run.counters.granted());
}

}  // namespace
}  // namespace allot::aggregator
