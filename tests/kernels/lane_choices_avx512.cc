#include <immintrin.h>

#include "kernels/cpu/baseline_headers.h"
#include "kernels/cpu/target.h"

ALLOT_BEGIN_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,popcnt")
#include "kernels/cpu/vec_avx512.h"
#include "tests/kernels/lane_choices_body.h"

namespace allot::kernels::testing {

void choose_lanes_avx512(const LaneCase& one, LaneLists& lists) {
  list_choices<cpu::Avx512Vec>(one, lists);
}

}  // namespace allot::kernels::testing
ALLOT_END_TARGET
