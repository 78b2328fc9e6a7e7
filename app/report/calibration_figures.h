// The figures of `allot calibrate`: the schedule that was found, what one sample more or fewer does to it in
// each layer, and divergence against total.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "app/report/svg_chart.h"
#include "evaluation/calibration.h"
#include "kernels/method.h"

namespace allot::app {

// The budget of each layer as bars, the even schedule as a line; exact layers are named as such.
Chart calibrated_schedule_chart(const evaluation::Calibration& calibration, kernels::BudgetUnit unit);
// The change of -log(divergence) by one sample or row more in each layer, with its standard error, and by one
// fewer. There have to be sensitivities; exact layers, which have none, are named as such.
Chart sensitivity_chart(const evaluation::Calibration& calibration, kernels::BudgetUnit unit);
// Divergence of the even and of the learned schedules against their totals; of two totals or more.
Chart calibration_chart(std::span<const evaluation::Calibration> calibrations, kernels::BudgetUnit unit);

// Writes schedule-N.svg and sensitivities-N.svg of each total N, and divergence.svg for two totals or more,
// to `directory`, and returns the paths. Throws StorageError.
std::vector<std::filesystem::path> write_calibration_plots(
    std::span<const evaluation::Calibration> calibrations, kernels::BudgetUnit unit,
    const std::filesystem::path& directory);

}  // namespace allot::app
