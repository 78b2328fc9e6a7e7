#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"
#include "kernels/cpu/target.h"

ALLOT_BEGIN_TARGET("avx2,fma,f16c,bmi,bmi2,popcnt")
#include "kernels/cpu/vec_avx2.h"
#include "tests/kernels/lane_choices_body.h"

namespace allot::kernels::testing {

void choose_lanes_avx2(const LaneCase& one, LaneLists& lists) {
  list_choices<cpu::Avx2Vec>(one, lists);
}

}  // namespace allot::kernels::testing
ALLOT_END_TARGET
