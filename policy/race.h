// Two schedules on common questions: the mean of what the second is better by, with its error. Questions
// differ more than schedules do, so that a few pairs tell what many separate episodes do not.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <utility>

#include "policy/schedule.h"

namespace allot::policy {

class Race {
 public:
  // Which of the two an episode is of.
  enum class Side { kIncumbent = 0, kChallenger = 1 };

  Race(Schedule incumbent, Schedule challenger)
      : incumbent_(std::move(incumbent)), challenger_(std::move(challenger)) {}
  // Continues from what save() wrote; throws as nlohmann::json does.
  explicit Race(const nlohmann::json& saved);

  const Schedule& incumbent() const { return incumbent_; }
  const Schedule& challenger() const { return challenger_; }
  const Schedule& of(Side side) const { return side == Side::kIncumbent ? incumbent_ : challenger_; }

  // What one side earned on the questions of `group`, more being better, each side once. A half whose other
  // half never comes counts nothing.
  void tell(int64_t group, Side side, double value);

  int64_t pairs() const { return pairs_; }
  double mean() const;   // of challenger less incumbent; 0 without pairs
  double error() const;  // standard error of the mean; infinite with fewer than two pairs
  // mean() in errors; 0 where there are fewer than `least` pairs or none differs.
  double evidence(int64_t least) const;

  nlohmann::json save() const;

 private:
  Schedule incumbent_;
  Schedule challenger_;
  std::map<int64_t, std::pair<Side, double>> halves_;  // by group, whose other half is not told
  int64_t pairs_ = 0;
  double sum_ = 0;
  double squares_ = 0;
};

}  // namespace allot::policy
