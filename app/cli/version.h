#pragma once

namespace allot::app {

// The tool's version, "0.1.0": in --version, every schedule.json and a worker's Hello.
const char* version();

}  // namespace allot::app
