// What a worker runs: one schedule on one batch of questions. The connection knows only this interface, so
// tests and simulations can put anything behind it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "episode/episode.h"
#include "episode/question_result.h"
#include "episode/reply_text.h"

namespace allot::worker {

struct EpisodeResult {
  EpisodeId episode;
  std::vector<QuestionResult> results;  // one per question asked, in the order of Episode::questions
  std::vector<ReplyText> texts = {};    // of `results`, where Episode::replies wants them; else empty
  double seconds = 0;                   // from start to last answer
  std::string error;  // not empty: the episode could not be run, and why; results is then empty
};

// What a runner has done since it was made, for the operator of the run.
struct WorkDone {
  int64_t prompt_tokens = 0;  // of answered questions
  int64_t output_tokens = 0;
  double busy_seconds = 0;  // in advance(), with something to run
  double slot_seconds = 0;  // the same times the share of the batch that was in use
};

class EpisodeRunner {
 public:
  virtual ~EpisodeRunner() = default;
  // How many episodes at once keep this runner fully busy.
  virtual int capacity() const = 0;
  virtual void start(Episode episode) = 0;
  // Works for a while (one engine step) and returns the episodes that became complete. Returns at
  // once when idle.
  virtual std::vector<EpisodeResult> advance() = 0;
  // The results that a running episode already has, for some of its questions and in their order, and
  // the time they took. No results for an unknown episode, nor from a runner that answers episodes only
  // as a whole.
  virtual EpisodeResult answered_so_far(EpisodeId episode) const {
    return {.episode = episode, .results = {}, .seconds = 0, .error = ""};
  }
  virtual WorkDone work_done() const { return {}; }
  // Forgets an episode; unknown ids are ignored.
  virtual void cancel(EpisodeId episode) = 0;
};

}  // namespace allot::worker
