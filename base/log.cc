#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "base/error.h"

namespace allot {

void set_up_logging(const std::string& name, const std::string& level) {
  const auto parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && level != "off") {
    throw UsageError("log-level '" + level + "' is not known; use trace, debug, info, warn, error or off");
  }
  auto logger = spdlog::stderr_color_mt(name);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%-5l%$ %n: %v");
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace allot
