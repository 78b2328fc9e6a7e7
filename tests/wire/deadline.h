// How long the tests of this folder wait for a frame that has to come.
#pragma once

#include "base/clock.h"

namespace allot::wire {

inline constexpr Duration kDeadline = std::chrono::seconds(10);

}  // namespace allot::wire
