#include "worker/turns_runner.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace allot::worker {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Finishes its oldest episode with each advance(), and notes what it does.
class FakeRunner final : public EpisodeRunner {
 public:
  FakeRunner(std::string name, int capacity, std::vector<std::string>* log)
      : name_(std::move(name)), capacity_(capacity), log_(*log) {}
  ~FakeRunner() override { log_.push_back(name_ + " ends"); }
  int capacity() const override { return capacity_; }
  void start(Episode episode) override { held_.push_back(episode.id); }
  std::vector<EpisodeResult> advance() override {
    log_.push_back(name_);
    if (held_.empty()) return {};
    const EpisodeId done = held_.front();
    held_.erase(held_.begin());
    return {{.episode = done, .results = {}, .seconds = 0, .error = name_}};
  }
  EpisodeResult answered_so_far(EpisodeId episode) const override {
    return {.episode = episode, .results = {}, .seconds = 0, .error = name_};
  }
  WorkDone work_done() const override {
    return {capacity_, 2 * capacity_, 0.5 * capacity_, 0.25 * capacity_};
  }
  void cancel(EpisodeId episode) override { std::erase(held_, episode); }

 private:
  std::string name_;
  int capacity_;
  std::vector<std::string>& log_;
  std::vector<EpisodeId> held_;
};

Episode episode_of(int64_t number, RewardKind kind) {
  Episode episode;
  episode.id = {number};
  episode.kind = kind;
  return episode;
}

class KindsRunnerTest : public testing::Test {
 protected:
  std::vector<std::string> log_;  // outlives the runner
  std::unique_ptr<TurnsRunner> runner_ =
      make_kinds_runner(std::make_unique<FakeRunner>("answers", 5, &log_),
                        std::make_unique<FakeRunner>("divergences", 9, &log_), RewardKind::kDivergence);
};

TEST_F(KindsRunnerTest, ItsWorkIsThatOfBoth) {
  const WorkDone done = runner_->work_done();
  EXPECT_EQ(done.prompt_tokens, 14);
  EXPECT_EQ(done.output_tokens, 28);
  EXPECT_EQ(done.busy_seconds, 7);
  EXPECT_EQ(done.slot_seconds, 3.5);
}

TEST_F(KindsRunnerTest, EachEpisodeGoesToTheRunnerOfItsKind) {
  runner_->start(episode_of(1, RewardKind::kAnswers));
  runner_->start(episode_of(2, RewardKind::kDivergence));
  EXPECT_EQ(runner_->answered_so_far({1}).error, "answers");
  EXPECT_EQ(runner_->answered_so_far({2}).error, "divergences");
  EXPECT_EQ(runner_->answered_so_far({3}).error, "");
  EXPECT_EQ(runner_->advance().at(0).error, "answers");
  EXPECT_EQ(runner_->advance().at(0).error, "divergences");
  EXPECT_THAT(runner_->advance(), IsEmpty());
}

TEST_F(KindsRunnerTest, OneKindIsAtWorkUntilItHasNoEpisodeLeft) {
  runner_->start(episode_of(1, RewardKind::kDivergence));
  runner_->start(episode_of(2, RewardKind::kAnswers));
  runner_->start(episode_of(3, RewardKind::kDivergence));
  for (int i = 0; i < 3; ++i) runner_->advance();
  EXPECT_THAT(log_, ElementsAre("divergences", "divergences", "answers"));
}

TEST_F(KindsRunnerTest, NoMoreEpisodesAreWantedWhileOthersWaitForTheirTurn) {
  EXPECT_EQ(runner_->capacity(), 9) << "of the kind that is expected first";
  runner_->start(episode_of(1, RewardKind::kAnswers));
  EXPECT_EQ(runner_->capacity(), 5);
  runner_->start(episode_of(2, RewardKind::kDivergence));
  EXPECT_EQ(runner_->capacity(), 2);
  runner_->advance();
  EXPECT_EQ(runner_->capacity(), 1);
  runner_->advance();
  EXPECT_EQ(runner_->capacity(), 9);
}

TEST_F(KindsRunnerTest, ACancelledEpisodeIsNotWaitedFor) {
  runner_->start(episode_of(1, RewardKind::kDivergence));
  runner_->start(episode_of(2, RewardKind::kAnswers));
  runner_->cancel({1});
  runner_->cancel({7});
  EXPECT_EQ(runner_->advance().at(0).episode.value, 2);
}

TEST_F(KindsRunnerTest, TheDivergencesEndBeforeTheAnswersWhoseEngineTheyUse) {
  runner_.reset();
  EXPECT_THAT(log_, ElementsAre("divergences ends", "answers ends"));
}

Episode of_task(int64_t number, uint32_t task) {
  Episode episode;
  episode.id = {number};
  episode.task = task;
  return episode;
}

class TasksRunnerTest : public testing::Test {
 protected:
  static std::vector<std::unique_ptr<EpisodeRunner>> tasks(std::vector<std::string>* log) {
    std::vector<std::unique_ptr<EpisodeRunner>> tasks;
    for (const char* name : {"a", "b", "c"}) tasks.push_back(std::make_unique<FakeRunner>(name, 4, log));
    return tasks;
  }
  // The tasks whose runners worked until nothing was left.
  std::string worked() {
    std::string names;
    for (auto done = runner_->advance(); !done.empty(); done = runner_->advance()) names += done.at(0).error;
    return names;
  }

  std::vector<std::string> log_;
  std::unique_ptr<TurnsRunner> runner_ = make_tasks_runner(tasks(&log_));
};

TEST_F(TasksRunnerTest, ATaskBeginsWhenThoseBeforeItHaveEnded) {
  for (const auto& [number, task] : {std::pair(1, 1u), std::pair(2, 0u), std::pair(3, 2u), std::pair(4, 1u)})
    runner_->start(of_task(number, task));
  EXPECT_EQ(runner_->capacity(), 4) << "as many as are held";
  EXPECT_EQ(worked(), "bbac");
}

TEST_F(TasksRunnerTest, AnEpisodeThatWaitsMayBeCancelledOrLeasedOnceMore) {
  runner_->start(of_task(1, 0));
  runner_->start(of_task(2, 1));
  runner_->start(of_task(3, 1));
  runner_->cancel({2});
  runner_->start(of_task(3, 1));
  EXPECT_EQ(worked(), "ab");
  EXPECT_EQ(runner_->capacity(), 4);
}

TEST_F(TasksRunnerTest, AnEpisodeOfAnotherTaskThanTheRunsIsRefused) {
  EXPECT_THROW(runner_->start(of_task(1, 3)), InvalidArgument);
  EXPECT_EQ(worked(), "");
}

}  // namespace
}  // namespace allot::worker
