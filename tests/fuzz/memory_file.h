// A file without a disk: readers that take a path read bytes that the fuzzer made, some hundred thousand
// times a second.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/temporary_directory.h"

namespace allot::fuzz {

// Lives until the process ends.
class MemoryFile {
 public:
  MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void set(std::string_view content);
  // Where readers find it.
  const std::filesystem::path& path() const { return path_; }

 private:
  int file_;
  std::filesystem::path path_;
};

// A directory for links to memory files, which readers of a model directory want.
class LinkDirectory : public TemporaryDirectory {
 public:
  void link(const char* name, const MemoryFile& file);
};

}  // namespace allot::fuzz
