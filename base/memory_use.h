// How much memory there is where something runs, and how much of it is in use.
#pragma once

#include <cstdint>

namespace allot {

struct MemoryUse {
  int64_t used = 0;   // bytes
  int64_t total = 0;  // bytes; 0 = not known
};

// Resident memory of this process, of that of the machine.
MemoryUse process_memory();

}  // namespace allot
