// A file without a disk: readers that take a path read bytes that the fuzzer made, some hundred thousand
// times a second.
#pragma once

#include <filesystem>
#include <string_view>

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

// A directory for links to memory files, which readers of a model directory want; removed when the process
// ends.
class LinkDirectory {
 public:
  LinkDirectory();
  ~LinkDirectory();
  LinkDirectory(const LinkDirectory&) = delete;
  LinkDirectory& operator=(const LinkDirectory&) = delete;

  void link(const char* name, const MemoryFile& file);
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace allot::fuzz
