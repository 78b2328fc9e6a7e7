// The report of a run: one HTML file without outside resources or scripts, and its figures as SVG files.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "aggregator/run_data.h"
#include "evaluation/ablation.h"
#include "evaluation/frontier.h"
#include "evaluation/step_times.h"

namespace allot::app {

struct ReportInput {
  aggregator::RunData run;
  std::optional<evaluation::Ablation> ablation;
  std::optional<evaluation::Frontier> frontier = {};
  std::optional<evaluation::StepTimes> step_times = {};  // of the schedule that the run recommends
  std::string tool_version;
  std::filesystem::path directory = {};  // of the run, for the command that does it again
};

// The data of `run_directory`, with its ablation.json, frontier.json and step-times.json if there are such.
// Throws the errors of the readers, and Mismatch, naming the differences, when one of them was measured under
// other conditions or on schedules of another run.
ReportInput read_report_input(const std::filesystem::path& run_directory);
// The times of the run's step-times.json, where they are of the schedule that the run recommends now. Throws
// the errors of the reader.
std::optional<evaluation::StepTimes> step_times_of(const aggregator::RunData& run,
                                                   const std::filesystem::path& directory);
// The same in two steps: the run alone, which needs nothing but its own files, then what was measured
// besides.
ReportInput read_run_input(const std::filesystem::path& run_directory);
void add_measurements(ReportInput* input);

// The page as text: HTML5 that is also well-formed XML. The same input gives the same bytes. Throws
// CorruptFile when the run's data contradict each other (see evaluate).
std::string report_page(const ReportInput& input);

// Writes every figure as `directory`/NAME.svg and returns the paths. Throws StorageError.
std::vector<std::filesystem::path> write_plots(const ReportInput& input,
                                               const std::filesystem::path& directory);

}  // namespace allot::app
