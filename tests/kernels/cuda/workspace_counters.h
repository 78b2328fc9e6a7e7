// What a launch must leave in its workspace as it found it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/args.h"

namespace allot::kernels::testing {

// The counters of the header are zero, as before the launch.
inline void expect_counters_at_zero(std::span<const unsigned char> workspace) {
  const auto counters = workspace.first(cuda::kHeaderBytes).subspan(cuda::kNextPieceOffset);
  const auto left = std::ranges::find_if(counters, [](unsigned char x) { return x != 0; });
  EXPECT_EQ(left - counters.begin(), std::ssize(counters))
      << "byte of a counter of the workspace that the launch has left behind";
}

}  // namespace allot::kernels::testing
