#include "tests/fuzz/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

namespace allot::fuzz {
namespace {

int checked(int result, const char* call) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), call);
  return result;
}

}  // namespace

MemoryFile::MemoryFile()
    : file_(checked(::memfd_create("fuzz-input", MFD_CLOEXEC), "memfd_create")),
      path_("/proc/self/fd/" + std::to_string(file_)) {}

void MemoryFile::set(std::string_view content) {
  checked(::ftruncate(file_, 0), "ftruncate");
  for (size_t at = 0; at < content.size();) {
    const ssize_t written = ::pwrite(file_, content.data() + at, content.size() - at, static_cast<off_t>(at));
    if (written < 0) throw std::system_error(errno, std::generic_category(), "pwrite");
    at += static_cast<size_t>(written);
  }
}

void LinkDirectory::link(const char* name, const MemoryFile& file) {
  std::filesystem::create_symlink(file.path(), path() / name);
}

}  // namespace allot::fuzz
