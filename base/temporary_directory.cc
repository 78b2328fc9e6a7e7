#include "base/temporary_directory.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>

#include "base/error.h"

namespace allot {
namespace {

[[noreturn]] void fail(const std::string& what, const std::string& reason) {
  throw StorageError("cannot make a temporary directory: " + what + ": " + reason +
                     "; let TMPDIR name a directory that can be written");
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* named = ::getenv("TMPDIR");
    fail(named != nullptr ? named : "/tmp", error.message());
  }
  std::string name = (parent / "allot-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail(name, std::strerror(errno));
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  if (kept_) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace allot
