// What a run showed, beyond the accuracies: whether learning was over, what replies were like, which
// questions the learned schedule loses against dense attention, and what it saves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/run_data.h"
#include "evaluation/statistics.h"

namespace allot::app {

// Value rows that one token's decoding reads at a length of the context, over all layers and KV heads.
struct RowsRead {
  int64_t context = 0;
  int64_t dense = 0;    // every row
  int64_t learned = 0;  // at most: as if no two query heads of a group drew the same row
  int64_t dense_bytes = 0;
  int64_t learned_bytes = 0;
};

// A held-out question that is right under dense attention and not under the learned schedule.
struct LostQuestion {
  uint32_t question = 0;  // number within the held-out file
  QuestionResult dense;
  QuestionResult learned;
};

// What the replies of a verified schedule were like.
struct ReplyCounts {
  std::string label;  // "uniform", "learned", "dense"
  int64_t all = 0;
  int64_t cut_off = 0;    // reached the limit of new tokens
  int64_t no_answer = 0;  // no answer could be found in them
  int64_t tokens = 0;     // of all of them
};

struct Verdict {
  std::string learning;   // settled or not, and what going on may bring
  std::string no_update;  // that the schedule still is the even one; empty where it is not
  std::optional<evaluation::PairedTest> to_dense;  // learned against dense, on held-out questions
  std::vector<ReplyCounts> replies_of;             // each verified schedule
  int64_t lost = 0;                                // questions
  std::vector<LostQuestion> lost_questions;        // the first kMostLost of them
  std::vector<RowsRead> rows;  // contexts of 1k to 128k; empty where the model's shape is not known
  std::string command;         // that does the run again

  static constexpr size_t kMostLost = 10;
};

// "learned: 1.2% of the replies cut off, 0.0% without an answer, 51 tokens each".
std::string text(const ReplyCounts& replies);

// Of a run as far as it is. `directory` is where the command runs again, with this `grader` (run_again.h).
Verdict verdict_of(const aggregator::RunData& run, const std::string& directory,
                   const std::string& grader = "");

// "cut off after 96 tokens", "no answer in 31 tokens", "wrong in 31 tokens", "right in 31 tokens".
std::string reply_text(const QuestionResult& result);

}  // namespace allot::app
