// SHA-256 fingerprints of files and texts (libcrypto).
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace allot {

// Lower-case hexadecimal SHA-256 of `bytes`: 64 characters.
std::string sha256_hex(std::string_view bytes);

// SHA-256 of a file's content. Throws NotFound when the file cannot be read.
std::string sha256_file(const std::filesystem::path& path);

}  // namespace allot
