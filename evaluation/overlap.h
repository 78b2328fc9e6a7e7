// Finds questions that two data files share. A verdict on held-out questions is valid only when the learning
// never saw them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "evaluation/task.h"

namespace allot::evaluation {

// Rows of one question in two files, counted from 1 and without the header of CSV: lines of JSON lines.
struct RepeatedQuestion {
  uint32_t first_row = 0;
  uint32_t second_row = 0;
  friend bool operator==(const RepeatedQuestion&, const RepeatedQuestion&) = default;
};

// The questions of `second` that are also in `first`, in the order of `second`. Two questions are the same
// when the task has one prompt for both, white space at the ends of their fields aside: two that ask the same
// of different texts are not. A question that `first` holds several times is paired with the first of them.
std::vector<RepeatedQuestion> repeated_questions(const Task& task, const Dataset& first,
                                                 const Dataset& second);

// Throws UsageError when a question of `heldout` is also in `train`, with the number of such questions, the
// rows of the first ten in both files, and what to do.
void check_held_out(const Task& task, const Dataset& train, const Dataset& heldout);

}  // namespace allot::evaluation
