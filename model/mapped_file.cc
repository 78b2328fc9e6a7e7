#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace allot::model {

MappedFile::MappedFile(const std::filesystem::path& path, MappingAccess access) {
  const std::string file = path.string();
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw NotFound("cannot read " + file + ": " + std::strerror(errno));
  struct stat status = {};
  const bool regular = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? static_cast<size_t>(status.st_size) : 0;
  void* address = nullptr;
  if (size_ > 0) address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int reason = errno;
  ::close(descriptor);
  if (!regular) throw NotFound("cannot read " + file + ": it is not a regular file");
  if (address == MAP_FAILED) throw NotFound("cannot map " + file + ": " + std::strerror(reason));
  address_ = address;
  // Only advice to the kernel about reading ahead; a refusal costs only speed.
  if (size_ > 0) ::madvise(address_, size_, access == MappingAccess::kScattered ? MADV_RANDOM : MADV_NORMAL);
}

MappedFile::~MappedFile() {
  if (address_ != nullptr) ::munmap(address_, size_);
}

}  // namespace allot::model
