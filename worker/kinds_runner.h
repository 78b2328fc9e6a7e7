// Runs episodes of every kind of reward, each with the runner of its kind. The runners share one engine and
// its cache, so one kind is at work at a time. Knows no LibTorch.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "worker/episode_runner.h"

namespace allot::worker {

class KindsRunner final : public EpisodeRunner {
 public:
  // `first` is the kind that is expected first: capacity() is then that of its runner.
  KindsRunner(std::unique_ptr<EpisodeRunner> answers, std::unique_ptr<EpisodeRunner> divergences,
              RewardKind first);

  // That of the runner at work. While episodes of the other kind wait, as many as are held: no more are
  // wanted, so that the others' turn comes.
  int capacity() const override;
  void start(Episode episode) override;
  std::vector<EpisodeResult> advance() override;
  EpisodeResult answered_so_far(EpisodeId episode) const override;
  WorkDone work_done() const override;
  void cancel(EpisodeId episode) override;

 private:
  EpisodeRunner& runner(RewardKind kind) const;
  bool holds(RewardKind kind) const;

  // The divergences measure with the answers' engine, so they go first.
  std::unique_ptr<EpisodeRunner> answers_;
  std::unique_ptr<EpisodeRunner> divergences_;
  RewardKind at_work_;
  std::map<EpisodeId, RewardKind> held_;
};

}  // namespace allot::worker
