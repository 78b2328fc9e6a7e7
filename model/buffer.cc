#include "model/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "base/error.h"

namespace allot::model {
namespace {

// A cgroup file holds a number, or "max" for no limit.
std::optional<int64_t> number_in(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::optional<int64_t> system_available() {
  std::ifstream file("/proc/meminfo");
  std::string field, unit;
  int64_t kib = 0;
  while (file >> field >> kib) {
    if (field == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

std::optional<int64_t> cgroup_available() {
  const std::optional<int64_t> limit = number_in("/sys/fs/cgroup/memory.max");
  const std::optional<int64_t> used = number_in("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return std::nullopt;
  return std::max<int64_t>(0, *limit - *used);
}

}  // namespace

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  void* mapped = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error("cannot map " + std::to_string(bytes) + " bytes of memory: " + std::strerror(errno) +
                "; use a smaller model, dtype bfloat16 or a smaller cache");
  }
  // Large pages spare scattered reads of the cache and the weights most page table walks; the kernel
  // may refuse them.
  madvise(mapped, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(mapped);
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
}

int64_t available_memory_bytes() {
  const std::optional<int64_t> system = system_available();
  const std::optional<int64_t> cgroup = cgroup_available();
  if (system && cgroup) return std::min(*system, *cgroup);
  return system.value_or(cgroup.value_or(0));
}

}  // namespace allot::model
