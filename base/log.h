// Logs go to stderr (spdlog), results to stdout. set_up_logging is called once, by an executable's main.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace allot {

// Sends log lines to stderr with time, level and `name` (the command). `level` is one of trace, debug, info,
// warn, error, off; anything else throws UsageError naming them.
void set_up_logging(const std::string& name, const std::string& level);

}  // namespace allot
