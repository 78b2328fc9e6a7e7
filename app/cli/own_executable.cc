#include "app/cli/own_executable.h"

#include <system_error>

#include "base/error.h"

namespace allot::app {

std::filesystem::path own_directory() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) throw NotFound("cannot read /proc/self/exe: " + error.message() + "; is /proc mounted?");
  return program.parent_path();
}

}  // namespace allot::app
