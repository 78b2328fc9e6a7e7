// A directory for files that are only needed while the object that made it lives.
#pragma once

#include <filesystem>

namespace allot {

// A new, empty directory named allot-XXXXXX that only this user may enter, in the system's directory for
// temporary files ($TMPDIR, else /tmp). The destructor removes it with all its content; what cannot be
// removed stays, without an error.
class TemporaryDirectory {
 public:
  // Throws StorageError.
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Keeps the directory when this object is destroyed, so that somebody can look into it.
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

}  // namespace allot
