// What a worker runs: one schedule on one batch of questions. The connection knows this interface only, so
// tests and simulations put anything behind it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/strong_id.h"

namespace allot::worker {

enum class Split : uint8_t { kTrain, kHeldout };
enum class Finish : uint8_t { kEos, kStop, kLength };

struct EpisodeTask {
  LeaseId lease;
  EpisodeId episode;
  std::vector<int32_t> samples;  // [layers]; empty = dense
  Split split = Split::kTrain;
  std::vector<uint32_t> questions;  // ids within the split
  uint32_t sampling_seed = 0;
};

struct QuestionOutcome {
  uint32_t question = 0;
  bool correct = false;
  Finish finish = Finish::kEos;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
};

struct EpisodeResult {
  LeaseId lease;
  EpisodeId episode;
  std::vector<QuestionOutcome> outcomes;  // one per question asked, in the order of EpisodeTask::questions
  double seconds = 0;                     // from start to last answer
  std::string error;  // not empty: the episode could not be run, and why; outcomes is then empty
};

class EpisodeRunner {
 public:
  virtual ~EpisodeRunner() = default;
  // Episodes this runner works on at once with benefit.
  virtual int capacity() const = 0;
  virtual void start(EpisodeTask task) = 0;
  // Works for a while (one engine step) and returns the episodes that became complete. Returns at once when
  // idle.
  virtual std::vector<EpisodeResult> advance() = 0;
  // The answers that a running episode has so far, some of its questions' in their order, and the time they
  // took. Without outcomes for an unknown episode, and from a runner that answers episodes as a whole.
  virtual EpisodeResult answered_so_far(EpisodeId episode) const {
    return {.lease = {}, .episode = episode, .outcomes = {}, .seconds = 0, .error = ""};
  }
  // Forgets an episode; unknown ids are ignored.
  virtual void cancel(EpisodeId episode) = 0;
};

}  // namespace allot::worker
