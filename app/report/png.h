// Figures as PNG files.
#pragma once

#include <filesystem>

namespace allot::app {

// Draws an SVG file as PNG beside it, by librsvg's converter, and returns its path. Throws NotFound saying
// which package has the converter where it is missing, StorageError when it fails.
std::filesystem::path write_png(const std::filesystem::path& svg);

}  // namespace allot::app
