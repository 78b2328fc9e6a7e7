#include "base/memory_use.h"

#include <unistd.h>

#include <fstream>

namespace allot {

MemoryUse process_memory() {
  const int64_t page = ::sysconf(_SC_PAGESIZE), pages = ::sysconf(_SC_PHYS_PAGES);
  std::ifstream file("/proc/self/statm");
  int64_t virtual_pages = 0, resident_pages = 0;
  if (page <= 0 || pages <= 0 || !(file >> virtual_pages >> resident_pages)) return {};
  return {.used = resident_pages * page, .total = pages * page};
}

}  // namespace allot
