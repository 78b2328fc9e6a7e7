// A directory for what need not outlast its maker.
#pragma once

#include <filesystem>

namespace allot {

// A new, empty directory that only this user may enter, named allot-XXXXXX where the system keeps temporary
// files ($TMPDIR, else /tmp). It is removed with all that is in it when this object ends; what cannot be
// removed stays, without an error.
class TemporaryDirectory {
 public:
  // Throws StorageError.
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // From now on the directory outlasts this object, for somebody to look into.
  void keep() { kept_ = true; }

 private:
  std::filesystem::path path_;
  bool kept_ = false;
};

}  // namespace allot
