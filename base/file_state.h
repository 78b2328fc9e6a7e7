// Whether a file has changed since it was looked at, by its properties alone.
#pragma once

#include <sys/stat.h>

#include <filesystem>

namespace allot {

// The properties that change when a file is written or replaced; a Kubernetes mount changes the inode. All
// zero where there is no file.
struct FileState {
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec written = {};
  bool operator==(const FileState& other) const {
    return device == other.device && inode == other.inode && size == other.size &&
           written.tv_sec == other.written.tv_sec && written.tv_nsec == other.written.tv_nsec;
  }
};

inline FileState state_of(const std::filesystem::path& file) {
  struct stat status = {};
  if (::stat(file.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino, status.st_size, status.st_mtim};
}

}  // namespace allot
