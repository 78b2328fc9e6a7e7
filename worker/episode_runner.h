// What a worker runs: one schedule on one batch of questions. The connection knows this interface only, so
// tests and simulations put anything behind it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "episode/episode.h"
#include "episode/question_result.h"

namespace allot::worker {

struct EpisodeResult {
  EpisodeId episode;
  std::vector<QuestionResult> results;  // one per question asked, in the order of Episode::questions
  double seconds = 0;                   // from start to last answer
  std::string error;  // not empty: the episode could not be run, and why; results is then empty
};

class EpisodeRunner {
 public:
  virtual ~EpisodeRunner() = default;
  // Episodes this runner works on at once with benefit.
  virtual int capacity() const = 0;
  virtual void start(Episode episode) = 0;
  // Works for a while (one engine step) and returns the episodes that became complete. Returns at
  // once when idle.
  virtual std::vector<EpisodeResult> advance() = 0;
  // The answers that a running episode has so far, some of its questions' in their order, and the time they
  // took. Without results for an unknown episode, and from a runner that answers episodes as a whole.
  virtual EpisodeResult answered_so_far(EpisodeId episode) const {
    return {.episode = episode, .results = {}, .seconds = 0, .error = ""};
  }
  // Forgets an episode; unknown ids are ignored.
  virtual void cancel(EpisodeId episode) = 0;
};

}  // namespace allot::worker
