// The directory of the running program. Its companions (allot, allot-model) are started from the same
// directory, so that a build folder, an install tree and an image work without a search path.
#pragma once

#include <filesystem>

namespace allot::app {

// Directory of the running executable, with symbolic links resolved. Throws NotFound when the system does
// not say it.
std::filesystem::path own_directory();

}  // namespace allot::app
