// Order of a score tile's weights in the workspace. A lane of the score kernel ends up with the weights of
// keys 16 i + 2 r + e (i < 4 stages, e < 2) of its row r < 8, and stores them as one vector of 16 bytes:
// position 8 r + 2 i + e.
#pragma once

#include "base/philox.h"

namespace allot::kernels::cuda {

// Position of key `key` (0-based in its score tile).
ALLOT_HOST_DEVICE constexpr int stage_position(int key) {
  const int i = key / 16;
  const int r = key % 16 / 2;
  return 8 * r + 2 * i + key % 2;
}

}  // namespace allot::kernels::cuda
