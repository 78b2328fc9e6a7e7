// What a run's numbers say, computed once for the report page, schedule.json and the terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregator/run_data.h"
#include "app/schedule_file.h"

namespace allot::app {

// Window of the moving mean of rewards, in episodes; also that of "mean reward recent" in a run's status.
inline constexpr int kRewardWindow = 20;

// The mean of the last kRewardWindow values at every place (fewer at the start), with the 95 % interval that
// their spread gives (mean -+ 1.96 standard errors, within [0, 1]).
struct MovingMean {
  std::vector<double> mean;
  std::vector<double> low;
  std::vector<double> high;
};
MovingMean moving_mean(std::span<const double> rewards);

// Accuracies of the verified schedules with their intervals, and learned against uniform question by
// question. Scores that the run does not hold (yet) stay absent. Throws CorruptFile when a score lists a
// question twice or has another number of results than questions.
EvaluationRecord evaluate(const aggregator::RunData& run);

// The learning episodes of a run, in the order they were told.
std::vector<const aggregator::EpisodeRow*> learning_episodes(const aggregator::RunData& run);

// An operator's wish: its name ("pause", "episodes"), and what was asked for ("stop after 120 episodes").
std::string action_name(const wire::SteeringEvent& event);
std::string wish_text(const wire::SteeringEvent& event);

// schedule.json of a run: its recommended schedule with the evidence so far. Throws InvalidArgument when the
// spec names an unknown estimator or score stage.
ScheduleFile schedule_file_of(const aggregator::RunData& run, const std::string& tool_version);

}  // namespace allot::app
