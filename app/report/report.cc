#include "app/report/report.h"

#include "app/report/figures.h"
#include "app/report/run_summary.h"
#include "app/version.h"
#include "base/file.h"

namespace allot::app {

ReportInput read_report_input(const std::filesystem::path& run_directory) {
  return {.run = aggregator::read_run(run_directory), .ablation = std::nullopt, .tool_version = version()};
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
