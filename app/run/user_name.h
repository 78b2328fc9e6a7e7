// Who runs this process, for the history of a run.
#pragma once

#include <string>

namespace allot::app {

// User and host, "ann@head-node", as far as the system knows them.
std::string user_and_host();

}  // namespace allot::app
