// Order of a score tile's weights in the workspace. Lane t of the four that share a row of the score kernel's
// product ends up with the weights of keys 8 n + 2 t + e (n < 8, e < 2) and stores them as two vectors of 16
// bytes, n < 4 in the first. Vector v of lane t lies at position 32 v + 8 t, so that the four lanes write 64
// bytes in a row.
#pragma once

#include "base/philox.h"

namespace allot::kernels::cuda {

// Position of key `key` (0-based in its score tile).
ALLOT_HOST_DEVICE constexpr int stage_position(int key) {
  const int n = key / 8;
  const int t = key % 8 / 2;
  return n / 4 * 32 + 8 * t + n % 4 * 2 + key % 2;
}

// In shared memory the eight vectors of a tile are swapped, each tile's otherwise, so that lanes that read
// the same vector of different tiles do so from different banks, as lanes that write one do for two heads of
// a group: number v lies where v ^ swap_of_tile() would.
ALLOT_HOST_DEVICE constexpr int swap_of_tile(int tile, int head) {
  return (tile ^ (head & 1) * 4) & 7;
}

}  // namespace allot::kernels::cuda
