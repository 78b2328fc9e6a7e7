// Accuracy against total: the schedules that follow from one run at several totals beside the even ones and
// dense attention, all on the same questions with the same draws; and the even total that is as accurate as
// the learned schedule of the run. No model here: the caller scores.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "evaluation/accuracy.h"
#include "evaluation/conditions.h"
#include "policy/schedule.h"

namespace allot::evaluation {

struct FrontierPoint {
  int64_t total = 0;
  bool resolved = false;  // the learned schedule was solved from a run at another total
  policy::Schedule uniform_schedule = {};
  policy::Schedule learned_schedule = {};
  Accuracy uniform = {};
  Accuracy learned = {};
  PairedTest paired = {};  // learned against uniform
  friend bool operator==(const FrontierPoint&, const FrontierPoint&) = default;
};

// An even schedule that was measured beside the points, in search of the one that is as accurate.
struct EvenPoint {
  int64_t total = 0;
  policy::Schedule schedule = {};
  Accuracy accuracy = {};
  friend bool operator==(const EvenPoint&, const EvenPoint&) = default;
};

// Both replies to a question that is right under dense attention and not under the run's schedule.
struct LostReplies {
  uint32_t question = 0;  // number within the file
  std::string dense;
  std::string learned;
  friend bool operator==(const LostReplies&, const LostReplies&) = default;
};

struct Frontier {
  Conditions conditions;  // measured_on is there
  std::string tool_version;
  std::string run_id;  // of the schedule file that the totals follow from
  Accuracy dense;
  std::vector<FrontierPoint> points;   // in rising order of their totals
  std::vector<EvenPoint> even = {};    // rising, at other totals than those of the points
  std::vector<LostReplies> lost = {};  // rising; the first kMostLost
  friend bool operator==(const Frontier&, const Frontier&) = default;

  static constexpr size_t kMostLost = 10;
};

// Which even total is as accurate as the run's learned schedule. Accuracies are measured, so a total between
// the two is an estimate: on the straight line between their accuracies, over the logarithm of the total.
struct EqualEven {
  int64_t learned_total = 0;
  double learned = 0;              // accuracy
  std::optional<EvenPoint> below;  // the largest total less accurate than that, under `above`
  std::optional<EvenPoint> above;  // the smallest total as accurate; none: no total that was measured is
  double total = 0;                // the estimate; 0 without `above`
};

// Nothing where no point is of the run's own total.
std::optional<EqualEven> equal_even(const Frontier& frontier);

// The even total to measure next in search of it: twice the largest until one is as accurate, then between
// the two, until they are within a tenth of each other. Nothing when found, when `most` is not enough, or
// where no point is of the run's own total. Deterministic.
std::optional<int64_t> next_even_total(const Frontier& frontier, int64_t most);

// "the even schedule needs about 179 samples (1.1 times as many) to be as accurate as the learned one of 165,
// 46.7%: 165 give 30.2%, 190 give 49.0%".
std::string text(const EqualEven& equal, std::string_view unit);

// Of a total that was scored: `uniform` and `learned` [questions] are in [0, 1], for the same questions in
// the same order. `point` has total, resolved and the schedules. Throws InvalidArgument when the sizes
// differ.
FrontierPoint score_point(FrontierPoint point, std::span<const double> uniform,
                          std::span<const double> learned);

// frontier.json: {"schema_version": 1, "conditions", "tool_version", "run_id", "dense": {accuracy}, "totals":
// [{"total", "resolved", "uniform": {accuracy, "samples"}, "learned": {…}, "paired"}]}, and where they were
// measured "even": [{"total", "uniform"}] and "lost": [{"question", "dense", "learned"}]. The same
// content gives the same bytes.
std::string format_frontier(const Frontier& frontier);
// Inverse of format_frontier. Throws CorruptFile naming `place` and everything that is wrong, Unsupported for
// another schema version.
Frontier parse_frontier(std::string_view text, const std::string& place);
// Throws NotFound, and what parse_frontier throws.
Frontier read_frontier(const std::filesystem::path& file);

}  // namespace allot::evaluation
