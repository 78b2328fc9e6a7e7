// Several runners that share one engine and its cache, so one of them is at work at a time: those of the
// kinds of reward, or of the tasks of an evaluation. Knows no LibTorch.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "worker/episode_runner.h"

namespace allot::worker {

class TurnsRunner final : public EpisodeRunner {
 public:
  // Which runner an episode is for. What it throws, start() throws.
  using RunnerOf = std::function<size_t(const Episode&)>;

  // `first` is the runner that is expected to work first: capacity() is then its. Runners end in the reverse
  // of their order, so that one may use what an earlier one has.
  TurnsRunner(std::vector<std::unique_ptr<EpisodeRunner>> runners, RunnerOf runner_of, size_t first);
  ~TurnsRunner() override;

  // That of the runner at work. While episodes of others wait, as many as are held: no more are wanted, so
  // that the others' turn comes.
  int capacity() const override;
  void start(Episode episode) override;
  std::vector<EpisodeResult> advance() override;
  EpisodeResult answered_so_far(EpisodeId episode) const override;
  WorkDone work_done() const override;
  void cancel(EpisodeId episode) override;

 private:
  // Hands the runner the episodes that wait for it.
  void take_turn(size_t runner);

  std::vector<std::unique_ptr<EpisodeRunner>> runners_;
  RunnerOf runner_of_;
  size_t at_work_;
  std::map<EpisodeId, size_t> held_;      // the runner of each
  std::map<EpisodeId, Episode> waiting_;  // of held_, those whose runner has not had its turn
};

// Those of the kinds of reward. `first` is the kind that is expected first. The divergences measure with the
// answers' engine.
std::unique_ptr<TurnsRunner> make_kinds_runner(std::unique_ptr<EpisodeRunner> answers,
                                               std::unique_ptr<EpisodeRunner> divergences, RewardKind first);

// Those of the tasks of an evaluation, by Episode::task. start() throws InvalidArgument for a task that is
// not among them.
std::unique_ptr<TurnsRunner> make_tasks_runner(std::vector<std::unique_ptr<EpisodeRunner>> tasks);

}  // namespace allot::worker
