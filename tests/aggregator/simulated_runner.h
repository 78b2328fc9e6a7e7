// Stands for the model: answers are a function of schedule, question and sampling seed, drawn from the
// landscape that policy/simulation.h gives for the embedded model, so any worker gives the same results.
#pragma once

#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/records.h"
#include "base/philox.h"
#include "policy/simulation.h"
#include "worker/episode.h"

namespace allot::aggregator {

class SimulatedRunner final : public worker::EpisodeRunner {
 public:
  // One episode per advance(), which takes `step`, as an engine step would.
  SimulatedRunner(uint32_t run_seed, int capacity, std::chrono::microseconds step)
      : run_seed_(run_seed), capacity_(capacity), step_(step) {}

  // From now on an advance() answers one question of the oldest episode, so that episodes are partly
  // answered.
  void go_by_questions() { by_questions_ = true; }

  int capacity() const override { return capacity_; }
  void start(worker::EpisodeTask task) override { running_.push_back({std::move(task), {}}); }
  std::vector<worker::EpisodeResult> advance() override {
    if (running_.empty()) return {};
    if (step_.count() > 0) std::this_thread::sleep_for(step_);  // the model's time
    Running& oldest = running_.front();
    do {
      oldest.outcomes.push_back(answer(oldest.task, oldest.task.questions[oldest.outcomes.size()]));
    } while (!by_questions_ && oldest.outcomes.size() < oldest.task.questions.size());
    if (oldest.outcomes.size() < oldest.task.questions.size()) return {};
    worker::EpisodeResult result = answered_so_far(oldest.task.episode);
    running_.pop_front();
    return {std::move(result)};
  }
  worker::EpisodeResult answered_so_far(EpisodeId episode) const override {
    worker::EpisodeResult result{.lease = {}, .episode = episode, .outcomes = {}, .seconds = 0, .error = ""};
    for (const Running& running : running_) {
      if (running.task.episode != episode) continue;
      result.lease = running.task.lease;
      result.outcomes = running.outcomes;
      result.seconds = 0.001;
    }
    return result;
  }
  void cancel(EpisodeId episode) override {
    std::erase_if(running_, [&](const Running& running) { return running.task.episode == episode; });
  }

 private:
  struct Running {
    worker::EpisodeTask task;
    std::vector<worker::QuestionOutcome> outcomes;
  };

  worker::QuestionOutcome answer(const worker::EpisodeTask& task, uint32_t question) const {
    const double chance =
        task.samples.empty() ? landscape_.dense : landscape_.chance(policy::Schedule{task.samples}, question);
    const float draw = draw_uniform({.key = {run_seed_, task.sampling_seed}, .question = question}, 0);
    return {question, draw < chance, worker::Finish::kStop, 200, 50};
  }

  uint32_t run_seed_;
  int capacity_;
  std::chrono::microseconds step_;
  bool by_questions_ = false;
  policy::Landscape landscape_ = policy::tiny_landscape();
  std::deque<Running> running_;
};

// What any worker answers to `episode`.
inline std::vector<QuestionResult> simulated_results(const Episode& episode, uint32_t run_seed) {
  SimulatedRunner runner(run_seed, 1, std::chrono::microseconds{0});
  runner.start({.lease = {},
                .episode = episode.episode,
                .samples = episode.samples,
                .questions = episode.questions,
                .sampling_seed = episode.sampling_seed});
  const std::vector<worker::EpisodeResult> answered = runner.advance();
  std::vector<QuestionResult> results;
  for (const worker::QuestionOutcome& outcome : answered.at(0).outcomes)
    results.push_back(
        {outcome.correct, wire::FINISH_REASON_STOP, outcome.prompt_tokens, outcome.output_tokens});
  return results;
}

}  // namespace allot::aggregator
