// The system's limit on open files: each connection of an aggregator is an open file.
#pragma once

#include <cstdint>

namespace allot::app {

// Raises this process's soft limit to its hard limit, which needs no privilege, and returns what it is now.
int64_t raise_open_files();

// As above. Throws Error that names both numbers when fewer than `wanted` files can be open.
void require_open_files(int64_t wanted);

}  // namespace allot::app
