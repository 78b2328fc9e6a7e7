#include "app/report/png.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"

extern char** environ;

namespace allot::app {
namespace {

constexpr const char* kPngZoom = "2";  // sharp when printed at the size of the page

}  // namespace

std::filesystem::path write_png(const std::filesystem::path& svg) {
  std::filesystem::path png = svg;
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

void list_plots(std::span<const std::filesystem::path> svgs, bool png, std::ostream& out) {
  for (const std::filesystem::path& svg : svgs) {
    out << svg.string() << "\n";
    if (png) out << write_png(svg).string() << "\n";
  }
}

}  // namespace allot::app
