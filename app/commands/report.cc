// allot report: writes one HTML page of a run, and its figures as files.
#include <filesystem>
#include <iostream>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/report/png.h"
#include "app/report/report.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace fs = std::filesystem;

int run_report(std::span<const std::string> arguments) {
  fs::path run;
  fs::path out;
  fs::path plots;
  bool png = false;
  OptionSet options("report", "write the report of a run as one HTML file, and its figures",
                    "allot report --run runs/quickstart --plots runs/quickstart/plots");
  options.path("run", &run, "run directory");
  options.path("out", &out, "HTML file to write; report.html in the run directory when not given");
  options.path("plots", &plots, "folder for the figures as SVG files");
  options.flag("png", &png,
               "draw the figures as PNG files too (needs rsvg-convert of the package librsvg2-bin)");
  options.require("run");
  if (options.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (png && !options.given("plots")) throw UsageError("--png needs --plots DIR, the folder of the figures");

  const ReportInput input = read_report_input(run);
  const fs::path page = options.given("out") ? out : run / "report.html";
  write_file_atomically(page, report_page(input));
  std::cout << page.string() << "\n";
  if (!options.given("plots")) return 0;
  list_plots(write_plots(input, plots), png, std::cout);
  return 0;
}

}  // namespace allot::app
