// Scores fixed schedules on many questions with an episode runner: what evaluation and ablation do
// in one process.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "worker/episode_runner.h"

namespace allot::worker {

// Questions that are asked under one schedule.
struct Sitting {
  std::string label;             // in messages
  std::vector<int32_t> samples;  // [layers]; empty = dense
  std::vector<uint32_t> questions;
  uint32_t sampling_seed = 0;  // second half of every draw's key
};

// What a sitting's replies scored.
struct SittingScore {
  std::vector<double> scores;  // in the order of its questions, 1 right, 0 wrong or between
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cut_off = 0;  // replies that ended at their length limit
};

// Number of questions in one scoring episode.
inline constexpr uint32_t kQuestionsPerScoringEpisode = 16;
// The sitting of a scoring episode, as its index in the list; episodes are numbered from 0, sitting by
// sitting.
size_t scored_sitting(EpisodeId episode, std::span<const Sitting> sittings);

struct ScoringControl {
  std::function<void(int64_t answered, int64_t wanted)> progress;  // after every step
  std::function<bool()> stop_asked;
};

// Asks every question of every sitting, of the training split, in episodes that keep the runner full.
// Sittings of one sampling seed draw the same for a question, whatever their schedules. Throws Error when an
// episode cannot be run, with its reason, or when asked to stop.
std::vector<SittingScore> score_sittings(EpisodeRunner* runner, std::span<const Sitting> sittings,
                                         const ScoringControl& control);

}  // namespace allot::worker
