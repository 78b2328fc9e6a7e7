#include "app/report/report.h"

#include <fmt/format.h>

#include "app/cli/version.h"
#include "app/report/figures.h"
#include "app/report/run_summary.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

// An ablation of other weights or another task says nothing about this run.
void check_belongs(const evaluation::Ablation& ablation, const wire::RunSpec& spec,
                   const std::string& place) {
  const auto check = [&](const char* what, const std::string& ablated, const std::string& learned) {
    if (ablated == learned) return;
    throw Mismatch(
        fmt::format("{}: {} {} was ablated, the run has {}; remove the file or ablate the model of the run",
                    place, what, ablated, learned));
  };
  check("model with weights", ablation.settings.weights_fingerprint, spec.model().weights_fingerprint());
  check("task", ablation.settings.task, spec.task().name());
}

}  // namespace

ReportInput read_report_input(const std::filesystem::path& run_directory) {
  ReportInput input{
      .run = aggregator::read_run(run_directory), .ablation = std::nullopt, .tool_version = version()};
  const std::filesystem::path ablation = run_directory / "ablation.json";
  if (std::filesystem::exists(ablation)) {
    input.ablation = evaluation::read_ablation(ablation);
    check_belongs(*input.ablation, input.run.spec, ablation.string());
  }
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
