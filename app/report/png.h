// Figures as PNG files.
#pragma once

#include <filesystem>
#include <ostream>
#include <span>

namespace allot::app {

// Draws an SVG file as PNG beside it, by librsvg's converter, and returns its path. Throws NotFound saying
// which package has the converter where it is missing, StorageError when it fails.
std::filesystem::path write_png(const std::filesystem::path& svg);

// Names SVG files, a line each; with `png` draws each as PNG and names that behind it.
void list_plots(std::span<const std::filesystem::path> svgs, bool png, std::ostream& out);

}  // namespace allot::app
