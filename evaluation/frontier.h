// Accuracy against total: the schedules that follow from one run at several totals beside the even ones and
// dense attention, all on the same questions with the same draws. No model here: the caller scores.
#pragma once

#include <cstdint>
#include <filesystem>
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

struct Frontier {
  Conditions conditions;  // measured_on is there
  std::string tool_version;
  std::string run_id;  // of the schedule file that the totals follow from
  Accuracy dense;
  std::vector<FrontierPoint> points;  // in rising order of their totals
  friend bool operator==(const Frontier&, const Frontier&) = default;
};

// Of a total that was scored: `uniform` and `learned` [questions] are in [0, 1], for the same questions in
// the same order. `point` has total, resolved and the schedules. Throws InvalidArgument when the sizes
// differ.
FrontierPoint score_point(FrontierPoint point, std::span<const double> uniform,
                          std::span<const double> learned);

// frontier.json: {"schema_version": 1, "conditions", "tool_version", "run_id", "dense": {accuracy}, "totals":
// [{"total", "resolved", "uniform": {accuracy, "samples"}, "learned": {…}, "paired"}]}. The same content
// gives the same bytes.
std::string format_frontier(const Frontier& frontier);
// Inverse of format_frontier. Throws CorruptFile naming `place` and everything that is wrong, Unsupported for
// another schema version.
Frontier parse_frontier(std::string_view text, const std::string& place);
// Throws NotFound, and what parse_frontier throws.
Frontier read_frontier(const std::filesystem::path& file);

}  // namespace allot::evaluation
