#include "worker/turns_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace allot::worker {

TurnsRunner::TurnsRunner(std::vector<std::unique_ptr<EpisodeRunner>> runners, RunnerOf runner_of,
                         size_t first)
    : runners_(std::move(runners)), runner_of_(std::move(runner_of)), at_work_(first) {}

TurnsRunner::~TurnsRunner() {
  while (!runners_.empty()) runners_.pop_back();
}

int TurnsRunner::capacity() const {
  return waiting_.empty() ? runners_[at_work_]->capacity() : static_cast<int>(held_.size());
}

void TurnsRunner::start(Episode episode) {
  const size_t runner = runner_of_(episode);
  cancel(episode.id);
  if (held_.empty()) at_work_ = runner;
  held_[episode.id] = runner;
  if (runner == at_work_)
    runners_[runner]->start(std::move(episode));
  else
    waiting_[episode.id] = std::move(episode);
}

void TurnsRunner::take_turn(size_t runner) {
  at_work_ = runner;
  for (auto one = waiting_.begin(); one != waiting_.end();) {
    if (held_.at(one->first) != runner) {
      ++one;
      continue;
    }
    runners_[runner]->start(std::move(one->second));
    one = waiting_.erase(one);
  }
}

std::vector<EpisodeResult> TurnsRunner::advance() {
  if (held_.empty()) return {};
  const auto is_at_work = [&](const auto& entry) { return entry.second == at_work_; };
  if (std::ranges::none_of(held_, is_at_work)) take_turn(held_.begin()->second);
  std::vector<EpisodeResult> results = runners_[at_work_]->advance();
  for (const EpisodeResult& result : results) held_.erase(result.episode);
  return results;
}

EpisodeResult TurnsRunner::answered_so_far(EpisodeId episode) const {
  const auto found = held_.find(episode);
  if (found == held_.end()) return {.episode = episode, .results = {}, .seconds = 0, .error = ""};
  return runners_[found->second]->answered_so_far(episode);
}

WorkDone TurnsRunner::work_done() const {
  WorkDone all;
  for (const auto& runner : runners_) {
    const WorkDone done = runner->work_done();
    all.prompt_tokens += done.prompt_tokens;
    all.output_tokens += done.output_tokens;
    all.busy_seconds += done.busy_seconds;
    all.slot_seconds += done.slot_seconds;
  }
  return all;
}

void TurnsRunner::cancel(EpisodeId episode) {
  const auto found = held_.find(episode);
  if (found == held_.end()) return;
  if (waiting_.erase(episode) == 0) runners_[found->second]->cancel(episode);
  held_.erase(found);
}

std::unique_ptr<TurnsRunner> make_kinds_runner(std::unique_ptr<EpisodeRunner> answers,
                                               std::unique_ptr<EpisodeRunner> divergences, RewardKind first) {
  const auto place = [](RewardKind kind) { return size_t{kind == RewardKind::kDivergence}; };
  std::vector<std::unique_ptr<EpisodeRunner>> runners;
  runners.push_back(std::move(answers));
  runners.push_back(std::move(divergences));
  return std::make_unique<TurnsRunner>(
      std::move(runners), [place](const Episode& episode) { return place(episode.kind); }, place(first));
}

std::unique_ptr<TurnsRunner> make_tasks_runner(std::vector<std::unique_ptr<EpisodeRunner>> tasks) {
  const size_t number = tasks.size();
  const auto of = [number](const Episode& episode) {
    if (episode.task >= number)
      throw InvalidArgument(fmt::format("episode {} is of task {}, and the run has {} tasks",
                                        episode.id.value, episode.task, number));
    return size_t{episode.task};
  };
  return std::make_unique<TurnsRunner>(std::move(tasks), of, 0);
}

}  // namespace allot::worker
