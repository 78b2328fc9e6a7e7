// Writes the result files of a run, and prints its verdict.
#pragma once

#include <filesystem>
#include <string>

#include "aggregator/run_data.h"
#include "app/files/schedule_file.h"
#include "base/json.h"

namespace allot::app {

// Writes schedule.json and report.html of a run and brings its TensorBoard events up to date. The two files
// are replaced as a whole or not at all. Throws the errors of the readers and StorageError.
void write_results(const std::filesystem::path& run_directory);

// A table of the verified schedules with right answers, accuracy and 95 % interval, the paired verdict of
// learned against uniform, where the files lie, and the command that does it again with this `grader`.
std::string format_results(const aggregator::RunData& run, const std::filesystem::path& run_directory,
                           const std::string& grader);

// The same as one JSON object: run_id, run, stage, schedule, total, episodes, seconds, scores
// {label: …}, paired, files.
nlohmann::ordered_json results_json(const aggregator::RunData& run,
                                    const std::filesystem::path& run_directory, const std::string& grader);

}  // namespace allot::app
