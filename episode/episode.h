// An episode: one schedule scored on one batch of questions. What a learner asks for, a worker runs and
// a history keeps.
#pragma once

#include <cstdint>
#include <vector>

#include "base/strong_id.h"
#include "episode/reward_kind.h"

namespace allot {

// The data file that a question's number refers to.
enum class Split : uint8_t { kTrain, kHeldout };

struct Episode {
  EpisodeId id;
  RewardKind kind = RewardKind::kAnswers;
  Split split = Split::kTrain;
  // [layers], each a number or kExactLayer; empty = dense. In an evaluation perhaps [layers, num_kv_heads].
  std::vector<int32_t> samples;
  std::vector<uint32_t> questions;  // numbers within the split
  uint32_t sampling_seed = 0;       // second half of every draw's key
  bool replies = false;             // the texts of the replies are wanted, too
  uint32_t task = 0;                // which of a run's tasks the questions are of; its own is the first
  friend bool operator==(const Episode&, const Episode&) = default;
};

}  // namespace allot
