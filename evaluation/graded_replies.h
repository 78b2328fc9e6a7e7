// Files of graded replies, a JSON object a line: what `eval --details` and `grade --keep` write, and what a
// program of one's own may. Two of them about the same questions are compared question by question, whichever
// engines they come from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "evaluation/statistics.h"

namespace allot::evaluation {

struct GradedReply {
  uint32_t question = 0;
  double score = 0;                  // 0 to 1
  std::optional<std::string> reply;  // the text, where the file has it
  std::optional<std::string> gold;   // the answer that is right
};

struct GradedReplies {
  std::string label;                 // the file, and the schedule where the file has several
  std::vector<GradedReply> replies;  // by question
};

// Reads "score" (0 to 1) or, without it, "correct" (true, false, 0, 1) of each line, and "question" (its
// number), "repeat" (a question asked several times has the mean of its repeats as its score), "reply" or
// "prediction", and "gold" where they are; other fields may hold anything. Where no line
// has a question's number, lines are numbered from 0. A file with several schedules (field "schedule") needs
// `schedule` to name one; empty otherwise. Throws NotFound; CorruptFile naming file, line and field, also for
// a question that comes twice; UsageError naming the schedules that the file has.
GradedReplies read_graded_replies(const std::filesystem::path& file, const std::string& schedule);

struct ScoreDifference {
  uint32_t question = 0;
  double first = 0, second = 0;
};

struct RepliesComparison {
  PairedTest test;
  std::vector<ScoreDifference> different;  // questions that do not have the same score
  std::optional<int64_t> same_replies;     // equal texts; nothing where a reply has none

  // Whether the 95 % interval of the difference holds 0.
  bool within_interval() const { return test.interval.low <= 0 && test.interval.high >= 0; }
};

// Throws Mismatch where the two are not about the same questions: other numbers, or other right answers.
RepliesComparison compare_replies(const GradedReplies& first, const GradedReplies& second);

}  // namespace allot::evaluation
