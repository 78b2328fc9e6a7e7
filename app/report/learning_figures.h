// The figures of `allot analyze learning`: how good the recommended schedule was after so many episodes and
// after so much time of workers, a curve for each learner, and what each learner gained in the end.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "app/report/learning_runs.h"
#include "app/report/svg_chart.h"

namespace allot::app {

// What a learning curve has on its horizontal axis.
enum class LearningCost {
  kEpisodes,
  kWorkerSeconds,
};

// Accuracy of the recommended schedule against `cost`: the mean over seeds with its standard deviation, a
// curve for each of the groups. All are of one estimator and total and have curves; there is at least one.
Chart learning_curve_chart(std::span<const LearningGroup* const> groups, LearningCost cost);
// Verified gain against the total: the mean over seeds, and the least and the most of them, a series for each
// learner. All groups are of one estimator; there is at least one.
Chart gain_chart(std::span<const LearningGroup* const> groups);

// Writes curve-episodes-ESTIMATOR-N.svg and curve-seconds-ESTIMATOR-N.svg of each total N of which there are
// curves, and gain-ESTIMATOR.svg of each estimator, to `directory`, and returns the paths. ESTIMATOR is its
// name, with a number behind it where several methods share one. Throws StorageError.
std::vector<std::filesystem::path> write_learning_plots(std::span<const LearningGroup> groups,
                                                        const std::filesystem::path& directory);

}  // namespace allot::app
