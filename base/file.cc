#include "base/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/error.h"

namespace allot {

std::string read_file(const std::filesystem::path& path) {
  errno = 0;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw NotFound("cannot read " + path.string() + ": it is a directory, a file is expected");
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) throw NotFound("cannot read " + path.string() + ": " + std::strerror(errno ? errno : ENOENT));
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  const auto fail = [&](const char* step) {
    throw StorageError("cannot write " + path.string() + ": " + step + ": " + std::strerror(errno));
  };
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) throw StorageError("cannot create " + path.parent_path().string() + ": " + error.message());
  }
  const std::filesystem::path temporary = path.string() + ".partial-" + std::to_string(::getpid());
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) fail("open");
  const char* step = nullptr;
  for (size_t written = 0; written < content.size() && step == nullptr;) {
    const ssize_t count = ::write(file, content.data() + written, content.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      step = "write";
    else
      written += static_cast<size_t>(count);
  }
  if (step == nullptr && ::fsync(file) != 0) step = "sync";
  if (::close(file) != 0 && step == nullptr) step = "close";
  if (step == nullptr && ::rename(temporary.c_str(), path.c_str()) != 0) step = "rename";
  if (step != nullptr) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    errno = reason;
    fail(step);
  }
}

}  // namespace allot
