// What the selections of kernels/cpu/lane_select.h take from sixteen rows, by the code of each instruction
// set.
#pragma once

#include <cstdint>

#include "kernels/cpu/lanes.h"

namespace allot::kernels::testing {

enum class LaneRule { kSystematic, kThreshold, kLevel };

struct LaneCase {
  LaneRule rule;
  float* sizes;  // [keys, 16], replaced
  int32_t keys;
  int32_t lanes;
  int32_t samples;  // of every row; under kLevel how many there are for each unit of size
  float u[cpu::kLanes];
  int32_t cut;  // the keys of a row are listed in two halves, [0, cut) and [cut, keys)
};

// The keys of row i and their weights follow keys[i * case.keys], which has room for as many as there are.
struct LaneLists {
  int32_t counts[cpu::kLanes];
  int32_t* keys;
  float* weights;
};

using ChooseLanes = void (*)(const LaneCase&, LaneLists&);
void choose_lanes_portable(const LaneCase& one, LaneLists& lists);
void choose_lanes_avx2(const LaneCase& one, LaneLists& lists);
void choose_lanes_avx512(const LaneCase& one, LaneLists& lists);

}  // namespace allot::kernels::testing
