// Stands for the model: answers are a function of schedule, question and sampling seed, drawn from the
// landscape that policy/simulation.h gives for the embedded model, so any worker gives the same results.
#pragma once

#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "policy/simulation.h"
#include "worker/episode.h"

namespace allot::aggregator {

class SimulatedRunner final : public worker::EpisodeRunner {
 public:
  // One episode per advance(), which takes `step`, as an engine step would.
  SimulatedRunner(uint32_t run_seed, int capacity, std::chrono::microseconds step)
      : run_seed_(run_seed), capacity_(capacity), step_(step) {}

  int capacity() const override { return capacity_; }
  void start(worker::EpisodeTask task) override { tasks_.push_back(std::move(task)); }
  std::vector<worker::EpisodeResult> advance() override {
    if (tasks_.empty()) return {};
    if (step_.count() > 0) std::this_thread::sleep_for(step_);  // the model's time
    const worker::EpisodeTask task = std::move(tasks_.front());
    tasks_.pop_front();
    return {answer(task)};
  }
  void cancel(EpisodeId episode) override {
    std::erase_if(tasks_, [&](const worker::EpisodeTask& task) { return task.episode == episode; });
  }

 private:
  worker::EpisodeResult answer(const worker::EpisodeTask& task) const {
    worker::EpisodeResult result{
        .lease = task.lease, .episode = task.episode, .outcomes = {}, .seconds = 0.001, .error = ""};
    for (const uint32_t question : task.questions) {
      const double chance = task.samples.empty()
                                ? landscape_.dense
                                : landscape_.chance(policy::Schedule{task.samples}, question);
      const float draw = draw_uniform({.key = {run_seed_, task.sampling_seed}, .question = question}, 0);
      result.outcomes.push_back({question, draw < chance, worker::Finish::kStop, 200, 50});
    }
    return result;
  }

  uint32_t run_seed_;
  int capacity_;
  std::chrono::microseconds step_;
  policy::Landscape landscape_ = policy::tiny_landscape();
  std::deque<worker::EpisodeTask> tasks_;
};

}  // namespace allot::aggregator
