// The score of one reply with its tokens, as workers report it, histories store it and learners
// learn from it.
#pragma once

#include <cstdint>
#include <span>

#include "episode/finish.h"

namespace allot {

struct QuestionResult {
  uint32_t question = 0;  // number within its split
  double score = 0;       // in the range of the episode's reward kind; answers: 1 right, 0 wrong, or between
  Finish finish = Finish::kEos;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  bool no_answer = false;  // no answer could be found in the reply
  friend bool operator==(const QuestionResult&, const QuestionResult&) = default;
};

// The reward of an episode: the mean score of its questions, of which there is at least one.
inline double mean_score(std::span<const QuestionResult> results) {
  double sum = 0;
  for (const QuestionResult& result : results) sum += result.score;
  return sum / static_cast<double>(results.size());
}

}  // namespace allot
