// Scores fixed schedules on many questions with an episode runner: what evaluation and ablation do
// in one process.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "worker/episode_runner.h"

namespace allot::worker {

// Scores of one schedule's replies, in question order.
struct ScheduleScore {
  std::vector<double> scores;  // [questions], 1 right, 0 wrong or between
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cut_off = 0;  // replies that ended at their length limit
};

// Number of questions in one scoring episode.
inline constexpr uint32_t kQuestionsPerScoringEpisode = 16;
// The schedule of a scoring episode, as its index in the list; episodes are numbered from 0,
// schedule by schedule.
size_t scored_schedule(EpisodeId episode, uint32_t questions);

struct ScoringControl {
  std::function<void(int64_t answered, int64_t wanted)> progress;  // after every step
  std::function<bool()> stop_asked;
};

// Scores each schedule ([layers] samples; empty = dense) on the questions 0 .. `questions` of the training
// split, in episodes that keep the runner full. All have sampling seed 0, so a question's draws are the same
// under every schedule. Throws Error when an episode cannot be run, with its reason, or when asked to stop.
std::vector<ScheduleScore> score_schedules(EpisodeRunner* runner,
                                           std::span<const std::vector<int32_t>> schedules,
                                           uint32_t questions, const ScoringControl& control);

}  // namespace allot::worker
