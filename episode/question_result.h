// What a question's reply was worth, as workers report it, histories store it and learners learn from it.
#pragma once

#include <cstdint>

namespace allot {

// Why a reply ended.
enum class Finish : uint8_t {
  kEos,     // the model ended it
  kStop,    // it held its final answer
  kLength,  // it was cut off at the limit of new tokens
};

struct QuestionResult {
  uint32_t question = 0;  // number within its split
  double score = 0;       // in the range of the episode's reward kind; answers: 1 right, 0 wrong, or between
  Finish finish = Finish::kEos;
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  friend bool operator==(const QuestionResult&, const QuestionResult&) = default;
};

}  // namespace allot
