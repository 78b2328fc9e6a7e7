// What an episode measures of its schedule: the kinds of reward, one row each, with the range of a score,
// which direction is better, how a score is written and what reports call it. Everything that clamps,
// compares or prints a reward asks the row of the run's kind.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace allot {

enum class RewardKind : uint8_t {
  kAnswers,     // replies are generated and graded
  kDivergence,  // teacher-forced: mean KL divergence of the sampled from the dense next-token distributions
};

// Of the episodes of a preflight and of held-out questions, in every run.
inline constexpr RewardKind kVerifiedKind = RewardKind::kAnswers;

struct RewardKindRow {
  RewardKind kind;
  std::string_view name;     // in a spec and in the history: "answers", "divergence"
  std::string_view measure;  // what a reader calls it: "accuracy", "divergence"
  double low;                // range of a score, and so of a reward; `high` may be infinite
  double high;
  bool higher_is_better;
  std::string_view unit;             // of what format() prints: "%", "nats"
  double per_unit;                   // scores are multiplied by this to be in `unit`
  int decimals;                      // that format() prints
  std::string_view difference_unit;  // of what format_amount() prints: "points", "nats"
  bool generates;                    // replies are generated; false: the solutions of the data are read
  // Words of a report.
  std::string_view series;      // the name of its curve in TensorBoard
  std::string_view axis;        // what an axis of rewards shows: "right answers"
  std::string_view of_episode;  // what the reward of an episode is
  std::string_view of_run;      // what the rewards of a run are

  bool holds(double score) const { return score >= low && score <= high; }  // false for NaN
  // `score`, or the bound that it is beyond.
  double clamp(double score) const { return score < low ? low : score > high ? high : score; }
  // True when `score` is as good as `goal` or better.
  bool reaches(double score, double goal) const { return higher_is_better ? score >= goal : score <= goal; }
  // What a learner climbs, larger the better a schedule is: the reward itself; where lower is better -log of
  // it, so that halving a divergence is worth the same wherever it begins. `reward` is in the range.
  double utility(double reward) const;
  // "98.4%", "0.031 nats".
  std::string format(double score) const;
  // A difference of scores: "3.1 points", "0.031 nats"; with its range "+3.1 points (+1.0 to +5.2)".
  std::string format_amount(double difference) const;
  std::string format_difference(double difference, double from, double to) const;
};

std::span<const RewardKindRow> reward_kinds();
const RewardKindRow& row_of(RewardKind kind);
// Null for a name that is none of theirs; an empty one is `answers`, as below.
const RewardKindRow* find_reward_kind(std::string_view name);
// The kind of that name; an empty name is `answers`, which specs and histories from before there were other
// kinds mean. Throws InvalidArgument listing the names.
RewardKind parse_reward_kind(std::string_view name);

}  // namespace allot
