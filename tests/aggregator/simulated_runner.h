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
#include "worker/episode_runner.h"

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
  void start(Episode episode) override { running_.push_back({std::move(episode), {}}); }
  std::vector<worker::EpisodeResult> advance() override {
    if (running_.empty()) return {};
    if (step_.count() > 0) std::this_thread::sleep_for(step_);  // the model's time
    Running& oldest = running_.front();
    do {
      oldest.results.push_back(answer(oldest.episode, oldest.episode.questions[oldest.results.size()]));
    } while (!by_questions_ && oldest.results.size() < oldest.episode.questions.size());
    if (oldest.results.size() < oldest.episode.questions.size()) return {};
    worker::EpisodeResult result = answered_so_far(oldest.episode.id);
    running_.pop_front();
    return {std::move(result)};
  }
  worker::EpisodeResult answered_so_far(EpisodeId episode) const override {
    worker::EpisodeResult result{.episode = episode, .results = {}, .seconds = 0, .error = ""};
    for (const Running& running : running_) {
      if (running.episode.id != episode) continue;
      result.results = running.results;
      result.seconds = 0.001;
    }
    return result;
  }
  void cancel(EpisodeId episode) override {
    std::erase_if(running_, [&](const Running& running) { return running.episode.id == episode; });
  }

 private:
  struct Running {
    Episode episode;
    std::vector<QuestionResult> results;
  };

  QuestionResult answer(const Episode& episode, uint32_t question) const {
    const double chance = episode.samples.empty()
                              ? landscape_.dense
                              : landscape_.chance(policy::Schedule{episode.samples}, question);
    const float draw = draw_uniform({.key = {run_seed_, episode.sampling_seed}, .question = question}, 0);
    return {question, draw < chance ? 1.0 : 0.0, Finish::kStop, 200, 50};
  }

  uint32_t run_seed_;
  int capacity_;
  std::chrono::microseconds step_;
  bool by_questions_ = false;
  policy::Landscape landscape_ = policy::tiny_landscape();
  std::deque<Running> running_;
};

// The results of an outcome with the questions' numbers, which a history does not repeat.
inline std::vector<QuestionResult> numbered(std::vector<QuestionResult> results, const Episode& episode) {
  for (size_t i = 0; i < results.size() && i < episode.questions.size(); ++i)
    results[i].question = episode.questions[i];
  return results;
}

// What any worker answers to `episode`.
inline std::vector<QuestionResult> simulated_results(const Episode& episode, uint32_t run_seed) {
  SimulatedRunner runner(run_seed, 1, std::chrono::microseconds{0});
  runner.start(episode);
  return runner.advance().at(0).results;
}

}  // namespace allot::aggregator
