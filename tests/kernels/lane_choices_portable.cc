#include "kernels/cpu/vec_generic.h"
#include "tests/kernels/lane_choices_body.h"

namespace allot::kernels::testing {

void choose_lanes_portable(const LaneCase& one, LaneLists& lists) {
  list_choices<cpu::GenericVec<4>>(one, lists);
}

}  // namespace allot::kernels::testing
