#include "app/report/report.h"

#include <fmt/format.h>

#include "app/cli/version.h"
#include "app/report/figures.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

// An ablation under other conditions says nothing about this run.
void check_belongs(const evaluation::Ablation& ablation, const wire::RunSpec& spec,
                   const std::string& place) {
  const auto differences = evaluation::differences_from_run(ablation.conditions, worker::conditions_of(spec));
  if (differences.empty()) return;
  throw Mismatch(
      fmt::format("{} was measured under other conditions than the run (ablation against run): {}; "
                  "remove the file, or measure it again with `allot ablate --run`, which takes the "
                  "conditions of the run",
                  place, evaluation::describe(differences)));
}

void check_belongs(const evaluation::Frontier& frontier, const wire::RunSpec& spec,
                   const std::string& place) {
  const auto differences = evaluation::decisive_differences(frontier.conditions, worker::conditions_of(spec));
  if (differences.empty() && frontier.run_id == spec.run_id()) return;
  throw Mismatch(fmt::format(
      "{} was measured on the run '{}' and this run is '{}'; under other conditions (there against run): {}; "
      "remove the file, or measure it again with `allot verify --total --run`, which takes the conditions of "
      "the run",
      place, frontier.run_id, spec.run_id(),
      differences.empty() ? "none" : evaluation::describe(differences)));
}

}  // namespace

std::optional<evaluation::StepTimes> step_times_of(const aggregator::RunData& run,
                                                   const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / "step-times.json";
  if (!std::filesystem::exists(file)) return std::nullopt;
  evaluation::StepTimes times = evaluation::read_step_times(file);
  if (times.schedule.samples != run.recommended) return std::nullopt;
  return times;
}

ReportInput read_run_input(const std::filesystem::path& run_directory) {
  return {.run = aggregator::read_run(run_directory),
          .ablation = std::nullopt,
          .tool_version = version(),
          .directory = run_directory};
}

void add_measurements(ReportInput* input) {
  if (const std::filesystem::path file = input->directory / "ablation.json"; std::filesystem::exists(file)) {
    input->ablation = evaluation::read_ablation(file);
    check_belongs(*input->ablation, input->run.spec, file.string());
  }
  if (const std::filesystem::path file = input->directory / "frontier.json"; std::filesystem::exists(file)) {
    input->frontier = evaluation::read_frontier(file);
    check_belongs(*input->frontier, input->run.spec, file.string());
  }
  input->step_times = step_times_of(input->run, input->directory);
}

ReportInput read_report_input(const std::filesystem::path& run_directory) {
  ReportInput input = read_run_input(run_directory);
  add_measurements(&input);
  return input;
}

std::vector<std::filesystem::path> write_plots(const ReportInput& input,
                                               const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  for (const Figure& figure : make_figures(input, evaluate(input.run))) {
    paths.push_back(directory / (figure.name + ".svg"));
    write_file_atomically(paths.back(), figure.file);
  }
  return paths;
}

}  // namespace allot::app
