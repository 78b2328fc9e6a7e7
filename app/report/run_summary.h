// The results of a run, computed once for the report page, schedule.json and the terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "aggregator/run_data.h"
#include "app/files/schedule_file.h"
#include "base/clock.h"

namespace allot::app {

// Window of the moving mean of rewards, in episodes; also that of "mean reward recent" in a run's status.
inline constexpr int kRewardWindow = 20;

// The mean reward of the last kRewardWindow episodes (of all, when there are fewer; at least one is
// expected), with the 95 % interval that their spread gives (mean -+ 1.96 standard errors, within [0, 1]).
struct MovingMean {
  double mean = 0;
  double low = 0;
  double high = 0;
};
MovingMean moving_mean(std::span<const aggregator::LearnedEpisode> episodes, RewardKind kind);

// Accuracies of the verified schedules with their intervals, and learned against uniform question by
// question. Scores that the run does not have (yet) are absent. Throws CorruptFile when a score lists a
// question twice or has another number of results than questions.
EvaluationRecord evaluate(const aggregator::RunData& run);

// True where the preflight gave a reason against learning, and the run followed it.
bool stopped_by_preflight(const aggregator::RunData& run);

// An operator's command: its name ("pause", "episodes"), and the whole command in words ("stop
// after 120 episodes").
std::string action_name(const wire::ControlEvent& event);
std::string control_text(const wire::ControlEvent& event);
// "96 questions graded by two holders, 5 differ: mallory 5 of 48, ann 3 of 96", the worst three.
std::string cross_check_text(const wire::CrossCheck& checks);
// A number of keys: "512", "4k".
std::string context_text(int64_t keys);
// "2026-11-25 13:00:01 UTC".
std::string utc_text(Timestamp at);

// schedule.json of a run: its recommended schedule with the evidence so far. Its costs are the policy's
// shares of the budget; a learner that knows more is asked by a replay (aggregator/learned_costs.h). Throws
// InvalidArgument when the spec names an unknown estimator or score stage.
ScheduleFile schedule_file_of(const aggregator::RunData& run, const std::string& tool_version);

// What the budgets of a run count.
kernels::BudgetUnit unit_of(const wire::RunSpec& spec);
// The total of a run in its unit: "64 samples", or rows with what they are in samples.
std::string total_text(const wire::RunSpec& spec);

}  // namespace allot::app
