#include "worker/kinds_runner.h"

#include <algorithm>
#include <utility>

namespace allot::worker {

KindsRunner::KindsRunner(std::unique_ptr<EpisodeRunner> answers, std::unique_ptr<EpisodeRunner> divergences,
                         RewardKind first)
    : answers_(std::move(answers)), divergences_(std::move(divergences)), at_work_(first) {}

EpisodeRunner& KindsRunner::runner(RewardKind kind) const {
  return kind == RewardKind::kDivergence ? *divergences_ : *answers_;
}

bool KindsRunner::holds(RewardKind kind) const {
  return std::ranges::any_of(held_, [&](const auto& entry) { return entry.second == kind; });
}

int KindsRunner::capacity() const {
  const bool others_wait =
      std::ranges::any_of(held_, [&](const auto& entry) { return entry.second != at_work_; });
  return others_wait ? static_cast<int>(held_.size()) : runner(at_work_).capacity();
}

void KindsRunner::start(Episode episode) {
  cancel(episode.id);
  if (held_.empty()) at_work_ = episode.kind;
  held_[episode.id] = episode.kind;
  runner(episode.kind).start(std::move(episode));
}

std::vector<EpisodeResult> KindsRunner::advance() {
  if (held_.empty()) return {};
  if (!holds(at_work_)) at_work_ = held_.begin()->second;
  std::vector<EpisodeResult> results = runner(at_work_).advance();
  for (const EpisodeResult& result : results) held_.erase(result.episode);
  return results;
}

EpisodeResult KindsRunner::answered_so_far(EpisodeId episode) const {
  const auto found = held_.find(episode);
  if (found == held_.end()) return {.episode = episode, .results = {}, .seconds = 0, .error = ""};
  return runner(found->second).answered_so_far(episode);
}

WorkDone KindsRunner::work_done() const {
  const WorkDone answers = answers_->work_done(), divergences = divergences_->work_done();
  return {.prompt_tokens = answers.prompt_tokens + divergences.prompt_tokens,
          .output_tokens = answers.output_tokens + divergences.output_tokens,
          .busy_seconds = answers.busy_seconds + divergences.busy_seconds,
          .slot_seconds = answers.slot_seconds + divergences.slot_seconds};
}

void KindsRunner::cancel(EpisodeId episode) {
  const auto found = held_.find(episode);
  if (found == held_.end()) return;
  runner(found->second).cancel(episode);
  held_.erase(found);
}

}  // namespace allot::worker
