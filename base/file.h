// Reading whole files and writing them so that a reader never sees half of one.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace allot {

// The file's bytes. Throws NotFound naming the path and the system's reason.
std::string read_file(const std::filesystem::path& path);

// Writes `content` to a temporary file beside `path`, syncs it and renames it into place: after a crash
// the file holds either the old or the new content, never a part of it. Creates missing parent
// directories. Throws StorageError.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

}  // namespace allot
