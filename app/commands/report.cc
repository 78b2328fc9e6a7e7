// allot report: writes one HTML page of a run, and its figures as files.
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/report/report.h"
#include "base/error.h"
#include "base/file.h"

extern char** environ;

namespace allot::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPngZoom = "2";  // sharp when printed at the size of the page

// Draws an SVG file as PNG beside it, by librsvg's converter.
fs::path write_png(const fs::path& svg) {
  fs::path png = svg;
  png.replace_extension(".png");
  std::vector<std::string> words = {"rsvg-convert", "--zoom",     kPngZoom,
                                    "--output",     png.string(), svg.string()};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t child = 0;
  const int fault = posix_spawnp(&child, argv[0], nullptr, nullptr, argv.data(), environ);
  if (fault != 0) {
    throw NotFound(fmt::format(
        "--png needs rsvg-convert, which cannot be started: {}; install the package librsvg2-bin, or "
        "leave --png out and use the SVG files",
        std::generic_category().message(fault)));
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw StorageError(fmt::format("rsvg-convert could not draw {}; its message is above", png.string()));
  }
  return png;
}

}  // namespace

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
  for (const fs::path& svg : write_plots(input, plots)) {
    std::cout << svg.string() << "\n";
    if (png) std::cout << write_png(svg).string() << "\n";
  }
  return 0;
}

}  // namespace allot::app
